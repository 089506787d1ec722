"""Quantized Hugging Face checkpoints: each layout written here by its definition, a value at a time, and read back.

`test_gptqmodel.py` has files that gptqmodel itself wrote.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hf_folders import write_raw
from tokentrail.checkpoints import dequantize
from tokentrail.checkpoints.hf_quantized import READERS
from tokentrail.checkpoints.metadata import Metadata
from tokentrail.checkpoints.model import Tensor
from tokentrail.checkpoints.safetensors import read_safetensors
from tokentrail.protocol import ModelFileError

Arrays = dict[str, np.ndarray]
LAYER = "model.layers.0.self_attn.q_proj"
DTYPES = {"<i4": "I32", "<i8": "I64", "<f2": "F16", "<f4": "F32", "|i1": "I8"}


class Typed(np.ndarray):
    """An array with a type of safetensors that NumPy lacks."""

    dtype_name: str


def typed(array: np.ndarray, name: str) -> np.ndarray:
    result = array.view(Typed)
    result.dtype_name = name
    return result


def bfloat16(values: np.ndarray) -> np.ndarray:
    """Rounded to bfloat16, as its bits."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32).astype(np.uint64)
    return typed(((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16), "BF16")


def write(path: Path, arrays: Arrays) -> Path:
    header, data = {}, b""
    for name, array in arrays.items():
        dtype = getattr(array, "dtype_name", None) or DTYPES[array.dtype.str]
        stored = np.ascontiguousarray(array).tobytes()
        header[name] = {
            "dtype": dtype,
            "shape": list(array.shape),
            "data_offsets": [len(data), len(data) + len(stored)],
        }
        data += stored
    return write_raw(path, header, data)


def read(folder: Path, arrays: Arrays, config: dict[str, Any]) -> dict[str, Tensor]:
    """The tensors that the reader of the configuration's method makes of a file."""
    file = read_safetensors(write(folder / "model.safetensors", arrays))
    metadata = Metadata(folder / "config.json", config, word="key", within="quantization_config.")
    return READERS[config["quant_method"]](file.tensors, metadata)[0]


def layer(folder: Path, parts: Arrays, config: dict[str, Any]) -> Tensor:
    """The weight of one layer whose stored parts are these."""
    tensors = read(folder, {f"{LAYER}.{word}": array for word, array in parts.items()}, config)
    assert list(tensors) == [f"{LAYER}.weight"]
    return tensors[f"{LAYER}.weight"]


def values_of(tensor: Tensor) -> np.ndarray:
    """What the tensor stands for, its columns in their own order."""
    assert tensor.data.nbytes == tensor.nbytes
    stored = dequantize(tensor.data, tensor.format, tensor.shape)
    if tensor.column_order is None:
        return stored
    values = np.empty_like(stored)
    values[:, tensor.column_order] = stored
    return values


def refusal(action: Callable[[], object]) -> str:
    with pytest.raises(ModelFileError) as caught:
        action()
    message = str(caught.value)
    assert "\n" not in message
    return message


def words_of(numbers: list[int], bits: int) -> list[int]:
    """Numbers of `bits` bits, one after the other from the lowest bit on, as signed words of 32."""
    stream = sum(number << bits * i for i, number in enumerate(numbers))
    count = len(numbers) * bits // 32
    words = [stream >> 32 * i & 0xFFFFFFFF for i in range(count)]
    return [word - (1 << 32) if word >> 31 else word for word in words]


class Random:
    """A layer [n, k] of random integers with scales and zero points of groups."""

    def __init__(self, n: int, k: int, bits: int, group: int, seed: int = 0) -> None:
        random = np.random.default_rng(seed)
        self.n, self.k, self.bits, self.group = n, k, bits, group
        self.groups = k // group
        self.values = random.integers(0, 2**bits, (n, k))
        self.zeros = random.integers(0, 2**bits, (n, self.groups))
        self.scales = (random.uniform(0.25, 1, (n, self.groups)) * 0.01).astype(np.float16)
        self.of_column = np.repeat(np.arange(self.groups), group)
        self.random = random

    def weight(self) -> np.ndarray:
        scales, zeros = self.scales[:, self.of_column], self.zeros[:, self.of_column]
        return (scales.astype(np.float64) * (self.values - zeros)).astype(np.float32)

    def awq(self) -> Arrays:
        order = (0, 2, 4, 6, 1, 3, 5, 7)

        def words(numbers: np.ndarray) -> np.ndarray:  # [rows, n]
            rows = [
                [words_of([int(row[8 * w + order[j]]) for j in range(8)], 4)[0] for w in range(len(row) // 8)]
                for row in numbers
            ]
            return np.array(rows, np.int32)

        return {
            "qweight": words(self.values.T),
            "qzeros": words(self.zeros.T),
            "scales": np.ascontiguousarray(self.scales.T),
        }

    def gptq(self, *, v2: bool, scatter: bool = False) -> Arrays:
        if scatter:
            self.of_column = self.random.permutation(self.of_column)
        columns = [words_of([int(v) for v in row], self.bits) for row in self.values]
        zeros = []
        for at in range(self.groups):
            stored = words_of([int(zero) for zero in self.zeros[:, at]], self.bits)
            if not v2 and self.bits != 3:
                one = sum(1 << shift for shift in range(0, 32, self.bits))
                stored = [(word - one) % (1 << 32) for word in stored]
            elif not v2:
                stored = words_of([(int(zero) - 1) % 8 for zero in self.zeros[:, at]], 3)
            zeros.append(stored)
        return {
            "qweight": np.ascontiguousarray(np.array(columns, np.int32).T),
            "qzeros": np.array(zeros, np.int64).astype(np.uint32).view(np.int32),
            "scales": np.ascontiguousarray(self.scales.T),
            "g_idx": self.of_column.astype(np.int32),
        }

    def packed(self, *, symmetric: bool, scatter: bool = False, old_zeros: bool = False) -> Arrays:
        if scatter:
            self.of_column = self.random.permutation(self.of_column)
        parts = {
            "weight_packed": np.array(
                [words_of([int(v) for v in row], self.bits) for row in self.values], np.int32
            ),
            "weight_scale": self.scales,
            "weight_shape": np.array([self.n, self.k]),
        }
        if symmetric:
            self.zeros[:] = 2 ** (self.bits - 1)
        elif old_zeros:
            parts["weight_zero_point"] = (self.zeros - 2 ** (self.bits - 1)).astype(np.int8)
        else:
            columns = [words_of([int(zero) for zero in column], self.bits) for column in self.zeros.T]
            parts["weight_zero_point"] = np.ascontiguousarray(np.array(columns, np.int32).T)
        if scatter:
            parts["weight_g_idx"] = self.of_column.astype(np.int32)
        return parts


AWQ = {"quant_method": "awq", "bits": 4, "group_size": 32, "zero_point": True, "version": "gemm"}
GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 32, "sym": False, "desc_act": False}


def compressed(
    bits: int, kind: str = "int", layout: str = "pack-quantized", **weights: Any
) -> dict[str, Any]:
    scheme = {"num_bits": bits, "type": kind, **weights}
    groups = {"group_0": {"targets": ["Linear"], "weights": scheme, "input_activations": None}}
    return {
        "quant_method": "compressed-tensors",
        "format": layout,
        "config_groups": groups,
        "ignore": ["lm_head"],
    }


@pytest.mark.parametrize(("group", "n", "k"), [(32, 16, 64), (64, 64, 192), (128, 40, 256), (-1, 8, 96)])
def test_awq(tmp_path: Path, group: int, n: int, k: int) -> None:
    source = Random(n, k, 4, k if group == -1 else group)
    tensor = layer(tmp_path, source.awq(), {**AWQ, "group_size": group})
    assert tensor.format == f"G4_{source.group}"
    assert np.array_equal(values_of(tensor), source.weight())


def test_awq_as_early_autoawq_named_things(tmp_path: Path) -> None:
    source = Random(16, 128, 4, 64)
    config = {"quant_method": "awq", "w_bit": 4, "q_group_size": 64, "zero_point": True, "version": "GEMM"}
    assert np.array_equal(values_of(layer(tmp_path, source.awq(), config)), source.weight())


@pytest.mark.parametrize("scatter", [False, True])
@pytest.mark.parametrize("v2", [False, True])
@pytest.mark.parametrize("group", [32, 64, 192])
@pytest.mark.parametrize("bits", [2, 3, 4, 8])
def test_gptq(tmp_path: Path, bits: int, group: int, v2: bool, scatter: bool) -> None:
    source = Random(32, 192, bits, group, seed=bits)
    parts = source.gptq(v2=v2, scatter=scatter)
    config = {**GPTQ, "bits": bits, "group_size": group, "desc_act": scatter}
    if v2:
        config["checkpoint_format"] = "gptq_v2"
    tensor = layer(tmp_path, parts, config)
    assert tensor.format == f"G{bits}_{group}"
    assert (tensor.column_order is not None) == (scatter and group < 192)
    assert np.array_equal(values_of(tensor), source.weight())


def test_gptq_without_g_idx_has_its_groups_in_order(tmp_path: Path) -> None:
    source = Random(16, 64, 4, 32)
    parts = source.gptq(v2=False)
    del parts["g_idx"]
    assert np.array_equal(values_of(layer(tmp_path, parts, GPTQ)), source.weight())


def test_gptq_layers_of_different_widths(tmp_path: Path) -> None:
    source = Random(32, 64, 8, 64)
    config = {**GPTQ, "dynamic": {".*q_proj.*": {"bits": 8, "group_size": -1}}}
    assert np.array_equal(values_of(layer(tmp_path, source.gptq(v2=False), config)), source.weight())


@pytest.mark.parametrize("scatter", [False, True])
@pytest.mark.parametrize("zeros", ["symmetric", "packed", "int8"])
@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("group", [32, 128])
def test_pack_quantized(tmp_path: Path, group: int, bits: int, zeros: str, scatter: bool) -> None:
    source = Random(40, 128, bits, group)
    parts = source.packed(symmetric=zeros == "symmetric", scatter=scatter, old_zeros=zeros == "int8")
    tensor = layer(tmp_path, parts, compressed(bits))
    assert tensor.format == f"G{bits}_{group}"
    assert np.array_equal(values_of(tensor), source.weight())


@pytest.mark.parametrize("shape", [(24, 1), (24,), (1,), ()])
def test_int_quantized(tmp_path: Path, shape: tuple[int, ...]) -> None:
    random = np.random.default_rng(0)
    weight = random.integers(-128, 128, (24, 64)).astype(np.int8)
    scale = bfloat16(random.uniform(0.001, 0.01, shape))
    exact = (scale.astype(np.uint32) << 16).view(np.float32).astype(np.float16).astype(np.float32)
    tensor = layer(
        tmp_path,
        {"weight": weight, "weight_scale": scale, "input_scale": np.ones(1, np.float32)},
        compressed(8, layout="int-quantized"),
    )
    assert tensor.format == "G8_64"
    assert np.array_equal(values_of(tensor), weight * exact.reshape(-1, 1))


def e4m3(codes: np.ndarray) -> np.ndarray:
    """By the definition, a value at a time."""

    def value(code: int) -> float:
        sign = -1 if code & 128 else 1
        exponent, mantissa = code >> 3 & 15, code & 7
        return sign * (mantissa * 2.0**-9 if exponent == 0 else (8 + mantissa) * 2.0 ** (exponent - 10))

    return np.vectorize(value)(codes)


FP8 = {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [128, 128]}


@pytest.mark.parametrize(
    ("config", "word", "shape", "rows", "columns"),
    [
        (FP8, "weight_scale_inv", (2, 3), 128, 128),
        ({"quant_method": "fp8"}, "weight_scale", (), 200, 300),
        ({"quant_method": "fp8"}, "weight_scale", (1,), 200, 300),
        ({"quant_method": "fbgemm_fp8"}, "weight_scale", (200, 1), 1, 300),
        (compressed(8, "float", "float-quantized"), "weight_scale", (200, 1), 1, 300),
        (compressed(8, "float", "float-quantized", block_structure=[128, 128]), "weight_scale", (2, 3), 128, 128),
    ],
)  # fmt: skip
def test_float8(
    tmp_path: Path, config: dict[str, Any], word: str, shape: tuple[int, ...], rows: int, columns: int
) -> None:
    random = np.random.default_rng(1)
    codes = random.integers(0, 256, (200, 300), dtype=np.uint8)
    codes[codes & 127 == 127] = 0  # not numbers
    scale = random.uniform(0.001, 0.1, shape).astype(np.float32).reshape(shape)
    tensor = layer(tmp_path, {"weight": typed(codes, "F8_E4M3"), word: scale}, config)
    factors = np.repeat(np.repeat(np.atleast_2d(scale), rows, 0)[:200], columns, 1)[:, :300]
    exact = (e4m3(codes) * factors.astype(np.float64)).astype(np.float32)
    expected = (bfloat16(exact).astype(np.uint32) << 16).view(np.float32)
    assert tensor.format == "BF16"
    assert np.array_equal(values_of(tensor), expected)


@pytest.mark.filterwarnings("error")
def test_float8_scales_that_overflow_say_so_when_the_model_runs(tmp_path: Path) -> None:
    codes = typed(np.full((32, 32), 0x7E, np.uint8), "F8_E4M3")
    tensor = layer(tmp_path, {"weight": codes, "weight_scale": np.float32([3e38])}, {"quant_method": "fp8"})
    assert np.isinf(values_of(tensor)).all()


def test_what_is_not_quantized_stays(tmp_path: Path) -> None:
    plain = np.ones((8, 8), np.float16)
    for config in (AWQ, GPTQ, FP8, compressed(4)):
        assert read(tmp_path, {"lm_head.weight": plain, f"{LAYER}.bias": plain[0]}, config) == {}


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_round_trips(tmp_path: Path, data: st.DataObject) -> None:
    """Whatever shape, width, grouping and convention: what was written comes back exactly."""
    bits = data.draw(st.sampled_from([2, 3, 4, 8]))
    group = data.draw(st.sampled_from([8, 16, 32, 64, 96]))
    k = group * data.draw(st.integers(1, 4))
    k *= 32 // np.gcd(k, 32)
    n = 32 * data.draw(st.integers(1, 2))
    source = Random(n, int(k), bits, group, seed=data.draw(st.integers(0, 2**32 - 1)))
    scatter, other = data.draw(st.booleans()), data.draw(st.booleans())
    if data.draw(st.booleans()) and bits in (4, 8):
        tensor = layer(tmp_path, source.packed(symmetric=other, scatter=scatter), compressed(bits))
    elif data.draw(st.booleans()) and bits == 4:
        tensor = layer(tmp_path, source.awq(), {**AWQ, "group_size": group})
    else:
        layout = "gptq_v2" if other else "gptq"
        parts = source.gptq(v2=other, scatter=scatter)
        tensor = layer(tmp_path, parts, {**GPTQ, "bits": bits, "checkpoint_format": layout})
    assert np.array_equal(values_of(tensor), source.weight())


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({**AWQ, "bits": 3}, "has 3 bits"),
        ({**AWQ, "version": "gemv"}, "has the layout 'gemv'"),
        ({**AWQ, "version": "marlin"}, "has the layout 'marlin'"),
        ({**AWQ, "zero_point": False}, "has no zero points"),
        ({**AWQ, "group_size": 20}, "has groups of 20"),
        ({**AWQ, "group_size": "many"}, "quantization_config.group_size"),
        ({**GPTQ, "bits": 5}, "has 5 bits"),
        ({**GPTQ, "bits": "4"}, "quantization_config.bits"),
        ({**GPTQ, "checkpoint_format": "marlin"}, "has the layout 'marlin'"),
        ({**GPTQ, "is_marlin_format": True}, "has the layout 'marlin'"),
        ({**GPTQ, "pack_dtype": "int16"}, "is packed into 'int16'"),
        ({**FP8, "fmt": "e5m2"}, "has 8-bit floats of the kind 'e5m2'"),
        ({**FP8, "weight_block_size": [128]}, "two numbers, rows and columns"),
        (compressed(4, layout="marlin-24"), "has weights in the layout 'marlin-24'"),
        (compressed(4, "float", "nvfp4-pack-quantized"), "'nvfp4-pack-quantized'"),
        (compressed(6), "has weights of 6 bits of the type 'int'"),
        ({**compressed(4), "sparsity_config": {"format": "sparse-24-bitmask"}}, "sparse layout"),
    ],
)
def test_settings_that_are_not_supported(tmp_path: Path, config: dict[str, Any], expected: str) -> None:
    message = refusal(lambda: read(tmp_path, {"lm_head.weight": np.ones((8, 8), np.float16)}, config))
    assert expected in message
    assert "config.json" in message


