"""Memory of a running server beside its packed weights and KV cache: summed PSS of all its processes.

    python benchmarks/memory.py

PSS (proportional set size) counts a page that several processes share once in all. Measured when the server is ready,
and again after a load that has filled its KV cache, so that what serving itself keeps is in it. Taken off are the
packed weights and, after the load, the cache, in the sizes that the engine tells.
Linux only.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

from processes import family, free_port, server, tokentrail

from tokentrail.cli.units import parse_size
from tokentrail.engine import EngineConfig, LocalEngine

MIB = 2**20


def pss(pid: int) -> dict[str, int]:
    """Bytes: `Pss` and its parts `Pss_Anon`, `Pss_File`, `Pss_Shmem`."""
    sizes = {}
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]:
        name, value = line.split(":")
        if name.startswith("Pss"):
            sizes[name] = int(value.split()[0]) * 1024
    return sizes


def report(title: str, pid: int) -> int:
    total = 0
    print(title)
    for process in family(pid):
        sizes = pss(process)
        total += sizes["Pss"]
        name = Path(f"/proc/{process}/comm").read_text().strip()
        print(f"  {name:16} {sizes['Pss'] / MIB:7.1f} MiB: {sizes['Pss_Anon'] / MIB:.1f} of its own, "
              f"{sizes['Pss_File'] / MIB:.1f} of files")  # fmt: skip
    return total


def main() -> None:
    parser = argparse.ArgumentParser(description="Summed PSS of a server's processes.")
    parser.add_argument("--model", type=Path, help="GGUF file; default: the demo model")
    parser.add_argument("--kv-cache-memory", default="192MiB", help="small, so that the load fills it")
    arguments = parser.parse_args()
    model = ["--model", str(arguments.model)] if arguments.model else []
    cache = ["--kv-cache-memory", arguments.kv_cache_memory]

    port = free_port()
    url = f"http://127.0.0.1:{port}"
    command = tokentrail("serve", "--port", port, "--no-log-requests", *model, *cache)
    with server(command, url) as process:
        ready = report("ready:", process.pid)
        load = tokentrail("bench", "serve", "--url", url, "--num-prompts", 64, "--concurrency", 16,
                          "--random-input-len", "128", "--random-output-len", 32, "--ignore-eos")  # fmt: skip
        if subprocess.run(load, capture_output=True, check=False).returncode:
            sys.exit(f"{' '.join(load)} failed")
        loaded = report("after a load:", process.pid)
    engine = LocalEngine(
        EngineConfig(
            model=str(arguments.model) if arguments.model else None,
            kv_cache_memory=parse_size(arguments.kv_cache_memory),
        )
    )
    weights = engine.info.weight_bytes
    kv = engine.info.num_blocks * engine.info.block_size * engine.info.kv_bytes_per_token
    engine.close()
    print(f"weights {weights / MIB:.1f} MiB, KV cache {kv / MIB:.1f} MiB")
    print(f"beside the weights, when ready: {(ready - weights) / MIB:.1f} MiB")
    print(f"beside weights and KV cache, after the load: {(loaded - weights - kv) / MIB:.1f} MiB")


if __name__ == "__main__":
    main()
