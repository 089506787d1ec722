"""How a model's makers want its embeddings pooled: what GGUF files and sentence-transformers' folders say."""

from __future__ import annotations

from pathlib import Path

from tokentrail.checkpoints.errors import DOWNLOAD_AGAIN
from tokentrail.checkpoints.json_file import read_json
from tokentrail.checkpoints.metadata import Metadata

_GGUF_POOLINGS = {1: "mean", 2: "cls", 3: "last"}
"""llama.cpp's numbers. 0 is none, 4 is for rerankers: neither says how to embed."""
_FOLDER = "1_Pooling"
"""Where sentence-transformers puts the settings of its second module, which is the pooling."""
_FLAGS = {
    "pooling_mode_lasttoken": "last",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_cls_token": "cls",
}


def gguf_pooling(metadata: Metadata) -> str | None:
    """`last`, `mean` or `cls`; None where the file does not say."""
    architecture = metadata.text("general.architecture", default="")
    return _GGUF_POOLINGS.get(
        metadata.integer(f"{architecture}.pooling_type", low=-1, high=1 << 16, default=0)
    )


def folder_pooling(folder: Path) -> str | None:
    """`last`, `mean` or `cls`; None where the folder does not say, or asks for what there is not (maxima, weights)."""
    path = folder / _FOLDER / "config.json"
    if not path.is_file():
        return None
    settings = Metadata(path, read_json(path), word="key", remedy=DOWNLOAD_AGAIN)
    named = settings.values.get("pooling_mode")  # what newer versions write
    if isinstance(named, str):
        return {"lasttoken": "last", "mean": "mean", "cls": "cls"}.get(named)
    chosen = [kind for flag, kind in _FLAGS.items() if settings.flag(flag, False)]
    return chosen[0] if len(chosen) == 1 else None
