"""From a row of logits to the draw, with the sampler's definition; in a thread, as it sorts a vocabulary."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from tokentrail.answer import TokenText
from tokentrail.ops.reference.sampling import adjusted_logits, candidates, philox_uniform
from tokentrail.protocol import SamplingParams
from tokentrail.server.learning.schema import Candidate, Drawn, Kept, Stages

F64 = npt.NDArray[np.float64]


def explain(
    logits: bytes,
    sampling: SamplingParams,
    *,
    seed: int,
    prompt: Sequence[int],
    output: Sequence[int],
    drawn: int,
    ends: bool,
    top: int,
    texts: Callable[[Sequence[int]], Sequence[TokenText]],
) -> tuple[list[Candidate], Kept, Drawn]:
    """`logits`: little-endian float32; `drawn`: what the engine drew from them behind `prompt` and `output`."""
    raw: F64 = np.frombuffer(logits, "<f4").astype(np.float64)
    adjusted = adjusted_logits(raw, 0, _rows(sampling, prompt, output))
    stages = {"logits": _softmax(raw), "penalties": _softmax(adjusted)}
    greedy = sampling.temperature == 0
    if greedy:
        one = np.zeros_like(raw)
        one[int(np.argmax(adjusted))] = 1.0
        stages |= dict.fromkeys(("temperature", "min_p", "top_k", "top_p"), one)
    else:
        stages["temperature"] = _softmax(adjusted / sampling.temperature)
        limits = {
            "min_p": (sampling.min_p, 0, 1.0),
            "top_k": (sampling.min_p, max(sampling.top_k, 0), 1.0),
            "top_p": (sampling.min_p, max(sampling.top_k, 0), sampling.top_p),
        }
        for name, limit in limits.items():
            ids, weights = candidates(adjusted, sampling.temperature, *limit)
            stages[name] = np.zeros_like(raw)
            stages[name][ids] = weights / weights.sum()
    final = stages["top_p"]
    shown = {drawn, *_best(raw, top), *_best(adjusted, top)}
    order = sorted(shown, key=lambda id: (-final[id], -adjusted[id], id))
    words = texts(order)
    told = [
        Candidate(
            id=id,
            text=word.text,
            special=word.special,
            logit=float(raw[id]),
            adjusted=float(adjusted[id]),
            probabilities=Stages(**{name: float(values[id]) for name, values in stages.items()}),
        )
        for id, word in zip(order, words, strict=True)
    ]
    counts = {name: int(np.count_nonzero(stages[name])) for name in ("min_p", "top_k", "top_p")}
    number = interval = None
    if not greedy:
        number = philox_uniform(seed, 0, len(prompt) + len(output))
        before = float(final[:drawn].sum())
        interval = (before, before + float(final[drawn]))
    text = words[order.index(drawn)].text
    return (
        told,
        Kept(vocabulary=len(raw), **counts),
        Drawn(
            id=drawn,
            text=text,
            logprob=float(np.log(stages["logits"][drawn])),
            number=number,
            interval=interval,
            ends=ends,
        ),
    )


def _rows(sampling: SamplingParams, prompt: Sequence[int], output: Sequence[int]) -> dict[str, Any]:
    """One row, as the sampler takes it. Only a repetition penalty looks at the prompt."""
    seen = prompt if sampling.repetition_penalty != 1.0 else ()
    return {
        "repetition_penalty": np.array([sampling.repetition_penalty], np.float32),
        "frequency_penalty": np.array([sampling.frequency_penalty], np.float32),
        "presence_penalty": np.array([sampling.presence_penalty], np.float32),
        "prompt_tokens": np.array(seen, np.int32),
        "prompt_offsets": np.array([0, len(seen)], np.int32),
        "output_tokens": np.array(output, np.int32),
        "output_offsets": np.array([0, len(output)], np.int32),
    }


def _softmax(x: F64) -> F64:
    weights: F64 = np.exp(x - x.max())
    weights /= weights.sum()
    return weights


def _best(x: F64, count: int) -> list[int]:
    """Ids of the highest values, ties by id."""
    chosen: list[int] = np.lexsort((np.arange(len(x)), -x))[:count].tolist()
    return chosen
