"""`benchmarks/perplexity.py` in small: our perplexity of the ten texts beside llama.cpp's, with each kind of KV cache.

llama.cpp's golden value comes from `scripts/make_golden.py`. The texts have 1,478 tokens; the benchmark takes 20,000.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from texts import TEXTS

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))
from perplexity import encode, runner

from tokentrail.checkpoints import Checkpoint
from tokentrail.engine.perplexity import measure, windows
from tokentrail.ops.backend import KV_DTYPES

GOLDEN = Path(__file__).resolve().parents[1] / "golden" / "perplexity.json"
BOUND = 0.01
"""llama.cpp rounds activations more coarsely than we do, which moves its perplexity of so short a text by half a
percent either way. The promise is for 20,000 tokens: within 0.5 % with bfloat16, 1 % with int8."""


@pytest.mark.parametrize("kv_dtype", KV_DTYPES)
def test_beside_llama_cpp(kv_dtype: str, demo_checkpoint: Checkpoint) -> None:
    golden = json.loads(GOLDEN.read_text())
    context = golden["context"]
    ids = encode(demo_checkpoint, "\n\n".join(TEXTS.values()))
    result = measure(runner(demo_checkpoint.path, kv_dtype, context), windows(ids, context))
    print(f"{kv_dtype}: {result.value:.4f}, llama.cpp {golden['perplexity']:.4f}")
    assert result.tokens == golden["tokens"]
    assert abs(result.value / golden["perplexity"] - 1) < BOUND
