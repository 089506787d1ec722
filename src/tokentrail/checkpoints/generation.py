"""How a model's makers recommend to sample: generation_config.json of a folder, `general.sampling.*` of a GGUF file."""

from __future__ import annotations

from pathlib import Path

from tokentrail.checkpoints.hf_model import GENERATION_CONFIG
from tokentrail.checkpoints.json_file import read_json
from tokentrail.checkpoints.metadata import Metadata
from tokentrail.checkpoints.model import Checkpoint
from tokentrail.protocol import SamplingDefaults

_REMEDY = "Correct it, or start with --generation-config vllm."
_GGUF_KEYS = {
    "temperature": "general.sampling.temp",
    "top_p": "general.sampling.top_p",
    "top_k": "general.sampling.top_k",
    "min_p": "general.sampling.min_p",
    "repetition_penalty": "general.sampling.penalty_repeat",
}


def generation_defaults(checkpoint: Checkpoint) -> SamplingDefaults:
    """The checkpoint's own recommendations. Raises `ModelFileError` naming a value that makes no sense."""
    if checkpoint.path.is_dir():
        return read_generation_config(checkpoint.path / GENERATION_CONFIG)
    values = {name: checkpoint.metadata.get(key) for name, key in _GGUF_KEYS.items()}
    return _defaults(Metadata(checkpoint.path, values, word="sampling key", remedy=_REMEDY))


def read_generation_config(path: Path) -> SamplingDefaults:
    """Those of a generation_config.json; none where the file is missing. Raises `ModelFileError` as above."""
    if not path.is_file():
        return SamplingDefaults()
    values = read_json(path)
    values["max_tokens"] = values.get("max_new_tokens")
    return _defaults(Metadata(path, values, word="key", remedy=_REMEDY))


def _defaults(values: Metadata) -> SamplingDefaults:
    """As vLLM takes them: `do_sample` and what concerns other ways to search does not count."""

    def number(key: str, low: float, high: float, *, open_low: bool = False) -> float | None:
        if values.values.get(key) is None:
            return None
        return values.number(key, low=low, high=high, open_low=open_low)

    def integer(key: str, low: int) -> int | None:
        return None if values.values.get(key) is None else values.integer(key, low=low, high=(1 << 31) - 1)

    return SamplingDefaults(
        temperature=number("temperature", 0, 2),
        top_p=number("top_p", 0, 1, open_low=True),
        top_k=integer("top_k", -1),
        min_p=number("min_p", 0, 1),
        repetition_penalty=number("repetition_penalty", 0, 1e6, open_low=True),
        max_tokens=integer("max_tokens", 1),
    )
