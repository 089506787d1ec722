"""From the tensors of a Hugging Face checkpoint to canonical ones: names, and the parts of fused tensors.

`hf_architectures.py` has the tables. A table maps what follows `layers.{i}.` in a stored name, without `.weight`, to
the canonical part, or, where one stored tensor holds several canonical ones, to a function that says how it is cut.
Cuts along rows are views; everything else is copied when its bytes are asked for.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from tokentrail.checkpoints.errors import file_error, quoted
from tokentrail.checkpoints.model import Deferred, ModelConfig, Tensor

U8 = npt.NDArray[np.uint8]

REMEDY = "Use a model of a family that is supported, or download this one again."


@dataclass(frozen=True)
class Cut:
    """One canonical tensor inside a stored one.

    The stored tensor is a matrix [rows, columns], a vector [rows], or a stack of them [experts, …].
    """

    name: str
    """Canonical part: `q`, `experts.3.gate`; `.bias` is added where a stored `.bias` is cut."""
    start: int = 0
    stop: int | None = None
    """Rows start … stop - 1; None: to the last."""
    step: int = 1
    """Every `step`-th of them: for tensors that interleave two."""
    period: int = 0
    """If not 0: `start` and `stop` are rows of each run of so many rows."""
    index: int | None = None
    """Of a stack: which of its matrices or vectors."""
    transposed: bool = False
    """The stored matrix is [in, out]: it is transposed first, and rows are then those of [out, in]."""


Fused = Callable[[ModelConfig], Sequence[Cut]]
Target = str | Fused
Table = Mapping[str, Target]

GLOBAL_TENSORS: Table = {"embed_tokens": "embed", "norm": "norm", "lm_head": "head"}
PREFIXES = ("language_model.model.", "model.language_model.", "language_model.", "model.")
"""Of the text model's tensors, in checkpoints of text alone and of more."""
IGNORED = (
    # Rotary frequencies that old versions stored; they follow from the configuration.
    r"(layers\.\d+\.self_attn\.)?rotary_emb\.inv_freq",
    # The parts of multimodal checkpoints that look and listen.
    r"(vision_tower|vision_model|vision_embed_tokens|visual|multi_modal_projector|mm_projector|embed_vision"
    r"|audio_tower|embed_audio|image_newline)\b.*",
)

_LAYER = re.compile(r"layers\.(0|[1-9][0-9]{0,5})\.(.+)")
_EXPERT = re.compile(r"\bexperts\.(0|[1-9][0-9]{0,5})\.")


def canonical_tensors(
    path: Path,
    stored: Iterable[Tensor],
    config: ModelConfig,
    layer_tensors: Table,
    global_tensors: Table = GLOBAL_TENSORS,
    ignored: Sequence[str] = (),
) -> tuple[dict[str, Tensor], dict[str, str]]:
    """(canonical tensors by name, their names in the files). `ignored`: patterns of names without prefix.

    Raises `ModelFileError` for a tensor that is in no table, or one that cannot be cut as the table says.
    """
    skip = re.compile("|".join((*IGNORED, *ignored)))
    tensors: dict[str, Tensor] = {}
    names: dict[str, str] = {}
    for tensor in stored:
        name = _without_prefix(tensor.name)
        if skip.fullmatch(name):
            continue
        found = _find(name, config, layer_tensors, global_tensors)
        if found is None:
            problem = f"tensor {quoted(tensor.name)} has no place in a model of this architecture"
            raise file_error(path, problem, REMEDY)
        prefix, cuts, suffix = found
        for cut in cuts:
            canonical = f"{prefix}{cut.name}{suffix}"
            if canonical in tensors:
                problem = f"tensors {quoted(names[canonical])} and {quoted(tensor.name)} are the same one"
                raise file_error(path, problem, REMEDY)
            tensors[canonical] = cut_tensor(path, tensor, cut, canonical)
            names[canonical] = tensor.name
    return tensors, names


