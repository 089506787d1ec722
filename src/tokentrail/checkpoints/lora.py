"""Low-rank adapters (LoRA: Hu et al. 2021, arXiv:2106.09685) as the PEFT library writes them: a folder with
adapter_config.json and adapter_model.safetensors.

An adapter adds scale · B(A x) to the output of some of a model's linear layers, with A [rank, in] and B [out, rank].
Its tensors are named after the layers of the Hugging Face model; here they get the canonical names of `layout.py`, cut
or permuted as the base model's own tensors were, whatever format that one has.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tokentrail.checkpoints.errors import file_error, quoted, readable
from tokentrail.checkpoints.hf_architectures import ARCHITECTURES, HFArchitecture, text_values
from tokentrail.checkpoints.hf_tensors import Cut, cuts_of
from tokentrail.checkpoints.json_file import read_bytes, read_json
from tokentrail.checkpoints.metadata import Metadata
from tokentrail.checkpoints.model import Checkpoint, Deferred, ModelConfig, Tensor
from tokentrail.checkpoints.safetensors import StoredTensor, read_safetensors

CONFIG = "adapter_config.json"
WEIGHTS = "adapter_model.safetensors"
MAX_RANK = 256
FORMATS = ("F32", "F16", "BF16")
REMEDY = "Use an adapter made for this model, or download it again."
_MERGE = "Merge it into the model with PEFT's merge_and_unload(), and serve that."
_COPY = re.compile(r"\b(lm_head|embed_tokens)\.base_layer\.weight$")
"""PEFT may save the model's own head and embedding beside what it adds to them."""
_NAME = re.compile(r"(?:base_model\.model\.)?(.+)\.lora_([AB])(?:\.default)?\.weight")


@dataclass(frozen=True)
class LoraModule:
    """What is added to one linear layer: scale · b(a(x))."""

    a: Tensor
    """[rank, in]"""
    b: Tensor
    """[out, rank]"""
    scale: float

    @property
    def rank(self) -> int:
        return self.a.shape[0]


@dataclass(frozen=True)
class LoraAdapter:
    """An adapter on disk, opened: every shape is checked, no tensor is read yet."""

    name: str
    path: Path
    modules: Mapping[str, LoraModule]
    """By the canonical name of the linear layer: `layers.3.q`, `head`."""
    fingerprint: str
    """Hex digest of its settings, its tensor table, and a sample of every tensor."""

    @property
    def rank(self) -> int:
        """The largest of its modules'."""
        return max(module.rank for module in self.modules.values())


def read_lora(name: str, folder: Path, base: Checkpoint) -> LoraAdapter:
    """Open an adapter for `base`. Raises `ModelFileError`: one line naming the file, the problem and the remedy."""
    with readable(folder):
        return _read_lora(name, folder, base)


def _read_lora(name: str, folder: Path, base: Checkpoint) -> LoraAdapter:
    path = folder / CONFIG
    if not folder.is_dir() or not path.is_file():
        raise file_error(folder, f"is no folder with {CONFIG}", "Give the folder of a PEFT adapter.")
    if not (folder / WEIGHTS).is_file() and next(folder.glob("adapter_model.bin"), None):
        raise file_error(
            folder,
            "holds its weights as a pickle file, which can run any program when it is loaded",
            f"Convert it to {WEIGHTS} where you trust it: load it with PEFT and save_pretrained().",
        )
    settings = Metadata(path, read_json(path), word="key", remedy=REMEDY)
    _check(settings)
    file = read_safetensors(folder / WEIGHTS)
    entry = _architecture(base)
    pairs: dict[str, dict[str, StoredTensor]] = {}
    for stored in file.tensors.values():
        if _COPY.search(stored.name):
            _check_copy(file.path, stored, base)
            continue
        match = _NAME.fullmatch(stored.name)
        if match is None:
            raise file_error(file.path, _stranger(stored.name), _MERGE)
        pairs.setdefault(match[1], {})[match[2]] = stored
    modules: dict[str, LoraModule] = {}
    for layer, pair in pairs.items():
        for canonical, module in _modules(file.path, layer, pair, settings, entry, base).items():
            if canonical in modules:
                raise file_error(file.path, f"adapts {canonical!r} twice", REMEDY)
            modules[canonical] = module
    if not modules:
        raise file_error(file.path, "adapts nothing: it has no lora_A and lora_B tensors", REMEDY)
    return LoraAdapter(name, folder, modules, _fingerprint(path, file.header, file.tensors))


