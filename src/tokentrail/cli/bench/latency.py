"""`tokentrail bench latency`: how long one batch takes, from its prompts to its last token."""

from __future__ import annotations

import random
import time
from pathlib import Path
from typing import Annotated

import typer

from tokentrail.cli.help import Command
from tokentrail.cli.options import EngineOptions, takes_options
from tokentrail.cli.units import Lengths


@takes_options
def latency(
    *,
    engine: EngineOptions,
    batch_size: Annotated[int, typer.Option("--batch-size", min=1, help="Requests at once.")] = 1,
    input_len: Annotated[int, typer.Option("--input-len", min=1, help="Prompt tokens.")] = 128,
    output_len: Annotated[int, typer.Option("--output-len", min=1, help="Tokens generated.")] = 64,
    num_iters: Annotated[int, typer.Option("--num-iters", min=1, help="Batches measured, one by one.")] = 10,
    warmup: Annotated[
        int, typer.Option("--num-iters-warmup", min=0, help="Batches before, that don't count.")
    ] = 1,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="Write the result as JSON.")
    ] = None,
) -> None:
    """Measure the engine in this process: seconds for one batch."""
    from tokentrail.cli.bench.inprocess import engine_facts, engine_line, open_engine, random_requests
    from tokentrail.cli.bench.report import Summary, print_report, progress_bar, write_json

    local, config = open_engine(engine)
    rng = random.Random(config.seed)
    totals: list[float] = []
    firsts: list[float] = []
    gaps: list[float] = []
    with progress_bar() as bar:
        task = bar.add_task("batches", total=warmup + num_iters, detail="")
        for iteration in range(warmup + num_iters):
            requests = random_requests(
                local.info,
                batch_size,
                Lengths(input_len, input_len),
                Lengths(output_len, output_len),
                rng,
                name=f"batch{iteration}",
            )
            last: dict[str, float] = {}
            start = time.perf_counter()
            for step in local.generate(requests):
                now = time.perf_counter()
                if iteration >= warmup:
                    for delta in step.deltas:
                        if delta.id in last:
                            gaps.append(now - last[delta.id])
                        else:
                            firsts.append(now - start)
                        last[delta.id] = now
            if iteration >= warmup:
                totals.append(time.perf_counter() - start)
            bar.advance(task)
    summaries = [
        ("whole batch", "latency", Summary(totals)),
        ("time to first token (TTFT)", "ttft", Summary(firsts)),
        ("inter-token latency (ITL)", "itl", Summary(gaps)),
    ]
    print_report(
        "bench latency",
        [
            ("engine", engine_line(local.info)),
            ("batch", f"{batch_size} × {input_len} tokens in, {output_len} out, {num_iters} times"),
            ("decode", f"{batch_size * len(gaps) / sum(gaps):.1f} tokens/s" if gaps else "–"),
        ],
        [(title, summary) for title, _, summary in summaries],
    )
    result = {
        "engine": engine_facts(local.info),
        "batch_size": batch_size,
        "input_len": input_len,
        "output_len": output_len,
        "num_iters": num_iters,
        "seed": config.seed,
        **{name: summary for _, name, summary in summaries},
    }
    local.close()
    if output is not None:
        write_json(output, result)


def register(group: typer.Typer) -> None:
    group.command(cls=Command)(latency)