def cuts_of(
    name: str, config: ModelConfig, layer_tensors: Table, global_tensors: Table = GLOBAL_TENSORS
) -> list[tuple[str, Cut]] | None:
    """Which canonical matrices a stored one holds, as (prefix of the name, cut): for what is stored beside a model,
    such as adapters. None: it is in no table.
    """
    found = _find(_without_prefix(name), config, layer_tensors, global_tensors)
    return None if found is None else [(found[0], cut) for cut in found[1]]


def _find(
    name: str, config: ModelConfig, layer_tensors: Table, global_tensors: Table
) -> tuple[str, Sequence[Cut], str] | None:
    """(prefix, cuts, suffix) of the canonical names of what is stored under a name without prefix."""
    match = _LAYER.fullmatch(name)
    if match:
        found, prefix = _look_up(layer_tensors, match[2], config), f"layers.{match[1]}."
    else:
        found, prefix = _look_up(global_tensors, name, config), ""
    return None if found is None else (prefix, *found)


def _without_prefix(name: str) -> str:
    for prefix in PREFIXES:
        if name.startswith(prefix):
            return name[len(prefix) :]
    return name


def _look_up(table: Table, name: str, config: ModelConfig) -> tuple[Sequence[Cut], str] | None:
    """(cuts, suffix of their names) for a name such as `mlp.experts.3.up_proj.weight`."""
    expert = _EXPERT.search(name)
    if expert:
        name = name[: expert.start()] + "experts.{e}." + name[expert.end() :]
    for key, suffix in (
        (name, ""),
        (name.removesuffix(".weight"), ""),
        (name.removesuffix(".bias"), ".bias"),
    ):
        target = table.get(key)
        if target is None:
            continue
        if isinstance(target, str):
            return (Cut(target.replace("{e}", expert[1]) if expert else target),), suffix
        return target(config), suffix
    return None


def cut_tensor(path: Path, tensor: Tensor, cut: Cut, name: str) -> Tensor:
    """The part of `tensor` that `cut` says, called `name`. Raises `ModelFileError` where it is not inside."""

    def fail(problem: str) -> None:
        shape = tuple(tensor.shape)
        raise file_error(path, f"tensor {quoted(tensor.name)} of shape {shape} {problem}", REMEDY)

    shape = tensor.shape
    if cut.index is not None:
        if len(shape) < 2 or not 0 <= cut.index < shape[0]:
            fail(f"has no part {cut.index}, which the configuration asks for")
        shape = shape[1:]
    if cut.transposed:
        if len(shape) != 2 or tensor.format not in ("F32", "F16", "BF16"):
            fail(f"is {tensor.format} and should be a matrix that can be transposed")
        shape = shape[::-1]
    if not shape or 0 in shape:
        fail("is empty")
    period = cut.period or shape[0]
    stop = period if cut.stop is None else cut.stop
    if not 0 <= cut.start < stop <= period or shape[0] % period:
        fail(f"has no rows {cut.start} to {stop}, which the configuration asks for")
    rows = len(range(cut.start, stop, cut.step)) * (shape[0] // period)
    part = (rows, *shape[1:])
    whole = cut.index is None and not cut.transposed and rows == shape[0]
    if whole:
        return replace(tensor, name=name, shape=part)

    count = 1 if cut.index is None else tensor.shape[0]
    nbytes = tensor.nbytes // (count * shape[0]) * rows

    def take(data: U8) -> U8:
        data = data.reshape(count, -1)[cut.index or 0]
        if cut.transposed:
            size = 4 if tensor.format == "F32" else 2
            data = data.reshape(shape[1], shape[0], size).swapaxes(0, 1)
        return data.reshape(-1, period, nbytes // rows)[:, cut.start : stop : cut.step].reshape(-1)

    if isinstance(tensor.stored, Deferred) or cut.transposed or cut.step != 1 or cut.period:
        made = Deferred(nbytes, lambda: np.ascontiguousarray(take(tensor.data)))
        return replace(tensor, name=name, shape=part, stored=made)
    return replace(tensor, name=name, shape=part, stored=take(tensor.stored))
