"""Runs checkpoints in several ways and looks at every token's logits."""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from random_models import F32
from tokentrail.checkpoints import Checkpoint
from tokentrail.models import load_model
from tokentrail.ops.backend import Backend, Executable, KvLayout, Limits

BLOCK = 16


class Model:
    """A checkpoint, packed and compiled with caches in float32."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        backend: Backend,
        *,
        activations: str = "float32",
        context: int | None = None,
        kv_dtype: str = "float32",
        blocks: int = 64,
    ) -> None:
        config = checkpoint.config
        model = load_model(checkpoint, backend, activation_dtype=activations, context=context)
        kv = KvLayout(kv_dtype, config.num_layers, blocks, BLOCK, config.num_kv_heads, config.head_dim)
        self.executable: Executable = backend.compile(
            model.program, kv, Limits(256, 8, 256), config.vocab_size
        )
        self.blocks = blocks

    def step(self, runs: list[tuple[list[int], int, int]]) -> list[F32]:
        """Runs of (tokens, first position, sequence) computed together → logits of each. A sequence has its blocks."""
        width = self.blocks // 8
        tables = [np.arange(width, dtype=np.int32)[::-1] * 8 + sequence for _, _, sequence in runs]
        counts = [len(tokens) for tokens, _, _ in runs]
        logits = self.executable.forward(
            np.array([token for tokens, _, _ in runs for token in tokens], np.int32),
            np.concatenate([np.arange(at, at + len(tokens), dtype=np.int32) for tokens, at, _ in runs]),
            np.concatenate([[0], np.cumsum(counts)]).astype(np.int32),
            np.stack(tables).astype(np.int32),
            np.arange(sum(counts), dtype=np.int32),
        )
        return [part.copy() for part in np.split(logits, np.cumsum(counts)[:-1])]

    def at_once(self, tokens: list[int]) -> F32:
        return self.step([(tokens, 0, 0)])[0]

    def in_chunks(self, tokens: list[int]) -> F32:
        """A third, most of the rest, and then token by token."""
        cuts = [0, len(tokens) // 3, *range(len(tokens) - 4, len(tokens) + 1)]
        return np.concatenate([self.step([(tokens[a:b], a, 1)])[0] for a, b in pairwise(cuts)])

    def in_company(self, tokens: list[int]) -> F32:
        """Prompt and decode steps beside two other sequences: one before in the batch, one behind."""
        others = (tokens[::-1], tokens[7:] + tokens[:7])
        out = []
        for a, b in pairwise([0, len(tokens) // 2, len(tokens) - 1, len(tokens)]):
            runs = [(others[0][a:b], a, 2), (tokens[a:b], a, 3), (others[1][a:b], a, 4)]
            out.append(self.step(runs)[1])
        return np.concatenate(out)


def assert_relative(got: F32, expected: F32, limit: float = 1e-4) -> None:
    error = float(np.abs(got - expected).max() / np.abs(expected).max())
    assert error < limit, f"relative error {error:.2g}"
