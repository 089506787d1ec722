"""Bearer keys: who asks. A key stands for a tenant, whose name is a hash, so that no key is kept or shown."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Sequence

from tokentrail.answer import Identity
from tokentrail.protocol import TokentrailError
from tokentrail.server.errors import unauthorized

# Paths that never need a key: probes and scrapers have none, and they tell nothing of what is asked or
# answered.
OPEN_PATHS = frozenset({"/health", "/health/live", "/health/ready", "/metrics"})


class Keys:
    """The keys that are let in; none: everybody is, as tenant ''."""

    def __init__(self, keys: Sequence[str]) -> None:
        if not all(keys):
            raise TokentrailError("An API key must not be empty: anybody could send it.")
        self._digests = [(_digest(key.encode()), _tenant(key)) for key in keys]

    def identify(self, authorization: bytes | None) -> Identity:
        """Who sends an `Authorization` header's value. Raises a 401 error without a right key.

        All keys are compared, each in constant time: how long it takes tells nothing about any of them.
        """
        if not self._digests:
            return Identity()
        if authorization is None:
            raise unauthorized("You didn't provide an API key. Send it as: Authorization: Bearer YOUR_KEY.")
        scheme, _, key = authorization.partition(b" ")
        given = _digest(key.strip())
        found = ""
        for digest, tenant in self._digests:
            if hmac.compare_digest(digest, given):
                found = tenant
        if scheme.lower() != b"bearer" or not found:
            raise unauthorized("Incorrect API key provided.")
        return Identity(tenant=found)


def _digest(key: bytes) -> bytes:
    """Hashing first makes all comparisons equally long."""
    return hashlib.sha256(key).digest()


def _tenant(key: str) -> str:
    return hashlib.sha256(b"tokentrail tenant\0" + key.encode()).hexdigest()[:32]
