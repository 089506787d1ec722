"""`tokentrail tenants`: tenants in a deployment's database. Running servers notice within a second."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import typer

from tokentrail.cli.help import CONTEXT
from tokentrail.cli.keys import Config, Json, checked, limit_of, opened, print_struct
from tokentrail.cli.options import note
from tokentrail.cli.terminal import console
from tokentrail.cli.units import read_flag
from tokentrail.protocol.errors import TokentrailError

if TYPE_CHECKING:
    from tokentrail.cli.keys import Opened
    from tokentrail.gateway.keys import TenantRecord

commands = typer.Typer(
    help="Make, list, change and delete the tenants of a deployment.",
    rich_markup_mode=None,
    context_settings=CONTEXT,
)

Name: TypeAlias = Annotated[str, typer.Argument(metavar="NAME", help="The tenant's name.")]
Weight: TypeAlias = Annotated[
    float | None,
    typer.Option("--weight", help="Its share of an engine beside others', when all want more. Default: 1."),
]
Limits: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        "--limit",
        metavar="NAME=NUMBER",
        help="Of all its keys together, such as tokens_per_day=1000000; none: no limit; default: what the file says. "
        "May be repeated.",
    ),
]


@commands.command()
def create(
    name: Name, config: Config, weight: Weight = None, limit: Limits = None, json: Json = False
) -> None:
    """Make a tenant."""
    given = _given(name, weight, limit)
    with opened(config) as known:
        _not_in_file(known, name)
        with known.database.write() as connection:
            record = known.store.add_tenant(
                connection, name, weight=given["weight"], limits=_over({}, given["limits"])
            )
    _told(record, json, f"{name} is made.")


@commands.command("list")
def list_tenants(config: Config, json: Json = False) -> None:
    """The tenants in the database and in the deployment file, the newest first."""
    from tokentrail.gateway.keys.views import view_tenant

    with opened(config) as known:
        in_file = known.file_tenants
        with known.database.read() as connection:
            records = known.store.tenants(connection, without=[one.name for one in in_file])
    records += in_file
    if json:
        print_struct({"object": "list", "data": [view_tenant(record) for record in records]})
    elif not records:
        note("there are no tenants")
    else:
        _print_table(records)


@commands.command()
def show(name: Name, config: Config, json: Json = False) -> None:
    """All that is known of a tenant."""
    with opened(config) as known:
        record = next((one for one in known.file_tenants if one.name == name), None)
        if record is None:
            with known.database.read() as connection:
                record = known.store.tenant(connection, name)
    if json:
        _told(record, json, "")
    else:
        _print_table([record])


@commands.command("set")
def set_tenant(
    name: Name,
    config: Config,
    weight: Weight = None,
    limit: Limits = None,
    disabled: Annotated[
        bool | None,
        typer.Option("--disable/--enable", help="Whether its keys are refused.", show_default=False),
    ] = None,
    json: Json = False,
) -> None:
    """Change what is given, and nothing else: limits that are not named stay."""
    if weight is None and not limit and disabled is None:
        raise typer.BadParameter(
            "nothing is to be changed; give --limit, --weight, --disable or --enable", param_hint="set"
        )
    given = _given(name, weight, limit)
    with opened(config) as known:
        _not_in_file(known, name)
        with known.database.write() as connection:
            before = known.store.tenant(connection, name)
            values: dict[str, Any] = {"limits": _over(before.limits, given["limits"])} if limit else {}
            values |= {} if weight is None else {"weight": given["weight"]}
            values |= {} if disabled is None else {"disabled": disabled}
            record = known.store.change_tenant(connection, name, values)
    _told(record, json, f"{name} is changed.")


@commands.command()
def delete(name: Name, config: Config, json: Json = False) -> None:
    """Remove a tenant that never had a key; others can be disabled."""
    with opened(config) as known:
        _not_in_file(known, name)
        with known.database.write() as connection:
            known.store.remove_tenant(connection, name)
    if json:
        print_struct({"object": "tenant", "id": name, "deleted": True})
    else:
        print(f"{name} is deleted.")


def _given(name: str, weight: float | None, limits: list[str] | None) -> dict[str, Any]:
    """Checked as the deployment file's are; limits that go back to the default are None under `_DEFAULT`."""
    from tokentrail.gateway.config.keys import TenantSettings

    words = dict(read_flag("--limit", one, limit_of) for one in limits or ())
    own = {name: value for name, value in words.items() if value != _DEFAULT}
    asked = {"name": name, "weight": 1.0 if weight is None else weight}
    checked(
        TenantSettings, {**asked, "limits": {name: words[name] if name in own else None for name in words}}
    )
    valid = checked(TenantSettings, {**asked, "limits": own})
    found: dict[str, Any] = {} if valid.limits is None else valid.limits.model_dump(exclude_unset=True)
    return {"weight": valid.weight, "limits": {name: found.get(name, _DEFAULT) for name in words}}


_DEFAULT = "default"


def _over(before: dict[str, Any], given: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in {**before, **given}.items() if value != _DEFAULT}


def _not_in_file(known: Opened, name: str) -> None:
    if any(one.name == name for one in known.file_tenants):
        raise TokentrailError(f"The tenant {name} stands in {known.config}: change it there.")


def _told(record: TenantRecord, json: bool, said: str) -> None:
    from tokentrail.gateway.keys.views import view_tenant

    if json:
        print_struct(view_tenant(record))
    else:
        print(said)


def _print_table(records: list[TenantRecord]) -> None:
    from rich.table import Table
    from rich.text import Text

    table = Table("name", "status", "weight", "limits", box=None, padding=(0, 2, 0, 0))
    for record in records:
        status = ("disabled" if record.disabled else "active") + (" (in the file)" if record.in_file else "")
        limits = ", ".join(
            f"{name}={'none' if value is None else value}" for name, value in record.limits.items()
        )
        table.add_row(
            *(Text(word) for word in (record.name, status, f"{record.weight:g}", limits or "default"))
        )
    console().print(table)


def register(app: typer.Typer) -> None:
    app.add_typer(commands, name="tenants")
