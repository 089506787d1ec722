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
from tokentrail.ops.native import WeightQuantizer
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
    if kind is None:
        return checkpoint, None
    if kind in STORED_QUANTIZATIONS:
        if checkpoint.quantization not in STORED_QUANTIZATIONS[kind]:
            stored, remedy = f"stored as {checkpoint.quantization}", "Leave the flag out."
            if not checkpoint.quantization:
                choices = " or ".join(QUANTIZATIONS)
                stored, remedy = "not quantized", f"Leave the flag out, or quantize it on loading: {choices}."
            raise InvalidRequest(
                f"--quantization {kind}: {checkpoint.path} is {stored}. {remedy}", param="quantization"
            )
        return checkpoint, None
    return quantize_checkpoint(checkpoint, kind, quantize=WeightQuantizer(config.threads))
