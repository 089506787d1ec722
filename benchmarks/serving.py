"""Serving under load: throughput, inter-token latency, and which thread of which process spent the CPU's time.

    python benchmarks/serving.py --clients 32 --requests 96

The load client (`tokentrail bench serve`) shares the machine with the server, as in `compare_llama_cpp.py`. The
threads' CPU times cover the whole load, its warm-up request included.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from processes import family, free_port, server, thread_seconds, tokentrail


def main() -> None:
    parser = argparse.ArgumentParser(description="Throughput, latency and CPU time by thread, under load.")
    parser.add_argument("--model", type=Path, help="GGUF file; default: the demo model")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--clients", type=int, default=32)
    parser.add_argument("--requests", type=int, default=96)
    parser.add_argument("--context", type=int, default=128, help="prompt tokens")
    parser.add_argument("--generate", type=int, default=64, help="tokens of an answer")
    parser.add_argument("--output", type=Path, help="write what bench serve measured there, as JSON")
    arguments = parser.parse_args()
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    command = tokentrail("serve", "--threads", arguments.threads, "--port", port,
                         "--max-num-seqs", arguments.clients, "--no-log-requests")  # fmt: skip
    if arguments.model:
        command += ["--model", str(arguments.model)]
    with tempfile.TemporaryDirectory() as folder, server(command, url) as process:
        result = arguments.output or Path(folder) / "result.json"
        load = tokentrail("bench", "serve", "--url", url, "--num-prompts", arguments.requests,
                          "--concurrency", arguments.clients, "--random-input-len", arguments.context,
                          "--random-output-len", arguments.generate, "--ignore-eos", "--output", result)  # fmt: skip
        before = thread_seconds(family(process.pid))
        own = resource.getrusage(resource.RUSAGE_CHILDREN)
        start = time.perf_counter()
        finished = subprocess.run(load, capture_output=True, text=True, check=False)
        seconds = time.perf_counter() - start
        after = thread_seconds(family(process.pid))
        client = resource.getrusage(resource.RUSAGE_CHILDREN)
        if not result.exists():
            sys.exit(f"{' '.join(load)} failed: {finished.stderr}")
        report(json.loads(result.read_text()))
    spent = {name: used - before.get(name, 0.0) for name, used in after.items()}
    spent["load client"] = client.ru_utime + client.ru_stime - own.ru_utime - own.ru_stime
    print(
        f"CPU seconds of {seconds:.1f} s on {len(os.sched_getaffinity(0))} cores, the client's start included:"
    )
    for name, used in sorted(spent.items(), key=lambda item: -item[1]):
        if used >= 0.05:
            print(f"  {used:6.2f}  {name}")


def report(data: dict[str, Any]) -> None:
    gaps, first = data["itl"], data["ttft"]
    print(f"{data['output_throughput']:.0f} output tokens/s, {data['failed']} of {data['num_prompts']} failed, "
          f"{data['duration']:.2f} s")  # fmt: skip
    print(f"inter-token latency: median {gaps['p50'] * 1e3:.1f} ms, p99 {gaps['p99'] * 1e3:.1f} ms "
          f"({gaps['p99'] / gaps['p50']:.2f} × the median)")  # fmt: skip
    print(f"first token: median {first['p50'] * 1e3:.0f} ms, p99 {first['p99'] * 1e3:.0f} ms")


if __name__ == "__main__":
    main()
