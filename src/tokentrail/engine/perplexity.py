"""Perplexity of a text: how many tokens, on average, a model finds as likely as the one that comes.

The text is cut into windows, and in each only the later tokens count, so that none is predicted from few words before
it. Two ways to cut, both those of llama.cpp's `llama-perplexity`, so that the numbers compare: windows side by side,
of which the second half counts; or windows that overlap, a stride apart, of which the last stride counts.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tokentrail.engine.batch import Batch, Runner, SamplingRows
from tokentrail.protocol import InvalidRequest

F64 = npt.NDArray[np.float64]
I32 = npt.NDArray[np.int32]


@dataclass(frozen=True)
class Perplexity:
    """exp of the mean negative log-probability (`nll`, in nats) of `tokens` tokens; `error`: its standard error."""

    value: float
    error: float
    tokens: int
    nll: float


@dataclass(frozen=True)
class Window:
    """Tokens that are computed together, and the first of those that count."""

    ids: list[int]
    first: int


def windows(
    ids: Sequence[int], context: int, stride: int | None = None, *, bos: int | None = None
) -> list[Window]:
    """Whole windows of `context` tokens; a model that begins with a token of its own has it first in each.

    Without a stride they stand side by side, and tokens from `context / 2` + 1 on count. With one they begin a stride
    apart, and the last `stride` tokens count.

    Raises `InvalidRequest` when the text has not enough tokens for one, or the numbers make no sense.
    """
    if context < 4:
        raise InvalidRequest(f"--ctx-size must be at least 4, not {context}.", param="ctx_size")
    if stride is not None and not 1 <= stride < context:
        raise InvalidRequest(
            f"--stride must be from 1 to {context - 1} (below --ctx-size), not {stride}.", param="stride"
        )
    if len(ids) < context:
        raise InvalidRequest(
            f"The text has {len(ids)} tokens, a window {context}; take a longer text or a smaller --ctx-size.",
            param="ctx_size",
        )
    first = context // 2 + 1 if stride is None else context - stride
    starts = range(0, len(ids) - context + 1, context if stride is None else stride)
    cut = []
    for start in starts:
        window = list(ids[start : start + context])
        cut.append(Window(window if bos is None else [bos, *window[1:]], first))
    return cut


def perplexity(losses: F64) -> Perplexity:
    """Of the negative log-probabilities of single tokens, in nats."""
    nll = float(losses.mean())
    value = math.exp(nll) if nll < 700 else math.inf
    spread = float(losses.std(ddof=1)) / math.sqrt(len(losses)) if len(losses) > 1 else math.nan
    return Perplexity(value, value * spread, len(losses), nll)


def measure(
    runner: Runner, cut: Sequence[Window], progress: Callable[[Perplexity], None] | None = None
) -> Perplexity:
    """Of all tokens that count. `progress` is told of those so far after each window."""
    losses: list[F64] = []
    for window in cut:
        losses.append(-np.concatenate(list(logprobs(runner, window))))
        if progress is not None:
            progress(perplexity(np.concatenate(losses)))
    return perplexity(np.concatenate(losses))


def logprobs(runner: Runner, window: Window) -> Iterator[F64]:
    """Natural log-probabilities of the window's tokens from `first` on, step by step.

    The window takes the cache's first blocks, which nobody else may use. Raises `InvalidRequest` when it is longer
    than the runner's context or cache.
    """
    info = runner.info
    room = min(info.max_model_len, info.num_blocks * info.block_size)
    count = len(window.ids)
    if count > room:
        raise InvalidRequest(
            f"A window of {count} tokens does not fit the context of {room}; lower --ctx-size.",
            param="ctx_size",
        )
    ids = np.array(window.ids, np.int32)
    table = np.arange(-(-count // info.block_size), dtype=np.int32)[None]
    start = 0
    while start < count - 1:  # nothing is predicted from the last token
        # Rows of logits are scarcer than rows of tokens.
        end = min(start + info.max_num_batched_tokens, count - 1)
        end = min(end, max(start, window.first - 1) + runner.max_logit_rows)
        rows = np.arange(max(start, window.first - 1), end, dtype=np.int32)
        sampled = runner.execute(
            Batch(
                tokens=ids[start:end],
                positions=np.arange(start, end, dtype=np.int32),
                row_starts=np.array([0, end - start], np.int32),
                block_tables=table,
                logit_rows=rows - start,
                sampling=SamplingRows.greedy(len(rows), target=ids[rows + 1]),
            )
        )
        if len(rows):
            yield sampled.logprobs.astype(np.float64)
        start = end
