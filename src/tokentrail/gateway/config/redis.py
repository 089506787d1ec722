"""Where several gateways keep what they share."""

from __future__ import annotations

from typing import Annotated
from urllib.parse import urlsplit

from pydantic import AfterValidator


def _checked(url: str) -> str:
    # The address may hold a password: what is wrong is told without it.
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError:
        raise ValueError("is not a URL; give redis://HOST:PORT/NUMBER") from None
    if parts.scheme not in ("redis", "rediss", "unix"):
        raise ValueError("must begin with redis://, rediss:// (TLS) or unix://")
    if not (parts.path if parts.scheme == "unix" else parts.hostname):
        raise ValueError("names no host; give redis://HOST:PORT/NUMBER")
    return url


RedisUrl = Annotated[str, AfterValidator(_checked)]
