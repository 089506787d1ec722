"""Which files of a repository are downloaded, from their names."""

from __future__ import annotations

import pytest

from tokentrail.hub.selection import Selection, select
from tokentrail.protocol import ModelFileError

LLAMA = [
    ".gitattributes",
    "LICENSE",
    "README.md",
    "config.json",
    "generation_config.json",
    "model-00001-of-00002.safetensors",
    "model-00002-of-00002.safetensors",
    "model.safetensors.index.json",
    "original/consolidated.00.pth",
    "original/params.json",
    "special_tokens_map.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "onnx/model.onnx",
    "figures/a.png",
]
GGUFS = [
    "README.md",
    "Model-BF16.gguf",
    "Model-IQ4_XS.gguf",
    "Model-Q4_K_M.gguf",
    "Model-Q4_K_S.gguf",
    "Model-UD-Q4_K_XL.gguf",
    "Q8_0/Model-Q8_0-00001-of-00002.gguf",
    "Q8_0/Model-Q8_0-00002-of-00002.gguf",
    "imatrix_model.gguf",
    "mmproj-BF16.gguf",
]


def refusal(names: list[str], selector: str | None = None) -> str:
    with pytest.raises(ModelFileError) as caught:
        select("o/n", names, selector)
    message = str(caught.value)
    assert message.startswith("o/n: ")
    assert "\n" not in message
    return message


def test_a_model_in_safetensors() -> None:
    chosen = select("o/n", LLAMA, None)
    assert chosen.main is None
    assert set(chosen.files) == {
        "config.json",
        "generation_config.json",
        "model-00001-of-00002.safetensors",
        "model-00002-of-00002.safetensors",
        "model.safetensors.index.json",
        "special_tokens_map.json",
        "tokenizer.json",
        "tokenizer_config.json",
    }


def test_never_a_pickle_nor_a_second_copy() -> None:
    names = [
        *LLAMA,
        "pytorch_model.bin",
        "training_args.bin",
        "consolidated.safetensors",
        "model.safetensors",
        "adapter_model.safetensors",
        "run.py",
    ]
    chosen = select("o/n", names, None).files
    assert set(chosen) == set(select("o/n", LLAMA, None).files)
    without_index = [name for name in names if "index" not in name]
    assert "model.safetensors" in select("o/n", without_index, None).files
    assert "model-00001-of-00002.safetensors" not in select("o/n", without_index, None).files


def test_tokenizers_of_every_kind_and_templates() -> None:
    names = [
        "vocab.json",
        "merges.txt",
        "tokenizer.model",
        "added_tokens.json",
        "qwen.tiktoken",
        "chat_template.jinja",
        "chat_template.json",
        "additional_chat_templates/tool_use.jinja",
        "quantize_config.json",
        "config.json",
        "model.safetensors",
    ]
    assert set(select("o/n", names, None).files) == set(names)


@pytest.mark.parametrize(
    ("selector", "file"),
    [
        ("Q4_K_M", "Model-Q4_K_M.gguf"),
        ("q4_k_m", "Model-Q4_K_M.gguf"),
        ("IQ4_XS", "Model-IQ4_XS.gguf"),
        ("bf16", "Model-BF16.gguf"),
        ("UD-Q4_K_XL", "Model-UD-Q4_K_XL.gguf"),
        ("Q4_K_XL", "Model-UD-Q4_K_XL.gguf"),
        ("Model-Q4_K_S.gguf", "Model-Q4_K_S.gguf"),
        ("Model-Q4_K_S", "Model-Q4_K_S.gguf"),
    ],
)
def test_a_gguf_file_by_its_format_or_name(selector: str, file: str) -> None:
    assert select("o/n", GGUFS, selector) == Selection((file,), file)


def test_all_parts_of_a_split_file() -> None:
    parts = tuple(name for name in GGUFS if name.startswith("Q8_0/"))
    for selector in ("Q8_0", "q8_0", "Model-Q8_0", "Q8_0/Model-Q8_0", "Model-Q8_0-00002-of-00002.gguf"):
        assert select("o/n", GGUFS, selector) == Selection(parts, parts[0])
    fewer = [name for name in GGUFS if name != parts[0]]
    assert f"1 of 2 parts of Q8_0 are missing: {parts[0]}" in refusal(fewer, "Q8_0")


def test_what_there_is_is_told() -> None:
    listed = "BF16, IQ4_XS, Q4_K_M, Q4_K_S, Q8_0, UD-Q4_K_XL"
    said = refusal(GGUFS)
    assert f"holds 6 GGUF files: {listed}" in said
    assert "o/n:Q4_K_M" in said
    assert f"no GGUF file is Q5_K_M. There are: {listed}" in refusal(GGUFS, "Q5_K_M")
    twice = ["a-Q4_0.gguf", "b-Q4_0.gguf"]
    assert "2 GGUF files are q4_0. Name one: o/n:a-Q4_0.gguf, o/n:b-Q4_0.gguf" in refusal(twice, "q4_0")


def test_a_single_gguf_file_needs_no_name() -> None:
    assert select("o/n", ["x.gguf", "mmproj-x.gguf"], None).main == "x.gguf"
    assert select("o/n", ["x.gguf", *LLAMA], None).main is None
    assert select("o/n", ["x.gguf", *LLAMA], "x").main == "x.gguf"


def test_a_listing_cannot_lead_out_of_its_folder() -> None:
    assert select("o/n", ["../../a.gguf", "/b.gguf", "c/../../d.gguf", "e..gguf"], None).files == ("e..gguf",)


def test_repositories_without_a_model() -> None:
    assert "pickle files (pytorch_model.bin)" in refusal(["config.json", "pytorch_model.bin"])
    assert "holds an adapter" in refusal(["adapter_config.json", "adapter_model.safetensors"])
    assert "holds no model" in refusal(["README.md"])
    assert "holds no GGUF files" in refusal(LLAMA, "Q4_0")
