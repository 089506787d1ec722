"""Whatever stands in a folder's files, opening it gives a checkpoint or one line: never another error, and soon."""

from __future__ import annotations

import contextlib
import json
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hf_folders import llama_config, write_folder
from tokentrail.checkpoints import open_checkpoint
from tokentrail.checkpoints.hf_architectures import ARCHITECTURES
from tokentrail.checkpoints.hf_quantized import READERS
from tokentrail.protocol import ModelFileError


def listed(text: str) -> list[str]:
    return text.split()


# Of each kind of model, and of each quantization, which have most of their code in common.
CHECKS = settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])

numbers = st.one_of(
    st.integers(-2, 40),
    st.sampled_from([2**31, 2**62, -(2**63), 10**18, 0.5, -1.0, 1e-300, 1e300, float("nan"), float("inf")]),
)
words = st.sampled_from(
    [
        "silu",
        "gelu",
        "default",
        "linear",
        "dynamic",
        "yarn",
        "longrope",
        "llama3",
        "sliding_attention",
        "full_attention",
        "bfloat16",
        "a",
    ]
)
plain = st.one_of(st.none(), st.booleans(), numbers, words)
values = st.recursive(
    plain,
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(words, inner, max_size=3)),
    max_leaves=5,
)
ROPE_KEYS = [
    "rope_type",
    "type",
    "factor",
    "rope_theta",
    "original_max_position_embeddings",
    "low_freq_factor",
    "high_freq_factor",
    "beta_fast",
    "beta_slow",
    "mscale",
    "mscale_all_dim",
    "attention_factor",
    "short_factor",
    "long_factor",
    "truncate",
    "partial_rotary_factor",
    "full_attention",
    "sliding_attention",
]
KEYS = [
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "hidden_act",
    "hidden_activation",
    "max_position_embeddings",
    "rms_norm_eps",
    "rope_theta",
    "sliding_window",
    "use_sliding_window",
    "max_window_layers",
    "layer_types",
    "tie_word_embeddings",
    "eos_token_id",
    "partial_rotary_factor",
    "query_pre_attn_scalar",
    "attn_logit_softcapping",
    "final_logit_softcapping",
    "rope_local_base_freq",
    "sliding_window_pattern",
    "num_experts",
    "num_local_experts",
    "num_experts_per_tok",
    "moe_intermediate_size",
    "shared_expert_intermediate_size",
    "decoder_sparse_step",
    "mlp_only_layers",
    "norm_topk_prob",
    "moe_num_experts",
    "moe_k",
    "moe_layer_interval",
    "moe_layer_start_index",
    "moe_layer_end_index",
    "moe_num_shared_experts",
    "n_routed_experts",
    "original_max_position_embeddings",
    "attention_bias",
    "text_config",
    "architectures",
    "no_rope_layers",
    "no_rope_layer_interval",
    "use_bias",
    "rope_interleave",
    "experts_per_token",
]
ropes = st.dictionaries(st.sampled_from(ROPE_KEYS), values, max_size=6)
changes = st.dictionaries(st.sampled_from(KEYS), values, max_size=5)


def assert_opens_or_refuses(folder: Path) -> None:
    started = time.process_time()
    try:
        open_checkpoint(folder)
    except ModelFileError as error:
        message = str(error)
        assert "\n" not in message
        assert len(message) < 2000
    assert time.process_time() - started < 5


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_folder(tmp_path / "m")


@pytest.mark.parametrize("model_type", sorted(ARCHITECTURES))
@CHECKS
@given(
    changed=changes,
    scaling=st.one_of(st.none(), ropes),
    key=st.sampled_from(["rope_scaling", "rope_parameters"]),
)
def test_any_configuration(
    folder: Path, model_type: str, changed: dict[str, Any], scaling: Any, key: str
) -> None:
    config = llama_config(model_type=model_type, **{key: scaling}) | changed
    (folder / "config.json").write_text(json.dumps(config))
    assert_opens_or_refuses(folder)


@pytest.mark.parametrize("method", sorted(READERS))
@CHECKS
@given(
    settings=st.dictionaries(
        st.sampled_from(
            [
                "bits",
                "group_size",
                "desc_act",
                "sym",
                "checkpoint_format",
                "version",
                "zero_point",
                "w_bit",
                "q_group_size",
                "fmt",
                "weight_block_size",
                "activation_scheme",
                "config_groups",
                "format",
                "ignore",
                "modules_to_not_convert",
                "dynamic",
            ]
        ),
        values,
        max_size=5,
    )
)
def test_any_quantization(folder: Path, method: str, settings: dict[str, Any]) -> None:
    config = llama_config(quantization_config={**settings, "quant_method": method})
    (folder / "config.json").write_text(json.dumps(config))
    assert_opens_or_refuses(folder)


@pytest.mark.parametrize(
    "name", ["generation_config.json", "tokenizer_config.json", "model.safetensors.index.json"]
)
@CHECKS
@given(
    content=st.one_of(
        values,
        st.dictionaries(
            st.sampled_from(
                ["eos_token_id", "eos_token", "weight_map", "added_tokens_decoder", "chat_template"]
            ),
            values,
        ),
    )
)
def test_any_other_file(folder: Path, name: str, content: Any) -> None:
    (folder / name).write_text(json.dumps(content))
    assert_opens_or_refuses(folder)


@CHECKS
@given(
    flips=st.lists(st.tuples(st.integers(0, 1 << 20), st.integers(0, 255)), min_size=1, max_size=6),
    cut=st.integers(0, 1 << 20),
)
def test_flipped_and_cut_files(folder: Path, flips: list[tuple[int, int]], cut: int) -> None:
    for name in ("config.json", "model.safetensors"):
        path = folder / name
        whole = path.read_bytes()
        content = bytearray(whole)
        for position, value in flips:
            content[position % min(len(content), 3000)] = value
        path.write_bytes(content if cut % 3 else content[: cut % len(content)])
        assert_opens_or_refuses(folder)
        with contextlib.suppress(ModelFileError):
            for tensor in open_checkpoint(folder).tensors.values():
                assert tensor.data.nbytes == tensor.nbytes
        path.write_bytes(whole)
