"""How a model's makers want its embeddings pooled: what GGUF files and sentence-transformers' folders say."""

from __future__ import annotations

from pathlib import Path

import msgspec

from tokentrail.checkpoints.errors import DOWNLOAD_AGAIN, file_error
from tokentrail.checkpoints.json_file import read_bytes, read_json
from tokentrail.checkpoints.metadata import Metadata

_GGUF_POOLINGS = {1: "mean", 2: "cls", 3: "last"}
"""llama.cpp's numbers. 0 is none, 4 is for rerankers: neither says how to embed."""
SENTENCE_MODULES = "modules.json"
"""Of sentence-transformers: its folders are made for embeddings."""
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
    _check_modules(folder / SENTENCE_MODULES)
    path = folder / _FOLDER / "config.json"
    if not path.is_file():
        return None
    settings = Metadata(path, read_json(path), word="key", remedy=DOWNLOAD_AGAIN)
    named = settings.values.get("pooling_mode")  # what newer versions write
    if isinstance(named, str):
        return {"lasttoken": "last", "mean": "mean", "cls": "cls"}.get(named)
    chosen = [kind for flag, kind in _FLAGS.items() if settings.flag(flag, False)]
    return chosen[0] if len(chosen) == 1 else None


class _Module(msgspec.Struct):
    type: str = ""


def _check_modules(path: Path) -> None:
    """Refuse a model whose vectors pass through layers of its own behind the pooling: ours would not be its vectors."""
    if not path.is_file():
        return
    try:
        modules = msgspec.json.decode(read_bytes(path), type=list[_Module])
    except (msgspec.DecodeError, RecursionError) as error:
        raise file_error(path, f"is not valid: {error}", DOWNLOAD_AGAIN) from None
    if any(module.type.endswith(".Dense") for module in modules):
        problem = "describes embeddings that pass through a further layer (Dense), which is not supported"
        raise file_error(path, problem, "Use a model without one.")