def damaged(parts: Arrays, word: str, array: np.ndarray | None) -> Arrays:
    return {key: value for key, value in {**parts, word: array}.items() if value is not None}


@pytest.mark.parametrize(
    ("word", "array", "awq", "gptq"),
    [
        ("qweight", None, ".qweight' is missing", ".qweight' is missing"),
        ("qzeros", None, ".qzeros' is missing", ".qzeros' is missing"),
        ("scales", None, ".scales' is missing", ".scales' is missing"),
        ("scales", np.ones((2, 8), np.float16), "has the shape (2, 8)", "fits no number of bits of 8 values"),
        ("scales", np.full((2, 32), np.nan, np.float16), "not numbers", "not numbers"),
        (
            "scales",
            np.full((2, 32), 1e6, np.float32),
            "beyond what float16 holds",
            "beyond what float16 holds",
        ),
        ("qzeros", np.ones((2, 5), np.int32), "has the shape (2, 5)", "fits no number of bits of 32 values"),
        ("qweight", np.ones((8, 4), np.float32), "is of type F32", "is of type F32"),
        ("qweight", np.ones((7, 4), np.int32), "has 7 rows", "has the shape (7, 4)"),
        ("qweight", np.ones((0, 4), np.int32), "2 dimensions are needed", "2 dimensions are needed"),
        ("qweight", np.ones(32, np.int32), "2 dimensions are needed", "2 dimensions are needed"),
    ],
)
def test_damaged_layers(tmp_path: Path, word: str, array: np.ndarray | None, awq: str, gptq: str) -> None:
    source = Random(32, 64, 4, 32)
    for parts, config, expected in ((source.awq(), AWQ, awq), (source.gptq(v2=False), GPTQ, gptq)):
        arrays = damaged(parts, word, array)
        assert expected in refusal(lambda a=arrays, c=config: layer(tmp_path, a, c).data)


