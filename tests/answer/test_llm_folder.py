"""A Hugging Face folder from its files to an answer: what transformers writes is answered as transformers answers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tokentrail import LLM, SamplingParams

TEXT = "The quick brown fox jumps over the lazy dog. Ein Satz mit Umlauten: äöü. 北京欢迎你！ " * 4
TEMPLATE = "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}{% endfor %}<|assistant|>"
SPECIAL = ["<|end|>", "<|user|>", "<|assistant|>", "<|system|>"]


def write_tokenizer(folder: Path) -> Any:
    """A byte-level BPE of 300 tokens; its `<|end|>` is token 0."""
    import tokenizers

    bpe = tokenizers.Tokenizer(tokenizers.models.BPE())
    bpe.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=300,
        special_tokens=SPECIAL,
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    bpe.train_from_iterator([TEXT], trainer)
    bpe.save(str(folder / "tokenizer.json"))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|end|>", "chat_template": TEMPLATE}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return bpe


@pytest.mark.oracle
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_answers(tmp_path: Path, dtype: str) -> None:
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    folder = tmp_path / "Tiny-0.1B"
    folder.mkdir()
    bpe = write_tokenizer(folder)
    torch.manual_seed(0)
    config = transformers.Qwen2Config(
        vocab_size=320,  # more rows than tokens, as in the real ones
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=256,
        tie_word_embeddings=True,
        eos_token_id=0,
    )
    model = transformers.Qwen2ForCausalLM(config).to(getattr(torch, dtype)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(1.0 if parameter.ndim == 1 else 0.0, 0.15)
    model.generation_config = transformers.GenerationConfig(
        eos_token_id=[0, 1], temperature=0.5, top_k=9, do_sample=True
    )
    model.save_pretrained(folder, max_shard_size="50KB")
    prompt = "The lazy dog 北京"
    chat = bpe.encode(f"<|user|>{prompt}<|assistant|>").ids
    model = model.float()
    expected = model.generate(
        torch.tensor([chat]), max_new_tokens=24, do_sample=False, temperature=None, top_k=None
    )[0, len(chat) :].tolist()

    exact = {"activation_dtype": "float32", "kv_cache_dtype": "float32"}
    with LLM(str(folder), kv_cache_memory=16 << 20, **exact) as llm:
        assert llm.get_default_sampling_params() == SamplingParams(temperature=0.5, top_k=9)
        greedy = SamplingParams(temperature=0, max_tokens=24)
        (answer,) = llm.chat([{"role": "user", "content": prompt}], greedy)
        assert answer.prompt_token_ids == chat
        assert answer.outputs[0].token_ids == expected
        text = bpe.decode([id for id in expected if id < bpe.get_vocab_size()])
        assert answer.outputs[0].text.strip("�") == text.strip("�")
        (default,) = llm.generate(prompt)
        seeded = SamplingParams(temperature=0.5, top_k=9, seed=default.seed)
        (again,) = llm.generate(prompt, seeded)
        assert again.outputs[0].token_ids == default.outputs[0].token_ids
