"""Answers from OpenAI-compatible upstreams: vLLM, llama.cpp's server, TGI, a cloud API, another Tokentrail.

`RemoteBackend` asks one model of one upstream, over connections of its own that stay open.
"""

from tokentrail.answer.remote.backend import Probed, RemoteBackend
from tokentrail.answer.remote.target import KINDS, RemoteTarget, RemoteTimeouts

__all__ = ["KINDS", "Probed", "RemoteBackend", "RemoteTarget", "RemoteTimeouts"]
