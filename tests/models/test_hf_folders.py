"""Folders that transformers itself writes, opened here: the same logits as its own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_llama import assert_relative, logits_of

from tokentrail.checkpoints import open_checkpoint
from tokentrail.ops.native import NativeBackend

SETTINGS: dict[str, dict[str, Any]] = {
    "llama": {
        "attention_bias": True,
        "rope_parameters": {
            "rope_theta": 1e5,
            "rope_type": "llama3",
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 16,
        },
    },
    "mistral": {"sliding_window": 5, "head_dim": 32},
    "qwen2": {"tie_word_embeddings": True},
    "qwen2 with windows": {"use_sliding_window": True, "sliding_window": 6, "max_window_layers": 1},
}


@pytest.mark.oracle
@pytest.mark.parametrize("case", SETTINGS)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_logits(tmp_path: Path, case: str, dtype: str) -> None:
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    settings = {
        "vocab_size": 96,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 64,
        **SETTINGS[case],
    }
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(
        transformers.AutoConfig.for_model(case.partition(" ")[0], **settings),
        dtype=getattr(torch, dtype),
        attn_implementation="eager",
    )
    with torch.no_grad():
        for parameter in model.parameters():  # its own start is so small that nothing depends on anything
            parameter.normal_(1.0 if parameter.ndim == 1 else 0.0, 0.2)
    model.save_pretrained(tmp_path, max_shard_size="40KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 1
    tokens = np.random.default_rng(1).integers(0, 96, 40).tolist()
    with torch.no_grad():
        expected = model.float().eval()(torch.tensor([tokens])).logits[0].numpy()
    assert_relative(logits_of(open_checkpoint(tmp_path), tokens, NativeBackend(2)), expected)
