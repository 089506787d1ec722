"""How much prompt a step may compute while answers stream: learnt from the steps' own times."""

from __future__ import annotations

import itertools

_WEIGHT = 0.1
"""Of the newest measurement in the running means."""


class Pacing:
    """Bounds a mixed step to about `ratio` times a decode step of all who want to be answered.

    These are the sequences that decode and those whose prompts are in line: as soon as the latter have been
    computed, every step is one of all of them, so this is the pace that the streams are heading for anyway.
    Measured against the few that decode while a burst of prompts comes in, the cap would be so small that
    those prompts take hundreds of steps, each at the low efficiency of a small batch, and the sequences, which
    start far apart then, never fill a batch together. Against all of them, steps with prompts are about as
    long as one another from the burst's beginning to its end, and at most `ratio` times those without.

    The cap is an estimate from running means, and free to be wrong: it shapes latency, never tokens.
    """

    def __init__(self, budget: int, *, ratio: float = 3.0, floor: int = 16) -> None:
        self._budget = budget
        self._ratio = ratio
        self._floor = min(floor, budget)
        self._decode: dict[int, tuple[float, float]] = {}
        """(sequences, seconds) of decode-only steps, means by the bit length of the number of sequences."""
        self._per_token = 0.0
        """Seconds that a prompt token adds to a step; 0: not seen yet."""

    def cap(self, decodes: int, in_line: int = 0) -> int:
        """Prompt tokens that fit beside so many decoding sequences, while so many more wait for their prompts."""
        if not self._decode or not self._per_token:
            return max(self._floor, self._budget // 8)
        extra = self._ratio * self._seconds(decodes + in_line) - self._seconds(decodes)
        return max(self._floor, min(self._budget, int(extra / self._per_token)))

    def observe(self, decodes: int, prompt_tokens: int, seconds: float) -> None:
        """A step of so many decoding sequences and prompt tokens took `seconds`."""
        if not prompt_tokens:
            bucket = decodes.bit_length()
            count, mean = self._decode.get(bucket, (0.0, 0.0))
            self._decode[bucket] = _mean(count, decodes), _mean(mean, seconds)
            return
        if decodes and not self._decode:
            return
        base = self._seconds(decodes) if decodes else 0.0
        # Not below a tenth of the whole: noise must not make prompts look free.
        added = max(seconds - base, 0.1 * seconds) / prompt_tokens
        self._per_token = _mean(self._per_token, added)

    def _seconds(self, decodes: int) -> float:
        """Of a decode-only step of this size: between the sizes seen by interpolation; below them, that of the
        smallest, since reading the weights takes as long for one sequence; above, a sequence more takes at
        least as long as a prompt token.
        """
        known = [self._decode[bucket] for bucket in sorted(self._decode)]
        if decodes <= known[0][0]:
            return known[0][1]
        for (low, faster), (high, slower) in itertools.pairwise(known):
            if decodes <= high:
                return faster + (slower - faster) * (decodes - low) / (high - low)
        count, seconds = known[-1]
        return seconds + (decodes - count) * self._per_token


def _mean(old: float, new: float) -> float:
    return old + _WEIGHT * (new - old) if old else new
