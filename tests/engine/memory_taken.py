"""Loads a model, writes all of its KV cache, and prints what was estimated and what the process took (bytes).

A program of its own, so that nothing else's memory is counted: `memory_taken.py MODEL [int8|int4]`.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

from tokentrail.engine.batch import Batch, SamplingRows
from tokentrail.engine.config import EngineConfig
from tokentrail.engine.estimate import estimate_memory
from tokentrail.engine.model_runner import ModelRunner, open_backend
from tokentrail.engine.opening import open_model


def pss() -> int:
    for line in Path("/proc/self/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError("no Pss line")


def batch(sequences: int, tokens: int, blocks: int, position: int) -> Batch:
    """`tokens` new tokens of each sequence behind `position`, every row's logits wanted as far as there is room."""
    rows = sequences * tokens
    wanted = np.arange(rows - min(rows, 64), rows, dtype=np.int32)
    count = len(wanted)
    return Batch(
        tokens=np.arange(rows, dtype=np.int32) + 300,
        positions=np.tile(np.arange(position, position + tokens, dtype=np.int32), sequences),
        row_starts=np.arange(0, rows + 1, tokens, dtype=np.int32),
        block_tables=np.arange(sequences * blocks, dtype=np.int32).reshape(sequences, blocks),
        logit_rows=wanted,
        sampling=SamplingRows.greedy(
            count,
            temperature=np.ones(count, np.float32),
            top_p=np.full(count, 0.9, np.float32),
            seed=np.arange(count, dtype=np.uint64),
            position=np.full(count, position + tokens, np.int32),
        ),
    )


def main() -> None:
    config = EngineConfig(
        model=sys.argv[1],
        quantization=sys.argv[2] if len(sys.argv) > 2 else None,
        kv_cache_memory=48 << 20,
        max_model_len=2048,
        threads=2,
    )
    checkpoint, _ = open_model(config)
    estimate = estimate_memory(checkpoint, open_backend(config), config)
    before = pss()
    runner = ModelRunner(config)
    info = runner.info
    for position in range(0, info.num_blocks * info.block_size, 512):
        runner.execute(
            batch(1, min(512, info.num_blocks * info.block_size - position), info.num_blocks, position)
        )
    taken = pss() - before
    print(estimate.fixed + info.num_blocks * estimate.block_bytes, taken)


if __name__ == "__main__":
    main()
