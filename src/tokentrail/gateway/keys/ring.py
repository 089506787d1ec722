"""All keys that are let in, in memory: a request never waits for a database."""

from __future__ import annotations

import hmac
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from tokentrail.answer import Identity
from tokentrail.gateway.config.keys import KeysSettings, TenantSettings
from tokentrail.gateway.keys.records import KeyRecord, TenantRecord
from tokentrail.gateway.keys.secrets import id_of, keyed, plain_digest
from tokentrail.protocol import Unauthorized

_NEVER = bytes(32)
"""No digest."""
_NOBODY = KeyRecord(id="", tenant="", digest=_NEVER)


class _Known(NamedTuple):
    record: KeyRecord
    identity: Identity


class KeyRing:
    """The file's keys, and those of the database as they were when it was last looked at.

    Asked on one event loop. `apply` and `replace` may be called in any thread: what is looked up is exchanged whole.
    """

    def __init__(
        self,
        settings: KeysSettings,
        tenants: Sequence[TenantSettings] = (),
        *,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._clock = clock
        self._pepper = pepper_of(settings)
        self._weaving = threading.Lock()
        self._listed: tuple[_Known, ...] = ()
        self._stored: dict[str, _Known] = {}
        self._tenants: dict[str, TenantRecord] = {}
        self._stored_keys: tuple[KeyRecord, ...] = ()
        self._stored_tenants: tuple[TenantRecord, ...] = ()
        self.used: dict[str, float] = {}
        """Times at which keys of the database were let in last, since these were last taken out of here."""
        self.apply(settings, tenants)

    def apply(self, settings: KeysSettings, tenants: Sequence[TenantSettings]) -> None:
        """Take over the deployment file's keys and tenants. The pepper stays."""
        with self._weaving:
            self._file_keys = listed_keys(settings)
            self._file_tenants = {one.name: tenant_of(one) for one in tenants}
            self._weave()

    def replace(self, keys: Iterable[KeyRecord], tenants: Iterable[TenantRecord]) -> None:
        """Take over what the database has."""
        with self._weaving:
            self._stored_keys, self._stored_tenants = tuple(keys), tuple(tenants)
            self._weave()

    def _weave(self) -> None:
        known = {one.name: one for one in self._stored_tenants} | self._file_tenants
        self._tenants = known

        def of(record: KeyRecord) -> _Known:
            return _Known(record, record.identity(known.get(record.tenant) or _plain_tenant(record.tenant)))

        self._listed = tuple(of(record) for record in self._file_keys)
        self._stored = {record.id: of(record) for record in self._stored_keys}

    # --- asking --------------------------------------------------------------------------------------

    def find(self, key: bytes) -> Identity:
        """Who has this key. Raises `Unauthorized`.

        Each digest is compared in constant time; a key with an id that is not known is compared, too, with nothing.
        """
        plain = plain_digest(key)
        found: _Known | None = None
        for known in self._listed:
            if hmac.compare_digest(known.record.digest, plain):
                found = known
        if found is None:
            found = self._find_stored(key, keyed(plain, self._pepper))
        if found is None:
            raise Unauthorized("Incorrect API key provided.")
        record, identity = found
        now = self._clock()
        self._check(record, now)
        if not record.in_file:
            self.used[record.id] = now
        return identity

    def _find_stored(self, key: bytes, digest: bytes) -> _Known | None:
        try:
            id = id_of(key)
        except ValueError:
            raise Unauthorized(
                "Incorrect API key provided: its check characters do not fit, so it is mistyped or cut off."
            ) from None
        known = self._stored.get(id or "")
        record = _NOBODY if known is None else known.record
        now = self._clock()
        right = hmac.compare_digest(record.digest, digest)
        old = hmac.compare_digest(record.old_digest or _NEVER, digest)
        old &= record.old_until is not None and now < record.old_until
        return known if right or old else None

    def _check(self, record: KeyRecord, now: float) -> None:
        """Who has shown the right key may know why it is not good."""
        if record.revoked is not None:
            raise Unauthorized("This API key was revoked.", code="revoked_api_key")
        if not record.good_at(now):
            raise Unauthorized("This API key has expired.", code="expired_api_key")
        if self.tenant(record.tenant).disabled:
            raise Unauthorized("The tenant of this API key is disabled.", code="disabled_tenant")

    def identity_of(self, id: str) -> Identity | None:
        """The identity of a key by its id, for what goes on without it (batches); None: it is not good any more."""
        known = next((one for one in self._listed if one.record.id == id), None) or self._stored.get(id)
        if known is None:
            return None
        try:
            self._check(known.record, self._clock())
        except Unauthorized:
            return None
        return known.identity

    def key(self, id: str) -> KeyRecord | None:
        """What is known of a key that is let in, or was."""
        if (known := self._stored.get(id)) is not None:
            return known.record
        return next((one.record for one in self._listed if one.record.id == id), None)

    def tenant(self, name: str) -> TenantRecord:
        """What is known of a tenant: nothing special of one that nobody has described."""
        return self._tenants.get(name) or _plain_tenant(name)

    @property
    def file_keys(self) -> tuple[KeyRecord, ...]:
        return self._file_keys

    @property
    def file_tenants(self) -> tuple[TenantRecord, ...]:
        return tuple(self._file_tenants.values())


def pepper_of(settings: KeysSettings) -> bytes | None:
    return None if settings.pepper is None else settings.pepper.get_secret_value().encode()


def listed_keys(settings: KeysSettings) -> tuple[KeyRecord, ...]:
    """The keys that a file names."""
    records = []
    for one in settings.listed:
        if one.key is not None:
            digest = plain_digest(one.key.get_secret_value().encode())
        else:
            digest = bytes.fromhex((one.hash or "").partition(":")[2])
        records.append(
            KeyRecord(
                id=one.name,
                name=one.name,
                tenant=one.tenant,
                digest=digest,
                expires=one.expires_at,
                admin=one.admin,
                models=None if one.models is None else tuple(one.models),
                endpoints=None if one.endpoints is None else tuple(one.endpoints),
                limits={} if one.limits is None else one.limits.model_dump(exclude_unset=True),
                in_file=True,
            )
        )
    return tuple(records)


def tenant_of(settings: TenantSettings) -> TenantRecord:
    limits = {} if settings.limits is None else settings.limits.model_dump(exclude_unset=True)
    return TenantRecord(
        name=settings.name,
        weight=settings.weight,
        limits=limits,
        disabled=settings.disabled,
        in_file=True,
    )


def _plain_tenant(name: str) -> TenantRecord:
    return TenantRecord(name=name)
