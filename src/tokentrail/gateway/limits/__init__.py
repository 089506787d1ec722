"""How much a key and its tenant may ask: rates within any minute, requests at once, quotas of calendar days and months.

A request reserves what it may use of all of them together, or of none; when it ends, what it did use takes the
reservation's place. `meters` says what is counted for whom, `memory` and `shared` count (in this process; in Redis, for
several), `limiting` stands before a backend.
"""

from tokentrail.gateway.limits.limiting import LimitingBackend, Price, Spent
from tokentrail.gateway.limits.meters import limits_of
from tokentrail.gateway.limits.telling import LimitUse

__all__ = ["LimitUse", "LimitingBackend", "Price", "Spent", "limits_of"]
