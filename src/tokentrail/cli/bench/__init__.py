"""`tokentrail bench`: how fast is it, measured the way vLLM's `bench` does (throughput, latency, serve), and how fast
could it be (roofline)."""

from __future__ import annotations

import typer

from tokentrail.cli.bench import latency, roofline, serve, throughput
from tokentrail.cli.help import CONTEXT


def show_help(context: typer.Context) -> None:
    if context.invoked_subcommand is None:
        print(context.get_help())


def register(app: typer.Typer) -> None:
    group = typer.Typer(
        name="bench",
        help="Measure the speed of an engine or a server.",
        invoke_without_command=True,
        rich_markup_mode=None,
        context_settings=CONTEXT,
    )
    group.callback()(show_help)
    throughput.register(group)
    latency.register(group)
    roofline.register(group)
    serve.register(group)
    app.add_typer(group)