def _check(settings: Metadata) -> None:
    """Refuse what is more than low-rank products."""
    kind = settings.text("peft_type", default="LORA")
    if kind != "LORA":
        raise file_error(settings.path, f"is a {quoted(kind)} adapter; only LORA is supported", _MERGE)
    refused = {
        "use_dora": "its products are normalized (DoRA)",
        "modules_to_save": "it replaces whole layers (modules_to_save)",
        "lora_bias": "its products have biases (lora_bias)",
        "layer_replication": "it repeats layers of the model (layer_replication)",
        "trainable_token_indices": "it changes embeddings (trainable_token_indices)",
        "target_parameters": "it adapts parameters that are no layers (target_parameters)",
        "fan_in_fan_out": "its layers are stored transposed (fan_in_fan_out)",
        "use_qalora": "it pools its inputs (QA-LoRA)",
    }
    for key, problem in refused.items():
        if settings.values.get(key):
            raise file_error(settings.path, f"cannot be served: {problem}", _MERGE)
    if settings.text("bias", default="none") != "none":
        raise file_error(settings.path, "cannot be served: it changes biases", _MERGE)


def _check_copy(path: Path, stored: StoredTensor, base: Checkpoint) -> None:
    expected = base.tensors["embed"].shape
    if stored.shape != expected:
        problem = f"brings {quoted(stored.name)} of shape {stored.shape}; this model's has {expected}"
        raise file_error(path, problem, _MERGE)


def _stranger(name: str) -> str:
    known = {
        "lora_embedding_": "adapts embeddings",
        "lora_magnitude_vector": "normalizes its products (DoRA)",
        "lora_B.bias": "has a bias",
        ".bias": "replaces a bias",
    }
    why = next((what for part, what in known.items() if part in name), "is no lora_A or lora_B matrix")
    return f"cannot be served: tensor {quoted(name)} {why}"


def _architecture(base: Checkpoint) -> HFArchitecture:
    """How the Hugging Face model names its layers, from which this base was made."""
    if "model_type" in base.metadata:
        return text_values(base.path, base.metadata, embeds=True)[0]
    entry = ARCHITECTURES.get(str(base.metadata.get("general.architecture")))
    if entry is None:
        family = base.config.architecture
        entry = next((entry for entry in ARCHITECTURES.values() if entry.family == family), None)
    if entry is None:
        problem = f"adapters for {quoted(base.config.architecture)} models are not supported"
        raise file_error(base.path, problem, _MERGE)
    return entry


def _modules(
    path: Path,
    layer: str,
    pair: Mapping[str, StoredTensor],
    settings: Metadata,
    entry: HFArchitecture,
    base: Checkpoint,
) -> dict[str, LoraModule]:
    """What the pair of a Hugging Face layer adds to canonical ones: several, where that layer is a fused one."""
    if set(pair) != {"A", "B"}:
        missing = "lora_B" if "A" in pair else "lora_A"
        raise file_error(path, f"tensor {quoted(f'{layer}.{missing}.weight')} is missing", REMEDY)
    a, b = (_tensor(path, pair[part]) for part in "AB")
    if a.shape[0] != b.shape[1]:
        problem = (
            f"{quoted(layer)} has a lora_A of shape {a.shape} and a lora_B of {b.shape}: their ranks differ"
        )
        raise file_error(path, problem, REMEDY)
    rank = a.shape[0]
    if not 1 <= rank <= MAX_RANK:
        raise file_error(path, f"{quoted(layer)} has rank {rank}; 1 to {MAX_RANK} are possible", _MERGE)
    found = cuts_of(layer + ".weight", base.config, entry.layer_tensors, entry.global_tensors)
    if found is None:
        problem = f"adapts {quoted(layer)}, which is no layer of a {base.config.architecture} model"
        raise file_error(path, problem, REMEDY)
    scale = _scale(settings, layer, rank)
    modules = {}
    for prefix, cut in found:
        name = prefix + cut.name
        _check_target(path, layer, name, base)
        n, k = base.tensors[name].shape
        part = _rows(path, layer, b, cut, n)
        if a.shape[1] != k:
            problem = (
                f"{quoted(layer)} takes {a.shape[1]} values, but {name!r} of {base.path.name} takes {k}: "
                "the adapter was made for another model"
            )
            raise file_error(path, problem, REMEDY)
        if cut.name in ("q", "k") and base.config.rope.interleaved and not entry.rope_interleaved:
            part = _interleaved(path, part, base.config, cut.name)
        modules[name] = LoraModule(a, part, scale)
    return modules


