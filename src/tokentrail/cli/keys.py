"""`tokentrail keys`: API keys in a deployment's database. Running servers notice within a second."""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias, TypeVar

import typer

from tokentrail.cli.help import CONTEXT
from tokentrail.cli.options import note
from tokentrail.cli.terminal import console, print_json
from tokentrail.cli.units import read_flag
from tokentrail.protocol.errors import TokentrailError

if TYPE_CHECKING:
    from tokentrail.gateway.config import Deployment
    from tokentrail.gateway.config.base import Settings
    from tokentrail.gateway.database import Database
    from tokentrail.gateway.keys import KeyRecord, TenantRecord
    from tokentrail.gateway.keys.store import KeyStore, Made

S = TypeVar("S", bound="Settings")

commands = typer.Typer(
    help="Make, list, rotate and revoke the API keys of a deployment.",
    rich_markup_mode=None,
    context_settings=CONTEXT,
)

Config: TypeAlias = Annotated[
    Path, typer.Option("--config", metavar="FILE", help="The deployment file: it says which database.")
]
Id: TypeAlias = Annotated[str, typer.Argument(metavar="ID", help="A key's id, such as key_5rJd0XbQ2c.")]
Json: TypeAlias = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@commands.command()
def create(
    config: Config,
    name: Annotated[str, typer.Option("--name", help="What it is for, for people.")] = "",
    tenant: Annotated[
        str,
        typer.Option(
            "--tenant", help="Whose it is. Keys of a tenant share journeys, files, batches and responses."
        ),
    ] = "default",
    make_tenant: Annotated[
        bool, typer.Option("--make-tenant", help="Make the tenant if there is none of this name.")
    ] = False,
    admin: Annotated[bool, typer.Option("--admin", help="It may use the admin API.")] = False,
    models: Annotated[
        list[str] | None,
        typer.Option(
            "--models",
            metavar="NAME,...",
            help="Models that it may ask: names, or patterns such as 'llama-*'. Default: all.",
        ),
    ] = None,
    endpoints: Annotated[
        list[str] | None,
        typer.Option(
            "--endpoints",
            metavar="KIND,...",
            help="Of chat, completions, responses, embeddings, moderations, files, tokens, journeys. Default: all.",
        ),
    ] = None,
    expires: Annotated[
        str | None,
        typer.Option(
            "--expires", metavar="WHEN", help="A time from now (90d, 12h) or a date. Default: never."
        ),
    ] = None,
    limit: Annotated[
        list[str] | None,
        typer.Option(
            "--limit",
            metavar="NAME=NUMBER",
            help="Such as requests_per_minute=60, or tokens_per_day=none. May be repeated.",
        ),
    ] = None,
    json: Json = False,
) -> None:
    """Make a key. It is printed, this once; nobody can get at it again."""
    from tokentrail.gateway.config.keys import DEFAULT_TENANT, KeyScope

    until = None if expires is None else read_flag("--expires", expires, moment)
    if len(name) > 128:
        raise typer.BadParameter("it has more than 128 characters", param_hint="--name")
    scope = checked(
        KeyScope,
        {
            "tenant": tenant,
            "admin": admin,
            "models": _words(models),
            "endpoints": _words(endpoints),
            "limits": dict(read_flag("--limit", one, limit_of) for one in limit or ()),
        },
    )
    with opened(config) as known, known.database.write() as connection:
        from tokentrail.gateway.keys.store import NotFound

        try:
            made = known.store.create(
                connection,
                tenant=scope.tenant,
                name=name,
                admin=scope.admin,
                models=scope.models,
                endpoints=scope.endpoints,
                limits={} if scope.limits is None else scope.limits.model_dump(exclude_unset=True),
                expires=until,
                make_tenant=make_tenant or scope.tenant == DEFAULT_TENANT,
            )
        except NotFound as error:
            raise TokentrailError(f"{error} Make it with --make-tenant.") from None
    _told(made, json)


@commands.command("list")
def list_keys(
    config: Config,
    tenant: Annotated[str | None, typer.Option("--tenant", help="Only this tenant's.")] = None,
    all: Annotated[bool, typer.Option("--all", help="Those that were revoked, too.")] = False,
    json: Json = False,
) -> None:
    """The keys in the database and in the deployment file, the newest first."""
    from tokentrail.gateway.keys.ring import listed_keys

    with opened(config) as known, known.database.read() as connection:
        records = known.store.keys(connection, tenant=tenant, all=all)
    assert known.deployment.keys is not None
    in_file = listed_keys(known.deployment.keys)
    records += [record for record in in_file if tenant in (None, record.tenant)]
    if json:
        _print(records)
    elif not records:
        note("there are no keys")
    else:
        _print_table(records)


