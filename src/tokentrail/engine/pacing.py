"""How much prompt a step may compute while answers stream: learnt from the steps' own times."""

from __future__ import annotations

_WEIGHT = 0.1
"""Of the newest measurement in the running means."""


class Pacing:
    """Bounds a mixed step to about `ratio` times a step that only decodes, so that streams do not stutter.

    The cap is an estimate from running means, and free to be wrong: it shapes latency, never tokens.
    """

    def __init__(self, budget: int, *, ratio: float = 3.0, floor: int = 16) -> None:
        self._budget = budget
        self._extra = ratio - 1.0
        self._floor = min(floor, budget)
        self._decode: list[float] = []
        """Seconds of a decode-only step, by bit length of the number of sequences; 0: not seen yet."""
        self._per_token = 0.0
        """Seconds that a prompt token adds to a step; 0: not seen yet."""

    def cap(self, decodes: int) -> int:
        """Prompt tokens that fit beside so many decoding sequences."""
        base = self._base(decodes)
        if not base or not self._per_token:
            return max(self._floor, self._budget // 8)
        return max(self._floor, min(self._budget, int(self._extra * base / self._per_token)))

    def observe(self, decodes: int, prompt_tokens: int, seconds: float) -> None:
        """A step of so many decoding sequences and prompt tokens took `seconds`."""
        if not prompt_tokens:
            bucket = decodes.bit_length()
            if bucket >= len(self._decode):
                self._decode.extend([0.0] * (bucket + 1 - len(self._decode)))
            self._decode[bucket] = _mean(self._decode[bucket], seconds)
            return
        base = self._base(decodes) if decodes else 0.0
        if decodes and not base:
            return
        # Not below a tenth of the whole: noise must not make prompts look free.
        added = max(seconds - base, 0.1 * seconds) / prompt_tokens
        self._per_token = _mean(self._per_token, added)

    def _base(self, decodes: int) -> float:
        """Seconds of a decode-only step of this size, or of the nearest smaller, or of the nearest size
        seen.
        """
        known = self._decode
        bucket = min(decodes.bit_length(), len(known) - 1)
        for at in range(bucket, -1, -1):
            if known[at]:
                return known[at]
        return next((seconds for seconds in known[bucket + 1 :] if seconds), 0.0)


def _mean(old: float, new: float) -> float:
    return old + _WEIGHT * (new - old) if old else new