@pytest.mark.parametrize(
    ("g_idx", "expected"),
    [
        (np.full(64, 2), "names group 2; there are groups 0 to 1"),
        (np.full(64, -1), "names group -1"),
        (np.zeros(64), "does not give each of the 2 groups 32 columns"),
        (np.zeros(63), "has the shape (63,)"),
    ],
)
def test_damaged_g_idx(tmp_path: Path, g_idx: np.ndarray, expected: str) -> None:
    parts = Random(32, 64, 4, 32).gptq(v2=False)
    parts["g_idx"] = g_idx.astype(np.int32)
    assert expected in refusal(lambda: layer(tmp_path, parts, GPTQ))
    packed = Random(32, 64, 4, 32).packed(symmetric=True)
    packed["weight_g_idx"] = g_idx.astype(np.int32)
    assert expected in refusal(lambda: layer(tmp_path, packed, compressed(4)))


def test_experts_with_scattered_groups_are_refused(tmp_path: Path) -> None:
    parts = Random(32, 64, 4, 32).gptq(v2=False, scatter=True)
    arrays = {f"model.layers.0.mlp.experts.3.up_proj.{word}": array for word, array in parts.items()}
    assert "desc_act: false" in refusal(lambda: read(tmp_path, arrays, GPTQ))


def test_bits_that_the_tensors_do_not_have(tmp_path: Path) -> None:
    message = refusal(lambda: layer(tmp_path, Random(32, 64, 8, 32).gptq(v2=False), GPTQ))
    assert "has 8 bits, but the model's quantization_config says 4" in message