@commands.command()
def show(config: Config, id: Id, json: Json = False) -> None:
    """All that is known of a key."""
    with opened(config) as known:
        record = known.find(id)
    if json:
        _print(record)
    else:
        _print_key(record)


@commands.command()
def rotate(
    config: Config,
    id: Id,
    grace: Annotated[
        str,
        typer.Option("--grace", metavar="TIME", help="How long the old key still works; 0: not at all."),
    ] = "24h",
    json: Json = False,
) -> None:
    """Give a key a new secret. It is printed, this once; all else about the key stays."""
    seconds = 0.0 if grace == "0" else read_flag("--grace", grace, duration)
    with opened(config) as known:
        known.not_in_file(id)
        with known.database.write() as connection:
            made = known.store.rotate(connection, id, seconds)
    _told(made, json)


@commands.command()
def revoke(config: Config, id: Id, json: Json = False) -> None:
    """End a key for good. Running servers refuse it within a second."""
    with opened(config) as known:
        known.not_in_file(id)
        with known.database.write() as connection:
            record = known.store.revoke(connection, id)
    if json:
        _print(record)
    else:
        print(f"{record.id} is revoked.")


# --- the database ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Opened:
    config: Path
    deployment: Deployment
    database: Database
    store: KeyStore

    @property
    def file_tenants(self) -> list[TenantRecord]:
        from tokentrail.gateway.keys.ring import tenant_of

        return [tenant_of(one) for one in self.deployment.tenants]

    def find(self, id: str) -> KeyRecord:
        return self._in_file(id) or self._stored(id)

    def not_in_file(self, id: str) -> None:
        if self._in_file(id) is not None:
            raise TokentrailError(f"The key {id} stands in {self.config}: change it there.")

    def _in_file(self, id: str) -> KeyRecord | None:
        from tokentrail.gateway.keys.ring import listed_keys

        assert self.deployment.keys is not None
        return next((one for one in listed_keys(self.deployment.keys) if one.id == id), None)

    def _stored(self, id: str) -> KeyRecord:
        with self.database.read() as connection:
            return self.store.key(connection, id)


@contextlib.contextmanager
def opened(config: Path) -> Iterator[Opened]:
    """The deployment's database. Raises a `TokentrailError` where its keys are not kept there."""
    from tokentrail.gateway.config import load
    from tokentrail.gateway.database import open_database

    deployment = load(config)
    if deployment.keys is None:
        raise TokentrailError(
            f"{config} says nothing of keys, so that its servers ask for none. Write `keys: {{}}` into it."
        )
    if not deployment.keys.stored:
        raise TokentrailError(
            f"{config} says keys.stored: false, so that keys in the database are not let in."
        )
    database = open_database(deployment.database, config.parent)
    try:
        from tokentrail.gateway.keys.ring import pepper_of
        from tokentrail.gateway.keys.store import KeyStore

        yield Opened(config, deployment, database, KeyStore(pepper_of(deployment.keys)))
    finally:
        database.close()


# --- what is written ---------------------------------------------------------------------------------


def _told(made: Made, json: bool) -> None:
    if json:
        from tokentrail.gateway.keys.views import view_new_key

        print_struct(view_new_key(made.record, made.text))
        return
    record = made.record
    old = record.old_until
    note(
        f"{record.id} of the tenant {record.tenant}; the key follows, and is not shown again"
        + (f"; the one before works until {_when(old)}" if old is not None else "")
    )
    print(made.text)


def _print(what: KeyRecord | list[KeyRecord]) -> None:
    from tokentrail.gateway.keys.views import view_key

    if isinstance(what, list):
        print_struct({"object": "list", "data": [view_key(record) for record in what]})
    else:
        print_struct(view_key(what))


def print_struct(value: Any) -> None:
    import msgspec

    print_json(msgspec.to_builtins(value))


