"""`tokentrail config`: deployment files, checked and described."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tokentrail.cli.help import CONTEXT
from tokentrail.protocol import TokentrailError

if TYPE_CHECKING:
    from tokentrail.gateway.config import WeightedTarget

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
    from tokentrail.cli.models import served_models
    from tokentrail.gateway import Gateway
    from tokentrail.gateway.config import RemoteModel

    gateway = Gateway(file)
    settings = gateway.settings
    served = {model.names[0]: model for model in served_models(settings, file.parent)}
    print(f"{file} is fine.")
    for model in settings.models:
        hidden = ", hidden" if model.hidden else ""
        if isinstance(model, RemoteModel):
            print(f"  model {model.name}: {model.model or model.name} at {model.url}{hidden}")
        else:
            cores = served[model.name].cores
            many = (
                f", {len(cores)} replicas on cores {' | '.join(_ranges(one) for one in cores)}"
                if cores
                else ""
            )
            print(f"  model {model.name}: {model.model}{many}{hidden}")
    for route in settings.routes:
        print(f"  route {route.name}: {_shares(route.targets)}")
        for scenario in route.scenarios:
            print(f"    {route.name}:{scenario.name}: {_shares(scenario.targets)}")
        if route.fallback:
            print(f"    otherwise {', then '.join(route.fallback)}")
    for rule in gateway.rules:
        sides = " and ".join(side for side, on in (("prompts", rule.inputs), ("answers", rule.outputs)) if on)
        print(f"  filter {rule.name}: {rule.action.value} in {sides}")
    if (keys := settings.keys) is not None:
        where = ["in the database"] * keys.stored + [f"{len(keys.listed)} in the file"] * bool(keys.listed)
        api = {None: "on a loopback address only", True: "on", False: "off"}[keys.admin_api]
        print(f"  keys: {' and '.join(where)}; admin API: {api if keys.stored else 'off'}")
    for tenant in settings.tenants:
        print(f"  tenant {tenant.name}: weight {tenant.weight:g}{', disabled' * tenant.disabled}")
    if gateway.settings.database is not None:
        from tokentrail.gateway.database import connect

        database = connect(gateway.settings.database, file.parent)
        print(f"  database: {database.name}")
        database.close()
    if (ledger := gateway.settings.ledger) is not None:
        time = "for good" if ledger.keep_days is None else f"for {ledger.keep_days} days"
        print(f"  ledger: rows are kept {time}; while the database fails: {ledger.on_failure}")
    if (prices := gateway.settings.prices) is not None:
        print(f"  prices: of {len(prices.models)} models, in {prices.currency}")
    for one in gateway.settings.filters:
        if (asked := one.hook or one.moderation) is not None:
            kind = "hook" if one.hook is not None else "moderation"
            sides = " and ".join({"input": "prompts", "output": "answers"}[side] for side in one.applies_to)
            action = one.action or "as it says"
            print(f"  {kind} {one.name}: {action} in {sides}; without a verdict: {asked.on_failure}")
    if (cache := gateway.settings.cache) is not None:
        place = "in Redis" if cache.store == "redis" else f"{cache.memory_mib} MiB"
        outage = f", and {cache.outage_s:g} s for outages" if cache.outage_s else ""
        print(f"  cache: answers, {place}, each for {cache.lifetime_s:g} s{outage}")
    if (limits := gateway.settings.limits) is not None:
        counted = "Redis" if limits.store == "redis" else "memory"
        print(f"  limits: counted in {counted}, days of {limits.time_zone}")
        for whose, each in (("key", limits.each_key), ("tenant", limits.each_tenant)):
            given = {name: limit for name, limit in each.model_dump().items() if limit is not None}
            for name, limit in given.items():
                print(f"    each {whose}: {limit:,} {name.replace('_', ' ')}")


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


def _ranges(cores: Sequence[int]) -> str:
    return ",".join(map(str, cores))


def _shares(targets: Sequence[WeightedTarget]) -> str:
    total = sum(one.weight for one in targets)
    return ", ".join(f"{one.model} {one.weight / total:.0%}" for one in targets)


@commands.command()
def reload(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The file that the server was started with.")],
) -> None:
    """Have the servers that were started with this file apply it as it is now. Mistakes are told, and then nothing is
    sent.
    """
    from tokentrail.gateway import Gateway
    from tokentrail.gateway.running import servers_of

    Gateway(file)
    found = servers_of(file)
    if not found:
        raise TokentrailError(
            f"No server of yours runs with {file} on this machine. Elsewhere: send its process SIGHUP."
        )
    for pid in found:
        os.kill(pid, signal.SIGHUP)
        print(f"Server {pid} was told to apply {file}; its log says what became of that.")


@commands.command()
def schema() -> None:
    """Print the JSON schema of deployment files: editors complete and check them by it."""
    from tokentrail.gateway.config import schema as schema_of

    print(json.dumps(schema_of(), indent=2, ensure_ascii=False))


def register(app: typer.Typer) -> None:
    app.add_typer(commands, name="config")
