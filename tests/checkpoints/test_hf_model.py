"""From a Hugging Face folder to a `Checkpoint`: configuration, canonical tensors, and what a folder can have wrong."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gguf_files import write_model
from hf_folders import HIDDEN, VOCAB, bfloat16, llama_config, llama_tensors, write_folder
from tokentrail.checkpoints import Checkpoint, ModelConfig, RopeConfig, dequantize, open_checkpoint
from tokentrail.checkpoints.hf_tensors import Cut, canonical_tensors, cut_tensor
from tokentrail.checkpoints.model import Deferred, Tensor
from tokentrail.protocol import ModelFileError


def refusal(path: Path) -> str:
    with pytest.raises(ModelFileError) as caught:
        open_checkpoint(path)
    message = str(caught.value)
    assert str(path) in message
    assert "\n" not in message
    return message


def values_of(checkpoint: Checkpoint, name: str) -> np.ndarray:
    tensor = checkpoint.tensors[name]
    return dequantize(tensor.data, tensor.format, tensor.shape)


def test_a_small_model(tmp_path: Path) -> None:
    tensors = llama_tensors(layers=2)
    config = llama_config(num_hidden_layers=2)
    checkpoint = open_checkpoint(write_folder(tmp_path / "Tiny-1.5B", config=config, tensors=tensors))
    assert checkpoint.config == ModelConfig(
        architecture="llama",
        vocab_size=VOCAB,
        hidden_size=32,
        intermediate_size=64,
        num_layers=2,
        num_heads=2,
        num_kv_heads=1,
        head_dim=16,
        max_position=128,
        rms_norm_eps=1e-5,
        rope=RopeConfig(dim=16),
    )
    assert checkpoint.name == "Tiny-1.5B"
    assert checkpoint.eos_token_ids == (2,)
    assert len(checkpoint.tensors) == len(tensors)
    for ours, theirs in (
        ("embed", "model.embed_tokens"),
        ("head", "lm_head"),
        ("norm", "model.norm"),
        ("layers.1.attn_norm", "model.layers.1.input_layernorm"),
        ("layers.1.mlp_norm", "model.layers.1.post_attention_layernorm"),
        ("layers.0.down", "model.layers.0.mlp.down_proj"),
    ):
        assert np.array_equal(values_of(checkpoint, ours), tensors[f"{theirs}.weight"])


@pytest.mark.parametrize("given", ["config.json", "model.safetensors", "model.safetensors.index.json"])
def test_a_file_of_the_folder_stands_for_it(tmp_path: Path, given: str) -> None:
    write_folder(tmp_path / "a", shards=3 if given.endswith("index.json") else 1)
    assert open_checkpoint(tmp_path / "a" / given).path == tmp_path / "a"


@pytest.mark.parametrize(("format", "store"), [("F16", lambda v: v.astype(np.float16)), ("BF16", bfloat16)])
def test_stored_types(tmp_path: Path, format: str, store: Any) -> None:
    stored = {name: store(values) for name, values in llama_tensors().items()}
    checkpoint = open_checkpoint(write_folder(tmp_path / "m", tensors=stored, shards=2))
    assert {tensor.format for tensor in checkpoint.tensors.values()} == {format}
    expected = llama_tensors()["model.layers.0.mlp.up_proj.weight"]
    assert np.allclose(values_of(checkpoint, "layers.0.up"), expected, rtol=2**-7)


def test_biases_tied_embeddings_and_windows_of_qwen(tmp_path: Path) -> None:
    config = llama_config(
        model_type="qwen2", architectures=["Qwen2ForCausalLM"], tie_word_embeddings=True, sliding_window=64
    )
    tensors = llama_tensors(biases=True)  # with an lm_head, as some writers store it although it is tied
    checkpoint = open_checkpoint(write_folder(tmp_path / "m", config=config, tensors=tensors))
    assert checkpoint.config.tie_embeddings
    assert "head" not in checkpoint.tensors
    assert checkpoint.config.sliding_window is None
    assert np.array_equal(
        values_of(checkpoint, "layers.0.k.bias"), tensors["model.layers.0.self_attn.k_proj.bias"]
    )
    config["use_sliding_window"] = True
    config["max_window_layers"] = 0
    checkpoint = open_checkpoint(write_folder(tmp_path / "m", config=config, tensors=tensors))
    assert checkpoint.config.sliding_window == 64
    assert checkpoint.config.window(0) == 64


def config_of(tmp_path: Path, layers: int = 1, **changes: Any) -> ModelConfig:
    config = llama_config(num_hidden_layers=layers, **changes)
    return open_checkpoint(write_folder(tmp_path / "m", config=config, tensors=llama_tensors(layers))).config


def test_windows_by_layer(tmp_path: Path) -> None:
    def windows(**changes: Any) -> list[int]:
        config = config_of(tmp_path, 3, **changes)
        return [config.window(layer) for layer in range(3)]

    qwen = {"model_type": "qwen2", "use_sliding_window": True, "sliding_window": 8}
    assert windows(**qwen, max_window_layers=2) == [0, 0, 8]
    assert windows(**qwen, max_window_layers=3) == [0, 0, 0]
    kinds = ["sliding_attention", "full_attention", "sliding_attention"]
    assert windows(**qwen, layer_types=kinds) == [8, 0, 8]
    assert windows(model_type="mistral", sliding_window=None) == [0, 0, 0]
    assert windows(model_type="mistral", sliding_window=16) == [16, 16, 16]
    assert windows(model_type="mistral") == [4096, 4096, 4096]


def test_tied_where_nothing_says_so(tmp_path: Path) -> None:
    config = llama_config(tie_word_embeddings=...)
    tied = open_checkpoint(write_folder(tmp_path / "a", config=config, tensors=llama_tensors(tied=True)))
    assert tied.config.tie_embeddings
    own = open_checkpoint(write_folder(tmp_path / "b", config=config))
    assert not own.config.tie_embeddings
    said = refusal(write_folder(tmp_path / "c", tensors=llama_tensors(tied=True)))
    assert "the tensor for 'head' is missing" in said


LLAMA3 = {
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
ROPES: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({}, {}),
    ({"type": "default"}, {}),
    ({"type": "mrope", "mrope_section": [4, 2, 2]}, {}),
    ({"type": "linear", "factor": 4.0}, {"scaling": "linear", "factor": 4.0, "original_max_position": 128}),
    ({"type": "linear", "factor": 1.0}, {}),
    ({"type": "dynamic", "factor": 2}, {"scaling": "dynamic", "factor": 2.0, "original_max_position": 128}),
    ({"type": "llama3", **LLAMA3}, {"scaling": "llama3", "factor": 8.0, "original_max_position": 64}),
    (
        {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32, "beta_fast": 16},
        {
            "scaling": "yarn",
            "factor": 4.0,
            "original_max_position": 32,
            "attention_factor": 0.1 * math.log(4) + 1,
            "beta_fast": 16.0,
        },
    ),
    (
        {"type": "yarn", "factor": 40.0, "mscale": 0.5, "mscale_all_dim": 1.0, "truncate": False},
        {
            "scaling": "yarn",
            "factor": 40.0,
            "original_max_position": 128,
            "attention_factor": (0.05 * math.log(40) + 1) / (0.1 * math.log(40) + 1),
            "truncate": False,
        },
    ),
    (
        {"type": "yarn", "factor": 4.0, "attention_factor": 1.25},
        {"scaling": "yarn", "factor": 4.0, "original_max_position": 128, "attention_factor": 1.25},
    ),
    (
        {
            "type": "su",
            "short_factor": [1] * 8,
            "long_factor": [2.5] * 8,
            "original_max_position_embeddings": 32,
        },
        {
            "scaling": "longrope",
            "factor": 4.0,
            "original_max_position": 32,
            "attention_factor": math.sqrt(1 + math.log(4) / math.log(32)),
            "short_factors": (1.0,) * 8,
            "long_factors": (2.5,) * 8,
        },
    ),
]


@pytest.mark.parametrize(("scaling", "expected"), ROPES)
def test_rope_as_both_versions_write_it(
    tmp_path: Path, scaling: dict[str, Any], expected: dict[str, Any]
) -> None:
    rope = RopeConfig(dim=16, theta=5e5, **expected)
    assert config_of(tmp_path, rope_theta=500000, rope_scaling=scaling or None).rope == rope
    if scaling:
        renamed = {**scaling, "rope_type": scaling["type"]}
        del renamed["type"]
        assert config_of(tmp_path, rope_theta=500000, rope_scaling=renamed).rope == rope
        scaling = renamed
    parameters = {**scaling, "rope_theta": 500000.0}
    assert config_of(tmp_path, rope_theta=..., rope_parameters=parameters).rope == rope


def test_a_length_beside_the_scaling_counts(tmp_path: Path) -> None:
    scaling = {"type": "longrope", "short_factor": [1] * 8, "long_factor": [2] * 8}
    rope = config_of(tmp_path, original_max_position_embeddings=16, rope_scaling=scaling).rope
    assert rope.original_max_position == 16
    assert rope.factor == 8.0


def test_a_part_of_each_head_is_rotated(tmp_path: Path) -> None:
    assert config_of(tmp_path, partial_rotary_factor=0.5).rope.dim == 8
    parameters = {"rope_theta": 100.0, "rope_type": "default", "partial_rotary_factor": 0.25}
    assert config_of(tmp_path, rope_theta=..., rope_parameters=parameters).rope == RopeConfig(
        dim=4, theta=100.0
    )


BAD_VALUES: list[tuple[str, Any]] = [
    ("hidden_size", 0),
    ("hidden_size", "32"),
    ("hidden_size", ...),
    ("hidden_size", True),
    ("hidden_size", 32.5),
    ("hidden_size", 10**18),
    ("vocab_size", -1),
    ("num_hidden_layers", 5000),
    ("num_attention_heads", 3),
    ("num_key_value_heads", 4),
    ("head_dim", 4096),
    ("hidden_act", "gelu"),
    ("hidden_act", 1),
    ("rms_norm_eps", 0),
    ("rms_norm_eps", math.nan),
    ("rms_norm_eps", math.inf),
    ("rope_theta", 0),
    ("rope_theta", "10000"),
    ("rope_scaling", [1]),
    ("tie_word_embeddings", "yes"),
    ("eos_token_id", [2, VOCAB]),
    ("eos_token_id", "2"),
    ("architectures", "LlamaForCausalLM"),
    ("model_type", ...),
    ("quantization_config", 4),
]


@pytest.mark.parametrize(("key", "value"), BAD_VALUES)
def test_a_bad_value_is_named(tmp_path: Path, key: str, value: Any) -> None:
    folder = write_folder(tmp_path / "m", config=llama_config(**{key: value}))
    with pytest.raises(ModelFileError, match=rf"config\.json: key '{key}'") as caught:
        open_checkpoint(folder)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("scaling", "expected"),
    [
        ({"type": "linear"}, "'rope_scaling.factor' is missing"),
        ({"type": "linear", "factor": 0}, "'rope_scaling.factor'"),
        ({"type": "llama3", **LLAMA3, "high_freq_factor": 1.0}, "'rope_scaling.high_freq_factor'"),
        ({"type": "longrope", "short_factor": [1] * 8}, "'long_factor' is missing"),
        (
            {"type": "longrope", "short_factor": [1] * 7, "long_factor": [1] * 8},
            "'rope_scaling.short_factor'",
        ),
        (
            {"type": "longrope", "short_factor": [0] * 8, "long_factor": [1] * 8},
            "'rope_scaling.short_factor'",
        ),
        ({"type": "spiral"}, "rope type 'spiral' is not supported"),
        ({"type": 3}, "'rope_scaling.type'"),
    ],
)
def test_a_bad_scaling_is_named(tmp_path: Path, scaling: dict[str, Any], expected: str) -> None:
    assert expected in refusal(write_folder(tmp_path / "m", config=llama_config(rope_scaling=scaling)))


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"architectures": ["LlamaForSequenceClassification"]}, "does not generate text"),
        ({"model_type": "mamba"}, "model type 'mamba' is not supported (supported: "),
        ({"num_hidden_layers": 2}, "the tensor for 'layers.1."),
        ({"num_hidden_layers": 4000}, "holds only"),
        ({"intermediate_size": 96}, "(64, 32), but the metadata ask for (96, 32)"),
        (
            {"quantization_config": {"quant_method": "abacus"}},
            "is quantized by 'abacus', which is not supported",
        ),
        ({"quantization_config": {}}, "'quantization_config.quant_method' is missing"),
    ],
)
def test_what_cannot_be_run_is_named(tmp_path: Path, changes: dict[str, Any], expected: str) -> None:
    assert expected in refusal(write_folder(tmp_path / "m", config=llama_config(**changes)))


@pytest.mark.parametrize("content", ["", "{", "[]", "\xff", '{"a": ' + "[" * 100_000])
def test_a_damaged_config_is_named(tmp_path: Path, content: str) -> None:
    folder = write_folder(tmp_path / "m")
    (folder / "config.json").write_bytes(content.encode("latin-1"))
    assert "config.json" in refusal(folder)


def test_tensors_that_do_not_belong(tmp_path: Path) -> None:
    ones = np.ones(HIDDEN, np.float32)

    def with_tensor(name: str) -> str:
        return refusal(write_folder(tmp_path / "m", tensors={**llama_tensors(), name: ones}))

    assert "'model.layers.1.input_layernorm.weight' has no place" in with_tensor(
        "model.layers.1.input_layernorm.weight"
    )
    for name in ("layers.0.q", "model.layers.00.input_layernorm.weight", "model.other", "embed"):
        assert f"'{name}' has no place" in with_tensor(name)
    assert "are the same one" in with_tensor("layers.0.input_layernorm.weight")


def test_what_is_not_needed_is_passed_over(tmp_path: Path) -> None:
    more = {
        "model.layers.0.self_attn.rotary_emb.inv_freq": np.ones(8, np.float32),
        "vision_tower.encoder.layers.0.weight": np.ones((3, 3), np.float64),
        "model.visual.blocks.0.attn.qkv.weight": np.ones((3, 3), np.float32),
    }
    checkpoint = open_checkpoint(write_folder(tmp_path / "m", tensors={**llama_tensors(), **more}))
    assert len(checkpoint.tensors) == len(llama_tensors())


@pytest.mark.parametrize(
    "prefix", ["language_model.model.", "model.language_model.", "model.", "language_model."]
)
def test_the_text_model_of_a_multimodal_one(tmp_path: Path, prefix: str) -> None:
    text = llama_config(model_type="mistral", architectures=..., eos_token_id=..., tie_word_embeddings=...)
    config = {
        "architectures": ["LlavaForConditionalGeneration"],
        "model_type": "llava",
        "text_config": text,
        "vision_config": {"hidden_size": 7},
        "tie_word_embeddings": True,
        "eos_token_id": 3,
    }
    tensors = {name.replace("model.", prefix, 1): a for name, a in llama_tensors(tied=True).items()}
    tensors["vision_tower.patch.weight"] = np.ones((2, 2), np.float32)
    checkpoint = open_checkpoint(write_folder(tmp_path / "m", config=config, tensors=tensors))
    assert checkpoint.config.hidden_size == HIDDEN
    assert checkpoint.config.tie_embeddings
    assert checkpoint.eos_token_ids == (3,)


@pytest.mark.parametrize(
    ("generation", "tokenizer", "expected"),
    [
        (None, None, (2,)),
        ({"eos_token_id": [5, 4]}, None, (4, 5)),
        ({"eos_token_id": 7}, None, (7,)),
        ({"temperature": 0.5}, None, (2,)),
        (None, {"eos_token": "<e>", "added_tokens_decoder": {"9": {"content": "<e>"}}}, (2, 9)),
        (None, {"eos_token": {"content": "<e>"}, "added_tokens_decoder": {"9": {"content": "<e>"}}}, (2, 9)),
        (None, {"eos_token": "<e>", "added_tokens_decoder": {"999": {"content": "<e>"}}}, (2,)),
        (None, {"eos_token": None, "added_tokens_decoder": []}, (2,)),
    ],
)
def test_end_tokens(tmp_path: Path, generation: Any, tokenizer: Any, expected: tuple[int, ...]) -> None:
    files = {"generation_config.json": generation, "tokenizer_config.json": tokenizer}
    folder = write_folder(tmp_path / "m", files={name: v for name, v in files.items() if v is not None})
    assert open_checkpoint(folder).eos_token_ids == expected


def test_the_fingerprint_is_that_of_the_content(tmp_path: Path) -> None:
    first = open_checkpoint(write_folder(tmp_path / "a")).fingerprint
    assert open_checkpoint(write_folder(tmp_path / "b")).fingerprint == first
    assert open_checkpoint(write_folder(tmp_path / "c", tensors=llama_tensors(seed=1))).fingerprint != first
    config = llama_config(rms_norm_eps=1e-6)
    assert open_checkpoint(write_folder(tmp_path / "d", config=config)).fingerprint != first


# --- folders of other kinds ------------------------------------------------------------------------


def test_pickles_are_refused_with_the_remedy(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "m")
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    said = refusal(folder)
    assert "pickle files (pytorch_model.bin)" in said
    assert "save_pretrained" in said
    (folder / "pytorch_model.bin").unlink()
    assert "no .safetensors files" in refusal(folder)


def test_folders_with_gguf_files(tmp_path: Path) -> None:
    tokens = ["<|endoftext|>", *"abc"]
    assert "is a folder without a model" in refusal(tmp_path)
    file = write_model(tmp_path / "one.gguf", tokens=tokens)
    assert open_checkpoint(tmp_path).path == file
    write_model(tmp_path / "two.gguf", tokens=tokens)
    said = refusal(tmp_path)
    assert "holds 2 GGUF files (one.gguf, two.gguf)" in said
    assert f"as {file}" in said
    (tmp_path / "two.gguf").unlink()
    file.unlink()
    (tmp_path / "adapter_config.json").write_text("{}")
    assert "holds an adapter" in refusal(tmp_path)


# --- fused tensors ---------------------------------------------------------------------------------


def stored(name: str, values: np.ndarray, *, deferred: bool = False) -> Tensor:
    data = np.ascontiguousarray(values, np.float32).view(np.uint8).reshape(-1)
    kept = Deferred(data.nbytes, lambda: data) if deferred else data
    return Tensor(name, values.shape, "F32", kept)


def read(tensor: Tensor) -> np.ndarray:
    assert tensor.data.nbytes == tensor.nbytes
    return tensor.data.view("<f4").reshape(tensor.shape)


@pytest.mark.parametrize("deferred", [False, True])
def test_cuts(deferred: bool) -> None:
    stack = np.arange(3 * 4 * 5, dtype=np.float32).reshape(3, 4, 5)
    whole = stored("w", stack, deferred=deferred)
    path = Path("m")
    cases = [
        (Cut("a", index=1), stack[1]),
        (Cut("a", 1, 3, index=2), stack[2, 1:3]),
        (Cut("a", 1, None, 2, index=0), stack[0, 1::2]),
        (Cut("a", index=2, transposed=True), stack[2].T),
        (Cut("a", 2, 5, index=1, transposed=True), stack[1].T[2:5]),
    ]
    for cut, expected in cases:
        part = cut_tensor(path, whole, cut, "x")
        assert part.shape == expected.shape
        assert np.array_equal(read(part), expected), cut
    matrix = stored("w", stack[0], deferred=deferred)
    assert np.array_equal(read(cut_tensor(path, matrix, Cut("a", 2), "x")), stack[0, 2:])
    assert np.array_equal(read(cut_tensor(path, matrix, Cut("a", index=3), "x")), stack[0, 3])
    vector = stored("w", stack[0, 0], deferred=deferred)
    assert np.array_equal(read(cut_tensor(path, vector, Cut("a", 1, 3), "x")), stack[0, 0, 1:3])


def test_rows_are_views() -> None:
    matrix = stored("w", np.ones((6, 4)))
    assert np.shares_memory(cut_tensor(Path("m"), matrix, Cut("a", 2, 4), "x").data, matrix.data)


@pytest.mark.parametrize(
    "cut",
    [Cut("a", 0, 5), Cut("a", 4), Cut("a", 3, 3), Cut("a", -1, 2), Cut("a", index=4), Cut("a", index=-1)],
)
def test_cuts_outside_are_refused(cut: Cut) -> None:
    with pytest.raises(ModelFileError, match="m: tensor 'w'"):
        cut_tensor(Path("m"), stored("w", np.ones((4, 4))), cut, "x")
    with pytest.raises(ModelFileError):
        cut_tensor(Path("m"), stored("w", np.ones(4)), Cut("a", index=0), "x")


def test_tables_with_fused_tensors_and_experts() -> None:
    table: Any = {
        "self_attn.qkv_proj": lambda config: [Cut("q", 0, 4), Cut("k", 4, 6), Cut("v", 6, 8)],
        "mlp.experts.gate_up_proj": lambda config: [
            Cut(f"experts.{e}.{name}", first, None, 2, index=e)
            for e in range(2)
            for first, name in enumerate(("gate", "up"))
        ],
        "mlp.experts.{e}.w2": "experts.{e}.down",
        "self_attn.sinks": "sinks",
    }
    random = np.random.default_rng(0)
    arrays = {
        "model.layers.3.self_attn.qkv_proj.weight": random.standard_normal((8, 6)),
        "model.layers.3.self_attn.qkv_proj.bias": random.standard_normal(8),
        "model.layers.3.mlp.experts.gate_up_proj": random.standard_normal((2, 10, 6)),
        "model.layers.3.mlp.experts.1.w2.weight": random.standard_normal((6, 5)),
        "model.layers.3.self_attn.sinks": random.standard_normal(2),
    }
    arrays = {name: values.astype(np.float32) for name, values in arrays.items()}
    config: Any = None
    tensors, names = canonical_tensors(Path("m"), [stored(n, v) for n, v in arrays.items()], config, table)
    got = {name.removeprefix("layers.3."): read(tensor) for name, tensor in tensors.items()}
    qkv, bias, gate_up, down, sinks = arrays.values()
    expected = {"q": qkv[:4], "k": qkv[4:6], "v": qkv[6:], "experts.1.down": down, "sinks": sinks}
    expected |= {"q.bias": bias[:4], "k.bias": bias[4:6], "v.bias": bias[6:]}
    for e in range(2):
        expected |= {f"experts.{e}.gate": gate_up[e, ::2], f"experts.{e}.up": gate_up[e, 1::2]}
    assert got.keys() == expected.keys()
    assert all(np.array_equal(got[name], expected[name]) for name in got)
    assert names["layers.3.k.bias"] == "model.layers.3.self_attn.qkv_proj.bias"
