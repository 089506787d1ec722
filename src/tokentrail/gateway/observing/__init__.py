"""What becomes of each request, told where a deployment file says: metrics, an access log, traces.

`Observer` follows an HTTP request from its arrival to the end of its response; `ObservingBackend`, outermost of the
gateway's backends, tells it what the request asked of a model and what was answered. Content is told only with
`log_content: true`.
"""

from tokentrail.gateway.observing.backend import ObservingAnswer, ObservingBackend
from tokentrail.gateway.observing.observed import Observed
from tokentrail.gateway.observing.observer import Observer

__all__ = ["Observed", "Observer", "ObservingAnswer", "ObservingBackend"]
