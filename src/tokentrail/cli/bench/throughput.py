"""`tokentrail bench throughput`: how many tokens a second the engine makes when it has plenty to do."""

from __future__ import annotations

import random
import time
from pathlib import Path
from typing import Annotated

import typer

from tokentrail.cli.help import Command
from tokentrail.cli.options import EngineOptions, takes_options
from tokentrail.cli.units import parse_lengths, read_flag


@takes_options
def throughput(
    *,
    engine: EngineOptions,
    num_prompts: Annotated[
        int, typer.Option("--num-prompts", min=1, help="Requests, all there at once.")
    ] = 64,
    input_len: Annotated[
        str, typer.Option("--random-input-len", "--input-len", metavar="N|LOW-HIGH", help="Prompt tokens.")
    ] = "128",
    output_len: Annotated[
        str,
        typer.Option("--random-output-len", "--output-len", metavar="N|LOW-HIGH", help="Tokens generated."),
    ] = "64",
    warmup: Annotated[int, typer.Option("--warmup", min=0, help="Requests before, that don't count.")] = 1,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="Write the result as JSON.")
    ] = None,
) -> None:
    """Measure the engine in this process: tokens per second of many requests."""
    from tokentrail.cli.bench.inprocess import engine_facts, engine_line, open_engine, random_requests
    from tokentrail.cli.bench.report import print_report, progress_bar, write_json

    inputs = read_flag("--random-input-len", input_len, parse_lengths)
    outputs = read_flag("--random-output-len", output_len, parse_lengths)
    local, config = open_engine(engine)
    rng = random.Random(config.seed)
    for _ in local.generate(random_requests(local.info, warmup, inputs, outputs, rng, name="warmup")):
        pass
    requests = random_requests(local.info, num_prompts, inputs, outputs, rng)
    before = local.stats
    steps = 0
    forward = 0.0
    with progress_bar() as bar:
        task = bar.add_task("requests", total=num_prompts, detail="")
        start = time.perf_counter()
        for step in local.generate(requests):
            steps += 1
            forward += step.record.forwarded - step.record.scheduled
            finished = sum(delta.finish is not None for delta in step.deltas)
            if finished:
                bar.advance(task, finished)
        seconds = time.perf_counter() - start
    stats = local.stats
    input_tokens = sum(len(request.prompt) for request in requests)
    output_tokens = stats.generated_tokens - before.generated_tokens
    result = {
        "engine": engine_facts(local.info),
        "num_prompts": num_prompts,
        "random_input_len": input_len,
        "random_output_len": output_len,
        "seed": config.seed,
        "duration": seconds,
        "input_tokens": input_tokens,
        "output_tokens": output_tokens,
        "request_throughput": num_prompts / seconds,
        "output_throughput": output_tokens / seconds,
        "total_token_throughput": (input_tokens + output_tokens) / seconds,
        "steps": steps,
        "forward_share": forward / seconds,
        "preemptions": stats.preemptions - before.preemptions,
    }
    print_report(
        "bench throughput",
        [
            ("engine", engine_line(local.info)),
            (
                "requests",
                f"{num_prompts} in {seconds:.2f} s, {steps} steps, {result['preemptions']} preemptions",
            ),
            ("tokens", f"{input_tokens} in, {output_tokens} out"),
            (
                "throughput",
                f"{num_prompts / seconds:.2f} requests/s, {output_tokens / seconds:.1f} output tokens/s, "
                f"{(input_tokens + output_tokens) / seconds:.1f} tokens/s in all",
            ),
            ("forward", f"{forward / seconds:.1%} of the time was spent in the forward pass"),
        ],
    )
    local.close()
    if output is not None:
        write_json(output, result)


def register(group: typer.Typer) -> None:
    group.command(cls=Command)(throughput)
