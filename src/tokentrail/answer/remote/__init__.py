"""Answers from OpenAI-compatible upstreams: vLLM, llama.cpp's server, TGI, a cloud API, another Tokentrail."""

from tokentrail.answer.remote.target import KINDS, RemoteTarget, RemoteTimeouts

__all__ = ["KINDS", "RemoteTarget", "RemoteTimeouts"]
