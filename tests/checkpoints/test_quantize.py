"""On-load quantization: errors near the best that the types can do, and which tensors are quantized to what."""

from __future__ import annotations

from dataclasses import replace

import gguf
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from random_models import checkpoint_of, random_checkpoint, random_weights, small_config
from tokentrail.checkpoints import dequantize, quantize_checkpoint
from tokentrail.checkpoints.model import MoeConfig, Tensor
from tokentrail.checkpoints.quantize import QUANTIZERS
from tokentrail.protocol import ModelFileError

F32 = np.ndarray


def through(x: F32, type: str) -> F32:
    return dequantize(QUANTIZERS[type](x).reshape(-1), type, x.shape)


def relative_error(x: F32, y: F32) -> float:
    return float(np.linalg.norm(x.astype(np.float64) - y) / np.linalg.norm(x.astype(np.float64)))


@pytest.mark.parametrize(("type", "bound"), [("Q8_0", 0.0055), ("Q4_0", 0.083)])
def test_error_on_normal_values(type: str, bound: float) -> None:
    x = np.random.default_rng(0).standard_normal((20_000, 32)).astype(np.float32)
    ours = relative_error(x, through(x, type))
    kind = gguf.GGMLQuantizationType[type]
    reference = relative_error(x, gguf.dequantize(gguf.quantize(x, kind), kind))
    assert ours < bound
    assert ours < reference


def best_q4_0(group: F32) -> float:
    """Least squared error of a group under any scale, by trying very many."""
    top = np.abs(group).max()
    scales = np.concatenate((np.linspace(0.02, 0.3, 4000), -np.linspace(0.02, 0.3, 4000))) * top
    integers = np.clip(np.rint(group / scales[:, None]), -8, 7)
    errors = ((group - integers * scales[:, None]) ** 2).sum(axis=1)
    return float(errors.min())


def test_four_bits_are_near_the_best_scale() -> None:
    x = np.random.default_rng(3).standard_normal((200, 32)).astype(np.float32)
    ours = ((x - through(x, "Q4_0")) ** 2).sum(axis=1)
    best = np.array([best_q4_0(group) for group in x])
    assert (ours >= best * 0.999).all()
    assert ours.sum() < 1.06 * best.sum()


@given(st.integers(0, 2**32 - 1), st.floats(-30, 4), st.sampled_from(["Q8_0", "Q4_0"]))
def test_any_magnitudes(seed: int, magnitude: float, type: str) -> None:
    """No group is further off than half a step of its span, plus what float16 takes from the scale."""
    random = np.random.default_rng(seed)
    x = (random.standard_normal((4, 32)) * 10.0**magnitude).astype(np.float32)
    x[1] = 0
    x[2, 1:] = 0
    y = through(x, type)
    assert np.isfinite(y).all()
    assert (y[1] == 0).all()
    top = np.abs(x).max(axis=1, keepdims=True)
    step = top / (127 if type == "Q8_0" else 8)
    # Where the opposite of the furthest value stands, it is clipped to 7 of 8 steps.
    limit = step * (0.51 if type == "Q8_0" else 1.7) + 127 * 2.0**-24
    assert (np.abs(x - y) <= limit).all()


def test_which_tensors_become_what() -> None:
    config = small_config(moe=MoeConfig(num_experts=2, experts_per_token=1, intermediate_size=64))
    checkpoint = random_checkpoint(config, format="BF16")
    for kind, layers in (("int8", "Q8_0"), ("int4", "Q4_0")):
        quantized, loss = quantize_checkpoint(checkpoint, kind)
        assert quantized.fingerprint not in (checkpoint.fingerprint, "")
        for name, tensor in quantized.tensors.items():
            if name in ("embed", "head"):
                assert tensor.format == "Q8_0"
            elif len(tensor.shape) == 1 or name.endswith("router"):
                assert tensor is checkpoint.tensors[name]
            else:
                assert tensor.format == layers
            assert tensor.data.nbytes == tensor.nbytes
        assert loss.by_part().keys() == {"embedding", "head", "attention", "feed_forward"}


def test_loss_is_that_of_the_weights() -> None:
    weights = random_weights(small_config())
    quantized, loss = quantize_checkpoint(checkpoint_of(small_config(), weights), "int4")
    assert loss.by_part() == {}
    names = [f"layers.{i}.{name}" for i in range(2) for name in ("q", "k", "v", "o")]
    after = [
        dequantize(t.data, t.format, t.shape).reshape(-1) for t in map(quantized.tensors.__getitem__, names)
    ]
    expected = relative_error(
        np.concatenate([weights[name].reshape(-1) for name in names]), np.concatenate(after)
    )
    assert loss.by_part()["attention"] == pytest.approx(expected, rel=1e-4)
    assert 0.06 < expected < 0.1


def test_quantized_checkpoints_are_refused() -> None:
    with pytest.raises(ModelFileError, match=r"is quantized already \(Q4_0\).*Leave the flag out"):
        quantize_checkpoint(random_checkpoint(format="Q4_0"), "int8")


def test_rows_that_are_no_whole_groups_stay() -> None:
    checkpoint = random_checkpoint(format="F32")
    odd = Tensor("layers.0.q", (2, 40), "F32", np.zeros(320, np.uint8))
    changed = replace(checkpoint, tensors={**checkpoint.tensors, "layers.0.q": odd})
    quantized, _ = quantize_checkpoint(changed, "int4")
    assert quantized.tensors["layers.0.q"] is odd
    with pytest.raises(ModelFileError, match="no rows of whole groups"):
        quantize_checkpoint(replace(checkpoint, tensors={"layers.0.q": odd}), "int4")


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("value", [np.nan, np.inf, 3e38])
def test_values_that_are_not_numbers_are_an_error(value: float) -> None:
    """Nor are values whose square is none; NumPy says nothing of it besides."""
    weights = random_weights(small_config())
    weights["layers.0.q"][3, 3] = value
    quantized, _ = quantize_checkpoint(checkpoint_of(small_config(), weights), "int8")
    with pytest.raises(ModelFileError, match=r"'layers.0.q' holds values that are not numbers"):
        quantized.tensors["layers.0.q"].data  # noqa: B018
