"""`tokentrail usage`: what a deployment's ledger says."""

from __future__ import annotations

import csv
import enum
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from tokentrail.gateway.ledger.reports import UsageLine, UsageQuestion


class By(str, enum.Enum):
    day = "day"
    tenant = "tenant"
    key = "key"
    route = "route"
    target = "target"
    model = "model"
    state = "state"


class Format(str, enum.Enum):
    table = "table"
    csv = "csv"
    json = "json"


def usage(
    config: Annotated[Path, typer.Option("--config", metavar="FILE", help="The deployment file.")],
    by: Annotated[
        list[By] | None,
        typer.Option("--by", help="What to sum by; several times for finer sums [default: day]."),
    ] = None,
    since: Annotated[
        str | None, typer.Option("--from", metavar="DAY", help="First day (UTC), such as 2026-12-01.")
    ] = None,
    until: Annotated[str | None, typer.Option("--to", metavar="DAY", help="Last day.")] = None,
    tenant: Annotated[str | None, typer.Option(metavar="NAME", help="Only this tenant's.")] = None,
    key: Annotated[str | None, typer.Option(metavar="ID", help="Only what was asked with this key.")] = None,
    model: Annotated[str | None, typer.Option(metavar="NAME", help="Only what this model was asked.")] = None,
    format: Annotated[Format, typer.Option(help="How to print it.")] = Format.table,
) -> None:
    """Say what was used: requests, tokens and money, by day, key, model …"""
    from tokentrail.gateway.config import load
    from tokentrail.gateway.database import look

    url = load(config).database
    database = look(url, config.parent)
    from tokentrail.gateway.ledger.reports import UsageQuestion, day_of
    from tokentrail.gateway.ledger.reports import usage as report

    question = UsageQuestion(
        by=[one.value for one in by or (By.day,)],
        since=None if since is None else day_of(since, "--from"),
        until=None if until is None else day_of(until, "--to"),
        tenant=tenant,
        key=key,
        model=model,
    )
    try:
        with database.read() as connection:
            lines = report(connection, question)
    finally:
        database.close()
    _print(question, lines, format)


def _print(question: UsageQuestion, lines: list[UsageLine], format: Format) -> None:
    counts = ("requests", "refused", "prompt_tokens", "cached_tokens", "output_tokens", "reasoning_tokens")
    columns = [*dict.fromkeys(question.by), *counts, "cost", "currency"]
    rows: list[list[Any]] = [[getattr(line, name) for name in columns] for line in lines]
    if format is Format.json:
        print(
            json.dumps([dict(zip(columns, row, strict=True)) for row in rows], indent=2, ensure_ascii=False)
        )
    elif format is Format.csv:
        writer = csv.writer(sys.stdout, lineterminator="\n")
        writer.writerow(columns)
        writer.writerows(rows)
    elif not rows:
        print("Nothing was used.")
    else:
        _table(columns, rows)


def _table(columns: list[str], rows: list[list[Any]]) -> None:
    """As wide as it is: what reads it may be no terminal."""
    from rich.cells import cell_len, set_cell_size

    first = columns.index("requests")
    names = [name.removesuffix("_tokens") for name in columns]
    texts = [[f"{value:,}" if isinstance(value, int) else value or "–" for value in row] for row in rows]
    widths = [max(map(cell_len, column)) for column in zip(names, *texts, strict=True)]
    for line in (names, *texts):
        cells = (
            set_cell_size(text, width) if at < first or at == len(columns) - 1 else text.rjust(width)
            for at, (text, width) in enumerate(zip(line, widths, strict=True))
        )
        print("  ".join(cells).rstrip())


def register(app: typer.Typer) -> None:
    app.command()(usage)
