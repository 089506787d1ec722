"""`tokentrail bench roofline`: what each op of a step achieves, beside what the machine could do at best.

The roofline model (Williams, Waterman & Patterson 2009, doi:10.1145/1498765.1498785): work that reads `b` bytes and
does `m` multiply–accumulates takes at least max(b / bandwidth, m / peak) seconds. Both rates are measured in this run.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tokentrail.cli.help import Command
from tokentrail.cli.options import EngineOptions, note, takes_options
from tokentrail.cli.units import read_flag

if TYPE_CHECKING:
    from tokentrail.cli.bench.steps import StepResult, StepShape, Work
    from tokentrail.engine import EngineConfig
    from tokentrail.ops.native import Machine
    from tokentrail.protocol import EngineInfo


IDLE = 0.05
"""Share of the cores that others may take before the result is called into question."""


@takes_options
def roofline(
    *,
    engine: EngineOptions,
    batch_sizes: Annotated[
        str,
        typer.Option("--batch-sizes", metavar="N,N", help="Decode steps of so many sequences."),
    ] = "1,8,32",
    context: Annotated[
        int, typer.Option("--context", min=1, help="Tokens in the cache before a decode step.")
    ] = 160,
    prefill: Annotated[
        int, typer.Option("--prefill", min=0, help="Tokens of a prefill step; 0: leave it out.")
    ] = 512,
    seconds: Annotated[
        float, typer.Option("--seconds", min=0.0, help="Time spent on each kind of step.")
    ] = 1.0,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="Write the result as JSON.")
    ] = None,
) -> None:
    """Measure what this machine can do, and how near the model's steps come to it."""
    from tokentrail.cli.bench.inprocess import engine_facts, engine_line
    from tokentrail.cli.bench.other_load import OtherLoad
    from tokentrail.cli.bench.report import print_report, progress_bar, write_json
    from tokentrail.cli.bench.steps import StepBench, StepShape
    from tokentrail.engine.model_runner import ModelRunner
    from tokentrail.engine.opening import open_model
    from tokentrail.ops.native import Machine, MachineProbe

    sizes = read_flag("--batch-sizes", batch_sizes, _sizes)
    shapes = [StepShape(f"decode, batch {n}, context {context}", n, 1, context) for n in sizes]
    if prefill:
        shapes.append(StepShape(f"prefill of {prefill}", 1, prefill, 0))
    config = _fitting(engine.engine_config(), shapes)
    runner = ModelRunner(config)
    _check_fits(shapes, runner.info)
    threads, isa = runner.info.threads, runner.info.isa
    probe, one = MachineProbe(threads, isa=isa), MachineProbe(1, isa=isa)
    checkpoint, _ = open_model(config)
    bench = StepBench(runner, checkpoint, config.kv_cache_dtype)
    measured: list[tuple[StepResult, float]] = []
    others = OtherLoad()
    with progress_bar() as bar:
        task = bar.add_task("machine", total=2 + len(shapes), detail="")
        scaling = {n: MachineProbe(n, isa=isa).bandwidth() for n in _thread_counts(threads)}
        core, macs = one.macs(), probe.macs()
        bar.advance(task)
        # Rates of a shared host change within seconds: each step is held against the memory as it was around it.
        before = probe.bandwidth()
        for shape in shapes:
            bar.update(task, description=shape.name)
            result = bench.measure(shape, seconds=seconds)
            after = probe.bandwidth()
            measured.append((result, max(before, after)))
            before = after
            bar.advance(task)
        macs = {name: max(macs[name], rate) for name, rate in probe.macs().items()}
    disturbed = others.share()
    if disturbed > IDLE:
        note(
            f"other processes took {disturbed:.0%} of the cores: these are not this machine's numbers; measure again "
            "when it is idle."
        )
    results = [(result, Machine(bandwidth, macs)) for result, bandwidth in measured]
    scaling[threads] = max(scaling[threads], *(machine.bandwidth for _, machine in results))
    reads = ", ".join(f"{rate / 1e9:.1f} GB/s ({n} {_plural(n, 'thread')})" for n, rate in scaling.items())
    print_report(
        "bench roofline",
        [
            ("engine", engine_line(runner.info)),
            ("memory reads", reads),
            *(
                (name, f"{core[name] / 1e9:.0f} GMAC/s a core, {rate / 1e9:.0f} with all threads")
                for name, rate in macs.items()
            ),
        ],
    )
    for result, machine in results:
        _print_step(result, machine)
    runner.close()
    if output is not None:
        facts = {
            "engine": engine_facts(runner.info),
            "bandwidth_by_threads": scaling,
            "macs_per_core": core,
            "macs": macs,
            "others_share": disturbed,
            "steps": [_step_json(result, machine) for result, machine in results],
        }
        write_json(output, facts)


