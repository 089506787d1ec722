"""What all benchmarks share: percentiles, tables, JSON files, random prompts."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tokentrail.protocol.errors import TokentrailError

if TYPE_CHECKING:
    from rich.progress import Progress

PERCENTILES = (50, 90, 99)
# Ids below are often special tokens or single bytes, in every vocabulary we know.
FIRST_RANDOM_ID = 300


class Summary(dict[str, float]):
    """Mean and percentiles of one quantity: `mean`, `p50`, `p90`, `p99`; empty if nothing was measured."""

    def __init__(self, values: Sequence[float]) -> None:
        super().__init__()
        if values:
            ordered = sorted(values)
            self["mean"] = math.fsum(ordered) / len(ordered)
            for percentile in PERCENTILES:
                self[f"p{percentile}"] = quantile(ordered, percentile / 100)


def quantile(ordered: Sequence[float], share: float) -> float:
    """Quantile of ascending values, linear between neighbours (as NumPy's default)."""
    place = share * (len(ordered) - 1)
    low = math.floor(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def progress_bar() -> Progress:
    """A progress bar on stderr, so that stdout holds the report alone."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    return Progress(
        TextColumn("[progress.description]{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[detail]}"),
        console=Console(stderr=True),
        transient=True,
        # Drawing costs CPU that the measured server needs.
        refresh_per_second=2,
    )


def print_report(
    title: str, facts: Sequence[tuple[str, str]], rows: Sequence[tuple[str, Summary]] = ()
) -> None:
    """Print facts, and one row of milliseconds for each summary (values in seconds)."""
    from rich.table import Table

    from tokentrail.cli.terminal import console as stdout

    console = stdout()
    console.print(f"[bold]{title}[/bold]")
    width = max(len(name) for name, _ in facts)
    for name, value in facts:
        console.print(f"  {name:<{width}}  {value}", markup=False, soft_wrap=True)
    if rows:
        table = Table(
            "ms", "mean", *(f"p{percentile}" for percentile in PERCENTILES), box=None, pad_edge=True
        )
        for column in table.columns[1:]:
            column.justify = "right"
        for name, summary in rows:
            keys = ("mean", *(f"p{percentile}" for percentile in PERCENTILES))
            table.add_row(name, *(f"{summary[key] * 1000:.2f}" if summary else "–" for key in keys))
        console.print(table)


def write_json(path: Path, result: dict[str, Any]) -> None:
    try:
        path.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    except OSError as error:
        raise TokentrailError(f"--output {path}: {error.strerror}.") from None


def random_token_ids(count: int, vocab_size: int, rng: random.Random) -> list[int]:
    """Ids of a prompt that no cache has seen."""
    return [rng.randrange(min(FIRST_RANDOM_ID, vocab_size - 1), vocab_size) for _ in range(count)]