@pytest.mark.parametrize(
    ("word", "array", "expected"),
    [
        ("weight_packed", None, ".weight_packed' is missing"),
        ("weight_scale", None, ".weight_scale' is missing"),
        ("weight_scale", np.ones((40, 3), np.float16), "has 3 groups"),
        ("weight_scale", np.ones((4, 2), np.float16), "has the shape (4, 2)"),
        ("weight_shape", np.array([40, 60]), "says (40, 60)"),
        ("weight_zero_point", np.full((40, 2), 100, np.int8), "outside of 4 bits"),
        ("weight_zero_point", np.zeros((40, 2), np.int32), "has the shape (40, 2)"),
    ],
)
def test_damaged_packed_layers(tmp_path: Path, word: str, array: np.ndarray | None, expected: str) -> None:
    parts = Random(40, 64, 4, 32).packed(symmetric=True)
    message = refusal(lambda: layer(tmp_path, damaged(parts, word, array), compressed(4)).data)
    assert expected in message


def test_compressed_layers_that_nothing_describes(tmp_path: Path) -> None:
    parts = Random(40, 64, 4, 32).packed(symmetric=True)
    config = compressed(4)
    config["config_groups"]["group_0"]["targets"] = ["re:.*down_proj"]
    assert "does not say how it was made" in refusal(lambda: layer(tmp_path, parts, config))
    config["config_groups"]["group_0"]["targets"] = ["re:("]
    assert "no pattern that can be read" in refusal(lambda: layer(tmp_path, parts, config))


@pytest.mark.parametrize(
    ("scale", "expected"),
    [
        (None, ".weight_scale' is missing"),
        (np.ones((3, 3), np.float32), "has the shape (3, 3)"),
        (np.full((2, 2), np.inf, np.float32), "not numbers"),
    ],
)
def test_damaged_float8(tmp_path: Path, scale: np.ndarray | None, expected: str) -> None:
    parts = {"weight": typed(np.zeros((200, 256), np.uint8), "F8_E4M3")}
    if scale is not None:
        parts["weight_scale_inv"] = scale
    assert expected in refusal(lambda: layer(tmp_path, parts, FP8).data)
