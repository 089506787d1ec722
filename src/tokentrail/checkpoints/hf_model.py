"""From a folder as Hugging Face's libraries write it (config.json, .safetensors, tokenizer files) to a `Checkpoint`."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from tokentrail.checkpoints.errors import file_error
from tokentrail.checkpoints.gguf_tokenizer import end_token_ids
from tokentrail.checkpoints.hf_architectures import REMEDY, read_config, text_values
from tokentrail.checkpoints.hf_quantized import read_tensors
from tokentrail.checkpoints.hf_tensors import canonical_tensors
from tokentrail.checkpoints.hf_tokenizer import read_chat_templates, read_folder_tokenizer
from tokentrail.checkpoints.json_file import parse_json, read_bytes, read_json
from tokentrail.checkpoints.layout import check_tensors
from tokentrail.checkpoints.metadata import Metadata
from tokentrail.checkpoints.model import Checkpoint
from tokentrail.checkpoints.pooling import SENTENCE_MODULES, folder_pooling
from tokentrail.checkpoints.safetensors import SafetensorsFile, StoredTensor, read_folder_tensors

CONFIG = "config.json"
GENERATION_CONFIG = "generation_config.json"
TOKENIZER_CONFIG = "tokenizer_config.json"
PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt")
"""Files of weights that are Python programs, in effect: loading one runs what it says."""
_OLD_SETTINGS = {"quantize_config.json": "gptq", "quant_config.json": "awq"}
"""Where early AutoGPTQ and AutoAWQ put what `quantization_config` says now."""
_TYPE_REMEDY = "Use the model in F32, F16 or BF16, or a GGUF file of it."


def read_folder(folder: Path) -> Checkpoint:
    """Open a folder with config.json and .safetensors files: everything is checked, no tensor is read yet.

    Raises `ModelFileError`, one line naming the file, the problem and the remedy.
    """
    path = folder / CONFIG
    config_bytes = read_bytes(path)
    values = parse_json(path, config_bytes)
    # What sentence-transformers writes may be a model without an output layer.
    embeds = (folder / SENTENCE_MODULES).is_file()
    entry, text = text_values(path, values, embeds=embeds)
    _check_weights(folder)
    config, tied = read_config(text, entry)

    stored, files = read_folder_tensors(folder)
    settings = quantization_settings(folder, text)
    unquantized = read_tensors(folder, stored, settings)
    tensors, names = canonical_tensors(
        folder, unquantized.values(), config, entry.layer_tensors, entry.global_tensors, entry.ignored
    )
    if tied is None or (embeds and "head" not in tensors):
        tied = "head" not in tensors  # an answer of such a model has no meaning, but its embeddings have
    config = replace(config, tie_embeddings=tied)
    if config.tie_embeddings:
        # Some writers store the tied matrix twice.
        tensors = {name: tensor for name, tensor in tensors.items() if not name.startswith("head")}
    check_tensors(folder, config, tensors, names, remedy=REMEDY, type_remedy=_TYPE_REMEDY)
    ends = end_tokens(folder, text, config.vocab_size)
    tokenizer = read_folder_tokenizer(
        folder,
        vocab_size=config.vocab_size,
        model_type=str(text.values.get("model_type", "")),
        bos_token_id=_one_id(text, "bos_token_id", config.vocab_size),
        eos_token_id=min(ends, default=None),
    )
    templates = read_chat_templates(folder)
    return Checkpoint(
        path=folder,
        name=folder.resolve().name,
        config=config,
        tensors=tensors,
        tokenizer=tokenizer,
        chat_template=templates.pop("default", None),
        named_templates=templates,
        eos_token_ids=tuple(id for id in end_token_ids(tokenizer, ends) if id < config.vocab_size),
        fingerprint=_fingerprint(folder, config_bytes, files, stored.values()),
        metadata=values,
        model_type=str(text.values.get("model_type", "")),
        quantization="" if settings is None else settings.text("quant_method"),
        pooling=folder_pooling(folder),
    )


def _check_weights(folder: Path) -> None:
    """Refuse a folder without .safetensors files, saying what there is instead."""
    if next(folder.glob("*.safetensors"), None) or (folder / "model.safetensors.index.json").exists():
        return
    pickles = sorted(path.name for pattern in PICKLES for path in folder.glob(pattern))
    if pickles:
        raise file_error(
            folder,
            f"holds its weights as pickle files ({pickles[0]}), which can run any program when they are loaded",
            'Convert it once where you trust it: python -c "import sys, transformers as t; '
            "t.AutoModelForCausalLM.from_pretrained(sys.argv[1], torch_dtype='auto').save_pretrained(sys.argv[2])\" "
            "IN OUT, then copy the tokenizer's files; or use the .safetensors files that the hub may have.",
        )
    raise file_error(folder, "has a config.json, but no .safetensors files", "Download the weights, too.")


def quantization_settings(folder: Path, values: Metadata) -> Metadata | None:
    """What the checkpoint says of how it is quantized, or None where it is not."""
    settings = values.nested("quantization_config")
    if settings is not None:
        return settings
    for name, method in _OLD_SETTINGS.items():
        if (folder / name).is_file():
            old = {"quant_method": method, **read_json(folder / name)}
            return Metadata(folder / name, old, word="key", remedy=REMEDY)
    return None


def end_tokens(folder: Path, values: Metadata, vocab_size: int) -> tuple[int, ...]:
    """Tokens that end an answer, ascending: those of generation_config.json, or of config.json where it names none."""

    def named(source: Metadata) -> set[int]:
        value = source.values.get("eos_token_id")
        if type(value) is int:
            value = [value]
            source = Metadata(source.path, {"eos_token_id": value}, word="key", remedy=REMEDY)
        return set(source.integers("eos_token_id", low=0, high=vocab_size - 1))

    ids: set[int] = set()
    path = folder / GENERATION_CONFIG
    if path.is_file():
        ids = named(Metadata(path, read_json(path), word="key", remedy=REMEDY))
    ids = ids or named(values)
    return tuple(sorted(ids))


def _one_id(values: Metadata, key: str, vocab_size: int) -> int | None:
    """A token's id, or None where there is none, or a list of them, or one of another vocabulary."""
    value = values.values.get(key)
    return value if type(value) is int and 0 <= value < vocab_size else None


def _fingerprint(
    folder: Path, config: bytes, files: Iterable[SafetensorsFile], tensors: Iterable[StoredTensor]
) -> str:
    """Digest of what decides an answer: the configurations, the files' headers, and 64 bytes from the middle of each
    tensor (see `gguf._fingerprint`, why a sample). Names of folders and files do not count.
    """
    digest = hashlib.blake2b(config, digest_size=16)
    for name in (GENERATION_CONFIG, TOKENIZER_CONFIG):
        if (folder / name).is_file():
            digest.update(read_bytes(folder / name))
    for file in sorted(files, key=lambda file: file.header):
        digest.update(file.header)
    for tensor in sorted(tensors, key=lambda tensor: tensor.name):
        middle = tensor.nbytes // 2
        digest.update(tensor.data[middle : middle + 64].data)
    return digest.hexdigest()
