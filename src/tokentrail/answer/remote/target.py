"""Where a remote model is, and how patient to be with it."""

from __future__ import annotations

import msgspec

KINDS = ("openai", "vllm", "llama.cpp", "tgi", "tokentrail")
"""Kinds of upstreams, which differ in the parameters that they know beyond OpenAI's."""


class RemoteTimeouts(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds."""

    connect_s: float = 5.0
    """Until there is a connection, its TLS handshake included."""
    first_token_s: float = 120.0
    """From the request being sent to the first piece of the answer: the upstream's queue and its prefill."""
    between_tokens_s: float = 60.0
    """From one piece of the answer to the next."""


class RemoteTarget(msgspec.Struct, frozen=True, kw_only=True):
    """One model of one OpenAI-compatible upstream."""

    name: str
    """The model's name here."""
    url: str
    """http:// or https://, as OpenAI's clients have it as their `base_url`; without a path /v1 is meant."""
    model: str = ""
    """The upstream's name for it; empty: `name`."""
    api_key: str = ""
    """Sent as a bearer token; empty: none."""
    kind: str | None = None
    """One of `KINDS`; None: the upstream is asked what it is."""
    context_length: int | None = None
    """Tokens of prompt and answer together; None: the upstream is asked, and need not know."""
    timeouts: RemoteTimeouts = RemoteTimeouts()
    headers: dict[str, str] = {}
    """Sent with each request."""
    verify_tls: bool = True
    """False: anybody may answer in the upstream's place. For tests."""
    ca_file: str | None = None
    """Certificates of authorities to trust, in PEM; None: those of the system."""
    max_connections: int = 512
    """Requests at once at most; more are refused as by a full queue."""

    def __repr__(self) -> str:
        """Without its secrets, so that no log or traceback has them."""
        return f"RemoteTarget(name={self.name!r}, url={self.url!r}, model={self.model!r}, kind={self.kind!r})"