def _fitting(config: EngineConfig, shapes: list[StepShape]) -> EngineConfig:
    """The engine's settings, enlarged where the steps need it."""
    import msgspec

    return msgspec.structs.replace(
        config,
        max_num_seqs=max(config.max_num_seqs, *(shape.sequences for shape in shapes)),
        max_num_batched_tokens=max(config.max_num_batched_tokens, *(s.tokens * s.sequences for s in shapes)),
    )


def _check_fits(shapes: list[StepShape], info: EngineInfo) -> None:
    from tokentrail.cli.bench.steps import blocks_needed
    from tokentrail.protocol import CapacityError, ContextLengthExceeded

    longest = max(shape.context + shape.tokens for shape in shapes)
    if longest > info.max_model_len:
        raise ContextLengthExceeded(
            f"A step at {longest} tokens does not fit the context of {info.max_model_len}; lower --context or "
            "--prefill, or raise --max-model-len."
        )
    blocks = blocks_needed(shapes, info.block_size)
    if blocks > info.num_blocks:
        raise CapacityError(
            f"These steps need {blocks * info.block_size} tokens of KV cache, there are "
            f"{info.num_blocks * info.block_size}; lower --batch-sizes or --context, or raise --kv-cache-memory."
        )


def _sizes(text: str) -> list[int]:
    try:
        sizes = [int(part) for part in text.split(",")]
    except ValueError:
        sizes = []
    if not sizes or min(sizes) < 1:
        raise ValueError(f"{text!r} is not a list of batch sizes; write numbers from 1 up, such as 1,8,32")
    return sizes


def _thread_counts(threads: int) -> list[int]:
    """1, 2, 4 … and `threads`."""
    counts = [1]
    while counts[-1] * 2 < threads:
        counts.append(counts[-1] * 2)
    return counts if threads == 1 else [*counts, threads]


def _plural(count: int, word: str) -> str:
    return word if count == 1 else f"{word}s"


def _print_step(result: StepResult, machine: Machine) -> None:
    from rich.table import Table

    from tokentrail.cli.terminal import console as stdout

    table = Table(
        "op", "calls", "ms", "share", "MiB", "GB/s", "MMAC", "GMAC/s", "bound by", "of the roof", box=None
    )
    for column in table.columns[1:]:
        column.justify = "right"
    timed = sum(work.seconds for work in result.ops.values())
    for name, work in sorted(result.ops.items(), key=lambda item: -item[1].seconds):
        table.add_row(name, *_cells(work, machine, timed))
    table.add_row("whole step", *_cells(result.whole, machine, result.seconds))
    tokens = result.shape.sequences * result.shape.tokens
    least, _ = result.whole.least(machine)
    console = stdout()
    console.print(f"\n[bold]{result.shape.name}[/bold]")
    console.print(table)
    console.print(
        f"  {tokens / result.seconds:.0f} tokens/s of {tokens / least:.0f} possible; "
        f"sampling {result.sampling * 1e3:.2f} ms of {result.seconds * 1e3:.2f}; "
        f"memory read at {machine.bandwidth / 1e9:.1f} GB/s around it",
        markup=False,
    )


def _cells(work: Work, machine: Machine, timed: float) -> list[str]:
    least, bound = work.least(machine)
    counted = least > 0
    return [
        str(work.calls or ""),
        f"{work.seconds * 1e3:.3f}",
        f"{work.seconds / timed:.1%}",
        f"{work.nbytes / 2**20:.1f}" if work.nbytes else "",
        f"{work.nbytes / work.seconds / 1e9:.1f}" if work.nbytes else "",
        f"{work.total_macs / 1e6:.0f}" if work.macs else "",
        f"{work.total_macs / work.seconds / 1e9:.0f}" if work.macs else "",
        bound if counted else "",
        f"{least / work.seconds:.0%}" if counted else "",
    ]


def _step_json(result: StepResult, machine: Machine) -> dict[str, Any]:
    def numbers(work: Work) -> dict[str, Any]:
        least, bound = work.least(machine)
        return {
            "calls": work.calls,
            "seconds": work.seconds,
            "bytes": work.nbytes,
            "macs": work.macs,
            "least_seconds": least,
            "bound_by": bound if least else None,
            "share_of_roof": least / work.seconds if least else None,
        }

    return {
        **dataclasses.asdict(result.shape),
        "bandwidth": machine.bandwidth,
        "sampling_seconds": result.sampling,
        "whole": numbers(result.whole),
        "ops": {name: numbers(work) for name, work in result.ops.items()},
    }


def register(group: typer.Typer) -> None:
    group.command(cls=Command)(roofline)
