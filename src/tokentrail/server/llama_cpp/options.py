"""How tokens are sampled, in llama.cpp's words, which Ollama took over.

What a request leaves out is as in every other dialect here: what the model's makers recommend, or else neutral. (Their
servers have defaults of their own: a temperature of 0.8 and so on.)
"""

from __future__ import annotations

from typing import Any, ClassVar

from tokentrail.protocol import SamplingParams
from tokentrail.server.schemas import LazyRequest, List, given, left_open

_RANDOM_SEEDS = (-1, 2**32 - 1)
_PLAIN = "only temperature, top_k, top_p, min_p, typical_p and penalties shape the draw."
_OURS = {"repeat_penalty": "repetition_penalty"}
"""Their name → ours."""
_THEIRS = {ours: theirs for theirs, ours in _OURS.items()}
_SAME = ("temperature", "top_k", "top_p", "min_p", "typical_p", "presence_penalty", "frequency_penalty")


class SamplingOptions(LazyRequest):
    seed: int | None = None
    """-1: a random one."""
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    typical_p: float | None = None
    repeat_penalty: float | None = None
    repeat_last_n: int | None = None
    """0 turns `repeat_penalty` off; with any other it is for all tokens."""
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    stop: str | List[str] | None = None

    UNSUPPORTED: ClassVar[dict[str, str]] = dict.fromkeys(
        (
            "tfs_z",
            "mirostat",
            "dry_multiplier",
            "xtc_probability",
            "dynatemp_range",
            "top_n_sigma",
            "adaptive_target",
        ),
        _PLAIN,
    )
    NEUTRAL: ClassVar[dict[str, tuple[Any, ...]]] = {
        "tfs_z": (1,),
        "top_n_sigma": (-1,),
        "adaptive_target": (-1,),
    }
    HARMLESS: ClassVar[frozenset[str]] = frozenset(
        {
            # They belong to those, which are off.
            "mirostat_tau",
            "mirostat_eta",
            "dry_base",
            "dry_allowed_length",
            "dry_penalty_last_n",
            "dry_sequence_breakers",
            "xtc_threshold",
            "dynatemp_exponent",
            "adaptive_decay",
            "penalize_newline",
            "penalize_nl",
        }
    )

    @classmethod
    def names(cls) -> dict[str, str]:
        """See `Question.names`."""
        names = (*_SAME, *_THEIRS, "seed", "stop")
        return {name: cls.WHERE + _THEIRS.get(name, name) for name in names}

    def unset(self) -> list[str]:
        """Sampling parameters that the request leaves to the model's makers."""
        return left_open({_OURS.get(name, name) for name in given(self, (*_SAME, *_OURS))})

    def sampling(self, **further: Any) -> SamplingParams:
        """Not validated. `further`: fields of `SamplingParams`."""
        chosen = given(self, _SAME)
        if chosen.get("temperature", 0) < 0:
            chosen["temperature"] = 0  # greedy, too
        if chosen.get("top_k", 0) < 0:
            chosen["top_k"] = 0
        if self.repeat_penalty is not None:
            chosen["repetition_penalty"] = 1.0 if self.repeat_last_n == 0 else self.repeat_penalty
        if self.seed is not None and self.seed not in _RANDOM_SEEDS:
            chosen["seed"] = self.seed
        if self.stop is not None:
            stop = (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)
            chosen["stop"] = tuple(dict.fromkeys(filter(None, stop)))
        return SamplingParams(**chosen, **further)
