"""Bearer keys: who asks. A key of `--api-key` stands for a tenant of its own, whose name is a hash, so that no key is
kept or shown; other keys come from a deployment file.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Sequence
from typing import Protocol

from tokentrail.answer import Identity
from tokentrail.protocol import TokentrailError, Unauthorized

# Paths that never need a key: probes and scrapers have none, and they tell nothing of what is asked or
# answered.
OPEN_PATHS = frozenset({"/health", "/health/live", "/health/ready", "/metrics"})
DETAILED_PATHS = frozenset({"/health", "/health/ready"})
"""Of these: those that tell admins more."""
_LONGEST = 4096
"""Bytes of an `Authorization` header that is looked at."""


class Ring(Protocol):
    """Further keys; see `gateway.keys.KeyRing`."""

    def find(self, key: bytes) -> Identity:
        """Who has this key. Raises `Unauthorized`."""
        ...

    def identity_of(self, id: str) -> Identity | None:
        """Who has the key with this id; None: it is not good any more."""
        ...


class Keys:
    """The keys that are let in; none, and no ring: everybody is, as tenant ''."""

    def __init__(self, keys: Sequence[str], ring: Ring | None = None) -> None:
        if not all(keys):
            raise TokentrailError("An API key must not be empty: anybody could send it.")
        self._known = [(_digest(key.encode()), _identity(key)) for key in keys]
        self._ring = ring

    @property
    def required(self) -> bool:
        return bool(self._known) or self._ring is not None

    def identify(self, authorization: bytes | None) -> Identity:
        """Who sends an `Authorization` header's value. Raises `Unauthorized` without a right key.

        All keys are compared, each in constant time: how long it takes tells nothing about any of them.
        """
        if not self.required:
            return Identity()
        if authorization is None:
            raise NoKey("You didn't provide an API key. Send it as: Authorization: Bearer YOUR_KEY.")
        key = bearer(authorization)
        given = _digest(key)
        found: Identity | None = None
        for digest, identity in self._known:
            if hmac.compare_digest(digest, given):
                found = identity
        if found is not None:
            return found
        if self._ring is None:
            raise Unauthorized("Incorrect API key provided.")
        return self._ring.find(key)

    def identity_of(self, tenant: str, key: str) -> Identity | None:
        """Who made something that goes on without its maker (batches), by what was noted then. None: the key is not
        good any more.
        """
        if not key:
            # Made without keys, or before keys were noted: it is let go on as what it was.
            return Identity(tenant=tenant)
        found = next((identity for _, identity in self._known if identity.key == key), None)
        if found is None and self._ring is not None:
            found = self._ring.identity_of(key)
        return found if found is not None and found.tenant == tenant else None


class NoKey(Unauthorized):
    """None was sent."""


def bearer(authorization: bytes) -> bytes:
    """The key in an `Authorization` header's value (RFC 6750, section 2.1). Raises `Unauthorized`."""
    scheme, _, key = authorization.partition(b" ")
    key = key.strip(b" \t")
    if scheme.lower() != b"bearer" or not key or len(authorization) > _LONGEST:
        raise Unauthorized("Incorrect API key provided. Send it as: Authorization: Bearer YOUR_KEY.")
    return key


def _digest(key: bytes) -> bytes:
    """Hashing first makes all comparisons equally long."""
    return hashlib.sha256(key).digest()


def _identity(key: str) -> Identity:
    tenant = hashlib.sha256(b"tokentrail tenant\0" + key.encode()).hexdigest()[:32]
    return Identity(tenant=tenant, key=f"flag_{tenant[:10]}")