def _check_target(path: Path, layer: str, name: str, base: Checkpoint) -> None:
    if name == "head" and base.config.tie_embeddings:
        raise file_error(path, f"adapts {quoted(layer)}, which is also the model's embedding", _MERGE)
    if ".experts." in name or name.endswith((".router", "_norm", "embed", ".shared_gate")) or name == "norm":
        raise file_error(
            path, f"adapts {quoted(layer)}; experts, routers, norms and embeddings cannot be", _MERGE
        )
    if name not in base.tensors:
        raise file_error(path, f"adapts {quoted(layer)}, which {base.path.name} does not have", REMEDY)


def _tensor(path: Path, stored: StoredTensor) -> Tensor:
    if stored.dtype not in FORMATS or len(stored.shape) != 2:
        problem = f"tensor {quoted(stored.name)} is {stored.dtype} of shape {stored.shape}; a matrix in "
        raise file_error(path, f"{problem}{', '.join(FORMATS)} is needed", REMEDY)
    return Tensor(stored.name, stored.shape, stored.dtype, stored.data, stored.release)


def _rows(path: Path, layer: str, b: Tensor, cut: Cut, n: int) -> Tensor:
    """The rows of a fused layer's B that belong to one canonical layer, of `n` rows."""
    if cut.index is not None or cut.transposed:
        raise file_error(path, f"adapts {quoted(layer)}, a stack of matrices, which cannot be", _MERGE)
    total = b.shape[0]
    run = cut.period or total
    stop = run if cut.stop is None else cut.stop
    rows = (
        np.arange(total).reshape(-1, run)[:, cut.start : stop : cut.step].reshape(-1)
        if total % run == 0
        else None
    )
    if rows is None or stop > run or len(rows) != n:
        problem = (
            f"{quoted(layer)} gives {total} values, which are not cut into {n} for {cut.name!r} of the model's: "
            "the adapter was made for another model"
        )
        raise file_error(path, problem, REMEDY)
    return b if n == total else _picked(b, rows)


def _interleaved(path: Path, b: Tensor, config: ModelConfig, part: str) -> Tensor:
    """B's rows in the order in which GGUF's llama files keep queries and keys: the two halves of each head's rotated
    values in turn.
    """
    heads = config.num_heads if part == "q" else config.num_kv_heads
    if config.rope.dim != config.head_dim:
        raise file_error(path, "adapts a model that rotates parts of its heads, in another order", _MERGE)
    order = np.arange(b.shape[0]).reshape(heads, 2, config.head_dim // 2).swapaxes(1, 2).reshape(-1)
    return _picked(b, order)


def _picked(tensor: Tensor, rows: npt.NDArray[np.int64]) -> Tensor:
    """These rows of a matrix, copied when they are asked for."""
    width = tensor.nbytes // tensor.shape[0]

    def make() -> npt.NDArray[np.uint8]:
        return np.ascontiguousarray(tensor.data.reshape(-1, width)[rows]).reshape(-1)

    shape = (len(rows), tensor.shape[1])
    return Tensor(tensor.name, shape, tensor.format, Deferred(len(rows) * width, make), tensor.release)


def _scale(settings: Metadata, layer: str, rank: int) -> float:
    """alpha / rank, or alpha / sqrt(rank) (rsLoRA: Kalajdzievski 2023, arXiv:2312.03732), with the tensors' rank."""
    alpha = settings.number("lora_alpha", low=-1e6, high=1e6, default=8.0)
    patterns: Any = settings.values.get("alpha_pattern") or {}
    if not isinstance(patterns, dict):
        settings.fail("alpha_pattern", "an object")
    for key, value in patterns.items():
        if _matches(settings, key, layer):
            if type(value) not in (int, float) or not math.isfinite(value):
                settings.fail("alpha_pattern", "an object of numbers")
            alpha = float(value)
            break
    return alpha / (math.sqrt(rank) if settings.values.get("use_rslora") else rank)


def _matches(settings: Metadata, key: str, layer: str) -> bool:
    """Whether a pattern names a layer, by the end of its name, as PEFT has it. Patterns are literal here: those of a
    stranger, run as regular expressions, could take for ever.
    """
    plain = key.removeprefix("^").removesuffix("$").replace("\\.", ".")
    if re.fullmatch(r"[\w.]+", plain) is None:
        problem = f"alpha_pattern {quoted(key)} is no plain name of a layer"
        raise file_error(settings.path, problem, _MERGE)
    return layer == plain or (not key.startswith("^") and layer.endswith("." + plain))


def _fingerprint(config: Path, header: bytes, tensors: Mapping[str, StoredTensor]) -> str:
    digest = hashlib.blake2b(read_bytes(config), digest_size=16)
    digest.update(header)
    for tensor in sorted(tensors.values(), key=lambda tensor: tensor.name):
        middle = tensor.nbytes // 2
        digest.update(tensor.data[middle : middle + 64].data)
    return digest.hexdigest()
