"""From a checkpoint to a recorded model: packs weights in the order in which a step reads them.

The only module that knows both the formats of checkpoints and the layouts of ops.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import count, dropwhile
from typing import Any

import numpy as np
import numpy.typing as npt

from tokentrail.checkpoints import ROPE_TENSORS, Checkpoint, LoraAdapter, ModelConfig, Tensor, dequantize
from tokentrail.models import gemma, gemma1, glm4, gpt_oss, llama, mixtral, qwen3
from tokentrail.models.rope import RopeAngles, rope_angles
from tokentrail.models.weights import Adapters, Weights
from tokentrail.ops.backend import Backend, Stored
from tokentrail.ops.program import LowRank, Program, Recorder, Value
from tokentrail.protocol import ModelFileError

Forward = Callable[[Recorder, ModelConfig, Weights, RopeAngles], Value]

FAMILIES: dict[str, Forward] = {
    "gemma1": gemma1.forward,
    "gemma2": gemma.gemma2,
    "gemma3": gemma.gemma3,
    "glm4": glm4.forward,
    "gpt_oss": gpt_oss.forward,
    "llama": llama.forward,
    "mixtral": mixtral.forward,
    "qwen3": qwen3.forward,
    "qwen3_moe": mixtral.qwen3_moe,
}
"""By `ModelConfig.architecture`. Which models of the world run as which family: `checkpoints/*_architectures.py`."""

EXPERT_PARTS = ("gate", "up", "down")
BATCH = 32 << 20
"""Bytes of small matrices that are packed together: many more would only be held twice for longer."""

Progress = Callable[[int, int], None]
"""Called with bytes packed so far and in all."""


@dataclass(frozen=True)
class LoadedModel:
    """A model ready to be compiled: its recorded forward pass, and how much memory its weights take."""

    config: ModelConfig
    program: Program
    weight_bytes: int
    num_parameters: int
    rope: RopeAngles
    """As chosen for the longest context served, where that matters."""


def activation_formats(checkpoint: Checkpoint, backend: Backend, activation_dtype: str) -> dict[str, str]:
    """The format in which each matrix is packed: as stored, or float32 where integer products are not wanted."""
    exact = activation_dtype == "float32"
    return {
        name: "F32" if exact and backend.is_integer(tensor.format) else tensor.format
        for name, tensor in checkpoint.tensors.items()
        if len(tensor.shape) == 2
    }


def load_model(
    checkpoint: Checkpoint,
    backend: Backend,
    *,
    activation_dtype: str = "auto",
    context: int | None = None,
    adapters: Sequence[LoraAdapter] = (),
    progress: Progress | None = None,
) -> LoadedModel:
    """Pack the checkpoint's weights and record its family's forward pass.

    `context` is the longest that will be served, by which some kinds of RoPE are chosen; None: the model's own.
    Raises `ModelFileError` when the architecture is not known, or a tensor is missing.
    """
    source = _Source(checkpoint, backend, activation_dtype, progress, adapters)
    return _record(checkpoint, backend, source, context)


def describe_model(
    checkpoint: Checkpoint,
    backend: Backend,
    *,
    activation_dtype: str = "auto",
    context: int | None = None,
    adapters: Sequence[LoraAdapter] = (),
) -> LoadedModel:
    """The model as `load_model` would load it, from shapes alone: its program holds a `MatrixShape` for each matrix,
    and zeros for each vector. No tensor is read but the rotary factors.
    """
    source = _Shapes(checkpoint, backend, activation_dtype, None, adapters)
    return _record(checkpoint, backend, source, context)


def _record(checkpoint: Checkpoint, backend: Backend, source: _Source, context: int | None) -> LoadedModel:
    forward = _forward_of(checkpoint)
    rope = _rope(checkpoint, backend, checkpoint.config.max_position if context is None else context)
    recorder = Recorder()
    weights = Weights(source.matrix, source.vector, source.bias, source.columns, source.adapters)
    logits = forward(recorder, checkpoint.config, weights, rope)
    source.check_adapters()
    parameters = sum(
        int(np.prod(t.shape)) for name, t in checkpoint.tensors.items() if name not in ROPE_TENSORS
    )
    return LoadedModel(checkpoint.config, recorder.finish(logits), source.nbytes, parameters, rope)


def _forward_of(checkpoint: Checkpoint) -> Forward:
    forward = FAMILIES.get(checkpoint.config.architecture)
    if forward is None:
        known = ", ".join(sorted(FAMILIES))
        raise ModelFileError(
            f"{checkpoint.path}: architecture {checkpoint.config.architecture!r} is not supported; known: {known}"
        )
    return forward


def _rope(checkpoint: Checkpoint, backend: Backend, context: int) -> RopeAngles:
    config = checkpoint.config.rope
    freqs, short, long = (_rope_factors(checkpoint, name) for name in ROPE_TENSORS)
    if short is not None and long is not None:
        config = replace(
            config,
            scaling="longrope",
            original_max_position=config.original_max_position or checkpoint.config.max_position,
            short_factors=tuple(map(float, short)),
            long_factors=tuple(map(float, long)),
        )
    angles = rope_angles(config, backend, freqs, context=context)
    local = checkpoint.config.rope_local
    return angles if local is None else replace(angles, windowed=rope_angles(local, backend, context=context))


def _rope_factors(checkpoint: Checkpoint, name: str) -> npt.NDArray[np.float32] | None:
    tensor = checkpoint.tensors.get(name)
    if tensor is None:
        return None
    factors = _floats(tensor)
    if not (np.isfinite(factors) & (factors > 0)).all():
        raise ModelFileError(
            f"{checkpoint.path}: the rotary factors ({name}) are not all positive numbers; the file is damaged"
        )
    return factors


def _floats(tensor: Tensor) -> npt.NDArray[np.float32]:
    return np.ascontiguousarray(dequantize(tensor.data, tensor.format, tensor.shape), np.float32)


class _Source:
    """Packs each matrix once, when the recorded pass first names it: so memory order is reading order."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        backend: Backend,
        activation_dtype: str,
        progress: Progress | None,
        adapters: Sequence[LoraAdapter],
    ) -> None:
        self._adapters = adapters
        self._adapted: set[str] = set()
        self._checkpoint, self._backend, self._progress = checkpoint, backend, progress
        self._formats = activation_formats(checkpoint, backend, activation_dtype)
        self._matrices: dict[str, Any] = {}
        self._done = 0
        self._total = checkpoint.nbytes
        self.nbytes = 0

    def matrix(self, name: str) -> Any:
        if name not in self._matrices:
            names = self._together(name)
            packed = self._backend.matrices([self._stored(one) for one in names])
            for one, matrix in zip(names, packed, strict=True):
                self._matrices[one] = matrix
                self._taken(self._tensor(one), matrix.nbytes)
        return self._matrices[name]

    def _together(self, name: str) -> list[str]:
        """The matrix and, of an expert, those that the pass names next: of its layer, up to `BATCH` bytes."""
        self._tensor(name)
        prefix, _, rest = name.partition(".experts.")
        expert, _, part = rest.partition(".")
        if part not in EXPERT_PARTS:
            return [name]
        following = (f"{prefix}.experts.{e}.{p}" for e in count(int(expert)) for p in EXPERT_PARTS)
        names: list[str] = []
        nbytes = 0
        for other in dropwhile(lambda other: other != name, following):
            tensor = self._checkpoint.tensors.get(other)
            if tensor is None or other in self._matrices or (names and nbytes + tensor.nbytes > BATCH):
                break
            names.append(other)
            nbytes += tensor.nbytes
        return names

    def _stored(self, name: str) -> Stored:
        tensor = self._tensor(name)
        format, data = self._formats[name], tensor.data
        if format != tensor.format:
            data = _floats(tensor).view(np.uint8)
        n, k = tensor.shape
        return format, data, n, k

    def adapters(self, name: str) -> Adapters:
        """What each adapter adds to a linear layer."""
        modules = [adapter.modules.get(name) for adapter in self._adapters]
        if not any(modules):
            return ()
        self._adapted.add(name)
        return tuple(
            None if m is None else LowRank(self._low_rank(m.a), self._low_rank(m.b), m.scale) for m in modules
        )

    def _low_rank(self, tensor: Tensor) -> Any:
        packed = self._backend.matrix(tensor.format, tensor.data, *tensor.shape)
        tensor.release()
        self.nbytes += packed.nbytes
        return packed

    def check_adapters(self) -> None:
        """Raise for an adapter of a layer that the forward pass does not have."""
        for adapter in self._adapters:
            for name in adapter.modules:
                if name not in self._adapted:
                    family = self._checkpoint.config.architecture
                    raise ModelFileError(
                        f"{adapter.path}: adapts {name!r}, which {family} models do not compute"
                    )

    def bias(self, name: str) -> npt.NDArray[np.float32] | None:
        return self.vector(name) if name in self._checkpoint.tensors else None

    def columns(self, name: str) -> npt.NDArray[np.int32] | None:
        order = self._tensor(name).column_order
        if order is not None and ".experts." in name:
            raise ModelFileError(
                f"{self._checkpoint.path}: experts quantized by GPTQ with desc_act, in groups, are not supported. "
                "Use a version of the model without desc_act, or in another format."
            )
        return order

    def vector(self, name: str) -> npt.NDArray[np.float32]:
        tensor = self._tensor(name)
        vector = _floats(tensor)
        if not np.isfinite(vector).all():
            raise ModelFileError(
                f"{self._checkpoint.path}: tensor {name!r} holds values that are not numbers; download the file again"
            )
        self._taken(tensor, vector.nbytes)
        return vector

    def _tensor(self, name: str) -> Tensor:
        tensor = self._checkpoint.tensors.get(name)
        if tensor is None:
            raise ModelFileError(
                f"{self._checkpoint.path}: tensor {name!r} is missing; the file is incomplete"
            )
        return tensor

    def _taken(self, tensor: Tensor, nbytes: int) -> None:
        """`tensor` has been copied, into `nbytes`."""
        tensor.release()
        self.nbytes += nbytes
        self._done += tensor.nbytes
        if self._progress:
            self._progress(min(self._done, self._total), self._total)


class _Shapes(_Source):
    """Names the same tensors, and packs none of them."""

    def matrix(self, name: str) -> Any:
        if name not in self._matrices:
            shape = self._backend.matrix_shape(self._formats[name], *self._tensor(name).shape)
            self._matrices[name] = shape
            self.nbytes += shape.nbytes
        return self._matrices[name]

    def _low_rank(self, tensor: Tensor) -> Any:
        shape = self._backend.matrix_shape(tensor.format, *tensor.shape)
        self.nbytes += shape.nbytes
        return shape

    def vector(self, name: str) -> npt.NDArray[np.float32]:
        vector = np.zeros(self._tensor(name).shape, np.float32)
        self.nbytes += vector.nbytes
        return vector
