"""The model that a configuration names, as it will be run: opened, and quantized where that is wanted."""

from __future__ import annotations

from tokentrail.checkpoints import (
    QUANTIZATIONS,
    Checkpoint,
    QuantizationLoss,
    demo_model_path,
    open_checkpoint,
    quantize_checkpoint,
)
from tokentrail.engine.config import STORED_QUANTIZATIONS, EngineConfig
from tokentrail.ops.native import default_threads
from tokentrail.protocol import InvalidRequest


def open_model(config: EngineConfig) -> tuple[Checkpoint, QuantizationLoss | None]:
    """The model, and, with `--quantization`, what that costs: known once the tensors' bytes have been used.

    Raises `ModelFileError`, and `InvalidRequest` for a quantization that there is not.
    """
    kind = config.quantization
    if kind is not None and kind not in (*QUANTIZATIONS, *STORED_QUANTIZATIONS):
        names = ", ".join((*QUANTIZATIONS, *STORED_QUANTIZATIONS))
        raise InvalidRequest(f"--quantization must be one of {names}, not {kind!r}.", param="quantization")
    checkpoint = open_checkpoint(config.model or demo_model_path())
    if kind not in QUANTIZATIONS:
        return checkpoint, None
    assert kind is not None
    return quantize_checkpoint(checkpoint, kind, threads=config.threads or default_threads())