def _print_table(records: list[KeyRecord]) -> None:
    from rich.table import Table
    from rich.text import Text

    from tokentrail.gateway.keys.views import view_key

    table = Table(
        "id", "name", "tenant", "status", "may", "last used", "expires", box=None, padding=(0, 2, 0, 0)
    )
    for record in records:
        status = view_key(record).status + (" (in the file)" if record.in_file else "")
        table.add_row(
            *(
                Text(word)
                for word in (
                    record.id,
                    record.name,
                    record.tenant,
                    status,
                    _scope(record),
                    _when(record.last_used) if record.last_used else "-",
                    _when(record.expires) if record.expires else "never",
                )
            )
        )
    console().print(table)


def _print_key(record: KeyRecord) -> None:
    import msgspec
    from rich.table import Table
    from rich.text import Text

    from tokentrail.gateway.keys.views import view_key

    grid = Table.grid(padding=(0, 2))
    for name, value in msgspec.to_builtins(view_key(record)).items():
        if name == "object":
            continue
        if name.endswith(("_at", "_until")):
            shown = "-" if value is None else _when(value)
        elif isinstance(value, list):
            shown = ", ".join(value)
        elif isinstance(value, dict):
            shown = ", ".join(f"{key}={'none' if one is None else one}" for key, one in value.items()) or "-"
        else:
            shown = {None: "all", True: "yes", False: "no"}.get(value, str(value))
        grid.add_row(Text(name.removesuffix("_at").replace("_", " "), style="cyan"), Text(shown))
    console().print(grid)


def _scope(record: KeyRecord) -> str:
    parts = ["admin"] if record.admin else []
    parts += ["all endpoints"] if record.endpoints is None else list(record.endpoints)
    parts += [] if record.models is None else [f"of {', '.join(record.models)}"]
    return ", ".join(parts)


def _when(moment: float) -> str:
    return datetime.fromtimestamp(moment).astimezone().strftime("%Y-%m-%d %H:%M")


# --- what is read ------------------------------------------------------------------------------------

_DURATION = re.compile(r"([0-9]{1,6})([smhdwy])")
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400, "y": 365 * 86400}


def duration(text: str) -> float:
    """Seconds: `90d`, `24h`, `30m`."""
    found = _DURATION.fullmatch(text.strip())
    if found is None or not int(found[1]):
        raise ValueError(f"{text!r} is not a time; write a number and s, m, h, d, w or y, such as 24h or 90d")
    return float(int(found[1]) * _SECONDS[found[2]])


def moment(text: str) -> float:
    """Unix seconds, later than now: in `90d`, or a date (ISO 8601), whose time is UTC's unless it says another."""
    try:
        when = time.time() + duration(text)
    except ValueError:
        try:
            parsed = datetime.fromisoformat(text.strip().replace("Z", "+00:00"))
        except ValueError:
            raise ValueError(
                f"{text!r} is neither a time from now (90d, 12h) nor a date (2027-01-31)"
            ) from None
        when = (parsed if parsed.tzinfo else parsed.replace(tzinfo=timezone.utc)).timestamp()
    if when <= time.time():
        raise ValueError(f"{text!r} is over already")
    return when


def checked(form: type[S], given: dict[str, Any]) -> S:
    """What flags say, held to what the deployment file may say."""
    from pydantic import ValidationError

    try:
        return form.model_validate(given)
    except ValidationError as error:
        first = error.errors()[0]
        field, *inner = first["loc"]
        if field == "limits":
            known = first["type"] != "extra_forbidden"
            said = (
                f"{inner[0]}={first['input']}: {first['msg']}" if known else f"there is no limit {inner[0]!r}"
            )
            raise typer.BadParameter(said, param_hint="--limit") from None
        said = first["msg"].removeprefix("Value error, ").replace("Input should be", "it should be")
        raise typer.BadParameter(f"{first['input']!r}: {said}", param_hint=f"--{field}") from None


def limit_of(text: str) -> tuple[str, Any]:
    name, sign, value = (part.strip() for part in text.partition("="))
    if not (name and sign and value):
        raise ValueError(f"{text!r} is not a limit; write NAME=NUMBER, such as requests_per_minute=60")
    return name, None if value.lower() in ("none", "null") else value


def _words(values: list[str] | None) -> list[str] | None:
    words = [word.strip() for value in values or () for word in value.split(",") if word.strip()]
    return words or None


def register(app: typer.Typer) -> None:
    app.add_typer(commands, name="keys")
