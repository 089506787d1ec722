"""What a model takes, from the arithmetic that the engine plans with; in a thread, as it opens the model's file."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING

from tokentrail.engine.config import EngineConfig
from tokentrail.server.learning.schema import Format, MemoryAnswer

if TYPE_CHECKING:
    from tokentrail.checkpoints import Tensor


def memory_of(config: EngineConfig, model: str) -> MemoryAnswer:
    from tokentrail.engine.estimate import estimate_memory, formats_of
    from tokentrail.engine.model_runner import open_backend
    from tokentrail.engine.opening import open_model
    from tokentrail.ops.backend import KV_DTYPES, KvLayout

    checkpoint, _ = open_model(config)
    backend = open_backend(config)
    estimate = estimate_memory(checkpoint, backend, config)
    footprint, shape = estimate.models[0], checkpoint.config
    caches = {
        dtype: KvLayout(dtype, shape.num_layers, 1, config.block_size, shape.num_kv_heads, shape.head_dim)
        for dtype in KV_DTYPES
    }
    return MemoryAnswer(
        model=model,
        parameters=sum(math.prod(tensor.shape) for tensor in checkpoint.tensors.values()),
        stored_as=_main_format(checkpoint.tensors.values()),
        weights=footprint.weights,
        buffers=footprint.buffers,
        formats=[Format(name=name, bytes=nbytes) for name, _, nbytes in formats_of(checkpoint, backend)],
        kv_bytes_per_token={dtype: layout.bytes_per_token for dtype, layout in caches.items()},
        kv_dtype=footprint.kv.dtype,
        layers=shape.num_layers,
        kv_heads=shape.num_kv_heads,
        head_dim=shape.head_dim,
        block_size=config.block_size,
        max_context=shape.max_position,
        free=estimate.free,
        usable=estimate.usable,
    )


def _main_format(tensors: Iterable[Tensor]) -> str:
    """The format that most bytes are in."""
    sizes: Counter[str] = Counter()
    for tensor in tensors:
        sizes[tensor.format] += tensor.nbytes
    return sizes.most_common(1)[0][0]
