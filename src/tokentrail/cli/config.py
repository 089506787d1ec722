"""`tokentrail config`: deployment files, checked and described."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from tokentrail.cli.help import CONTEXT

commands = typer.Typer(
    help="Check a deployment file, print the schema of one, or prepare its database.",
    rich_markup_mode=None,
    context_settings=CONTEXT,
)


@commands.command()
def check(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A deployment file, such as deploy.yaml.")],
) -> None:
    """Say what a deployment file turns on, or each of its mistakes with its line."""
    from tokentrail.gateway import Gateway

    gateway = Gateway(file)
    print(f"{file} is fine.")
    for rule in gateway.rules:
        sides = " and ".join(side for side, on in (("prompts", rule.inputs), ("answers", rule.outputs)) if on)
        print(f"  filter {rule.name}: {rule.action.value} in {sides}")
    if gateway.settings.database is not None:
        from tokentrail.gateway.database import connect

        database = connect(gateway.settings.database, file.parent)
        print(f"  database: {database.name}")
        database.close()
    if (ledger := gateway.settings.ledger) is not None:
        kept = "for good" if ledger.keep_days is None else f"for {ledger.keep_days} days"
        print(f"  ledger: rows are kept {kept}; while the database fails: {ledger.on_failure}")
    if (prices := gateway.settings.prices) is not None:
        print(f"  prices: of {len(prices.models)} models, in {prices.currency}")
    if (cache := gateway.settings.cache) is not None:
        where = "in Redis" if cache.store == "redis" else f"{cache.memory_mib} MiB"
        outage = f", and {cache.outage_s:g} s for outages" if cache.outage_s else ""
        print(f"  cache: answers, {where}, each for {cache.lifetime_s:g} s{outage}")


@commands.command()
def migrate(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A deployment file, such as deploy.yaml.")],
) -> None:
    """Bring the deployment's database to this version's form, as a server does when it starts."""
    from tokentrail.gateway.config import load
    from tokentrail.gateway.database import connect

    database = connect(load(file).database, file.parent)
    try:
        before, now = database.migrate()
    finally:
        database.close()
    print(
        f"{database.name}: " + (f"is of revision {now}" if before == now else f"{before or 'empty'} → {now}")
    )


@commands.command()
def schema() -> None:
    """Print the JSON schema of deployment files: editors complete and check them by it."""
    from tokentrail.gateway.config import schema as schema_of

    print(json.dumps(schema_of(), indent=2, ensure_ascii=False))


def register(app: typer.Typer) -> None:
    app.add_typer(commands, name="config")
