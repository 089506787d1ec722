"""Keys and tenants in the database. All of it runs within a transaction of the caller's, in a thread where requests are
answered.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from sqlalchemy import Connection, Row, Table, func, insert, select, update

from tokentrail.gateway.keys.records import KeyRecord, TenantRecord
from tokentrail.gateway.keys.secrets import keyed, new_key, plain_digest
from tokentrail.gateway.keys.tables import changes, keys, tenants
from tokentrail.protocol import TokentrailError

_MICRO = 1_000_000
_TIMES = ("old_until", "created", "rotated", "expires", "revoked", "last_used")
COARSE = 60.0
"""Seconds by which the time of a key's last use may be off in the database."""


class NotFound(TokentrailError):
    status = 404
    type = "invalid_request_error"


class Conflict(TokentrailError):
    status = 409
    type = "invalid_request_error"


class Made(NamedTuple):
    """A key that was made, or got a new secret. Nobody can get at `text` again."""

    record: KeyRecord
    text: str


class Loaded(NamedTuple):
    version: int
    keys: list[KeyRecord]
    tenants: list[TenantRecord]


class KeyStore:
    def __init__(self, pepper: bytes | None = None, *, clock: Callable[[], float] = time.time) -> None:
        """`pepper`: see `secrets.keyed`."""
        self._pepper = pepper
        self._clock = clock

    # --- keys ----------------------------------------------------------------------------------------

    def create(
        self,
        connection: Connection,
        *,
        tenant: str,
        name: str = "",
        admin: bool = False,
        models: Iterable[str] | None = None,
        endpoints: Iterable[str] | None = None,
        limits: Mapping[str, Any] | None = None,
        expires: float | None = None,
        make_tenant: bool = False,
    ) -> Made:
        """`make_tenant`: make the tenant where there is none; otherwise `NotFound` is raised."""
        if self._tenant_row(connection, tenant) is None:
            if not make_tenant:
                raise _no_tenant(tenant)
            self.add_tenant(connection, tenant)
        made = new_key()
        record = KeyRecord(
            id=made.id,
            tenant=tenant,
            name=name,
            digest=self._digest(made.text),
            created=self._clock(),
            expires=expires,
            admin=admin,
            models=None if models is None else tuple(models),
            endpoints=None if endpoints is None else tuple(endpoints),
            limits=dict(limits or {}),
        )
        connection.execute(insert(keys).values(**_key_values(record)))
        _changed(connection)
        return Made(record, made.text)

    def key(self, connection: Connection, id: str, *, lock: bool = False) -> KeyRecord:
        """Raises `NotFound`. `lock`: nobody else changes it before the transaction is over."""
        statement = select(keys).where(keys.c.id == id)
        row = connection.execute(statement.with_for_update() if lock else statement).one_or_none()
        if row is None:
            raise NotFound(f"There is no API key with the id {id[:80]!r}.", param="id", code="key_not_found")
        return _key(row)

    def keys(
        self,
        connection: Connection,
        *,
        tenant: str | None = None,
        after: str | None = None,
        limit: int | None = None,
        all: bool = True,
    ) -> list[KeyRecord]:
        """The newest first, behind the key `after`; one more than `limit`, if there are. `all` False: without those
        that were revoked. Raises `NotFound`.
        """
        statement = select(keys).order_by(keys.c.serial.desc())
        if tenant is not None:
            statement = statement.where(keys.c.tenant == tenant)
        if not all:
            statement = statement.where(keys.c.revoked.is_(None))
        if after is not None:
            statement = statement.where(keys.c.serial < _serial(connection, keys, keys.c.id, after))
        if limit is not None:
            statement = statement.limit(limit + 1)
        return [_key(row) for row in connection.execute(statement)]

    def change(self, connection: Connection, id: str, values: Mapping[str, Any]) -> KeyRecord:
        """`values`: of the fields name, admin, models, endpoints, limits and expires, those that change."""
        before = self.key(connection, id, lock=True)
        if before.revoked is not None:
            raise Conflict("The key was revoked, and stays as it was.", code="key_revoked")
        return self._write(connection, id, values)

    def rotate(self, connection: Connection, id: str, grace_s: float) -> Made:
        """A new secret; the one before stays good for `grace_s` seconds, and one before that no longer is."""
        before = self.key(connection, id, lock=True)
        now = self._clock()
        if not before.good_at(now):
            raise Conflict(
                "The key was revoked or has expired: make a new one instead.", code="key_not_usable"
            )
        made = new_key(id)
        values: dict[str, Any] = {"digest": self._digest(made.text), "rotated": now}
        graced = grace_s > 0
        values |= {
            "old_digest": before.digest if graced else None,
            "old_until": now + grace_s if graced else None,
        }
        return Made(self._write(connection, id, values), made.text)

    def revoke(self, connection: Connection, id: str) -> KeyRecord:
        """For good. Once more changes nothing."""
        before = self.key(connection, id, lock=True)
        if before.revoked is not None:
            return before
        return self._write(connection, id, {"revoked": self._clock(), "old_digest": None, "old_until": None})

    def _write(self, connection: Connection, id: str, values: Mapping[str, Any]) -> KeyRecord:
        stored = {name: _stored(name, value) for name, value in values.items()}
        if stored:
            connection.execute(update(keys).where(keys.c.id == id).values(**stored))
            _changed(connection)
        return self.key(connection, id)

    def _digest(self, text: str) -> bytes:
        return keyed(plain_digest(text.encode()), self._pepper)

    # --- tenants -------------------------------------------------------------------------------------

    def add_tenant(
        self,
        connection: Connection,
        name: str,
        *,
        weight: float = 1.0,
        limits: Mapping[str, Any] | None = None,
        disabled: bool = False,
    ) -> TenantRecord:
        if self._tenant_row(connection, name) is not None:
            raise Conflict(f"There is a tenant {name!r} already.", param="name", code="tenant_exists")
        connection.execute(
            insert(tenants).values(
                name=name,
                weight=weight,
                limits=dict(limits or {}),
                disabled=disabled,
                created=int(self._clock() * _MICRO),
            )
        )
        _changed(connection)
        return self.tenant(connection, name)

    def tenant(self, connection: Connection, name: str) -> TenantRecord:
        row = self._tenant_row(connection, name)
        if row is None:
            raise _no_tenant(name)
        return _tenant(row)

    def tenants(
        self,
        connection: Connection,
        *,
        after: str | None = None,
        limit: int | None = None,
        without: Iterable[str] = (),
    ) -> list[TenantRecord]:
        """The newest first, but for those `without`; see `keys`."""
        statement = select(tenants).order_by(tenants.c.serial.desc())
        if names := list(without):
            statement = statement.where(tenants.c.name.not_in(names))
        if after is not None:
            statement = statement.where(
                tenants.c.serial < _serial(connection, tenants, tenants.c.name, after)
            )
        if limit is not None:
            statement = statement.limit(limit + 1)
        return [_tenant(row) for row in connection.execute(statement)]

    def change_tenant(self, connection: Connection, name: str, values: Mapping[str, Any]) -> TenantRecord:
        """`values`: of the fields weight, limits and disabled, those that change."""
        self.tenant(connection, name)
        if values:
            connection.execute(update(tenants).where(tenants.c.name == name).values(**values))
            _changed(connection)
        return self.tenant(connection, name)

    def remove_tenant(self, connection: Connection, name: str) -> None:
        """One without keys. Raises `Conflict` where it has any, revoked ones included: usage is counted by them."""
        self.tenant(connection, name)
        count = connection.scalar(select(func.count()).select_from(keys).where(keys.c.tenant == name))
        if count:
            raise Conflict(
                f"The tenant {name!r} has keys, revoked ones included. Disable it instead.",
                param="name",
                code="tenant_in_use",
            )
        connection.execute(tenants.delete().where(tenants.c.name == name))
        _changed(connection)

    def _tenant_row(self, connection: Connection, name: str) -> Row[Any] | None:
        return connection.execute(select(tenants).where(tenants.c.name == name)).one_or_none()

    # --- what servers need ---------------------------------------------------------------------------

    def version(self, connection: Connection) -> int:
        """Another number than before, if anything but times of use was changed."""
        return int(connection.scalar(select(changes.c.version).where(changes.c.id == 1)) or 0)

    def load(self, connection: Connection) -> Loaded:
        """Everything. The version may be older than the rest, never newer."""
        version = self.version(connection)
        return Loaded(version, self.keys(connection), self.tenants(connection))

    def note_used(self, connection: Connection, used: Mapping[str, float]) -> None:
        """Write when keys were used last, unless there is a later time."""
        for id, when in sorted(used.items()):  # in one order: several servers must not wait for each other
            micro = int(when * _MICRO)
            later = (keys.c.last_used.is_(None)) | (keys.c.last_used < micro)
            connection.execute(update(keys).where(keys.c.id == id, later).values(last_used=micro))


def _changed(connection: Connection) -> None:
    connection.execute(update(changes).where(changes.c.id == 1).values(version=changes.c.version + 1))


def _serial(connection: Connection, table: Table, column: Any, value: str) -> int:
    serial = connection.scalar(select(table.c.serial).where(column == value))
    if serial is None:
        raise NotFound(
            "after must be the id of one that the list has.", param="after", code="after_not_found"
        )
    return int(serial)


def _stored(name: str, value: Any) -> Any:
    if name in _TIMES:
        return None if value is None else int(value * _MICRO)
    return list(value) if isinstance(value, tuple) else value


def _key_values(record: KeyRecord) -> dict[str, Any]:
    names = [column.name for column in keys.columns if column.name != "serial"]
    return {name: _stored(name, getattr(record, name)) for name in names}


def _key(row: Row[Any]) -> KeyRecord:
    values = dict(row._mapping)
    del values["serial"]
    for name in _TIMES:
        if values[name] is not None:
            values[name] /= _MICRO
    for name in ("models", "endpoints"):
        if values[name] is not None:
            values[name] = tuple(values[name])
    for name in ("digest", "old_digest"):
        if values[name] is not None:
            values[name] = bytes(values[name])
    return KeyRecord(**values)


def _tenant(row: Row[Any]) -> TenantRecord:
    return TenantRecord(
        name=row.name,
        weight=row.weight,
        limits=row.limits,
        disabled=row.disabled,
        created=row.created / _MICRO,
    )


def _no_tenant(name: str) -> NotFound:
    return NotFound(f"There is no tenant {name[:80]!r}.", param="tenant", code="tenant_not_found")
