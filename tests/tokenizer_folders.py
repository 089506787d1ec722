"""Tokenizer files as Hugging Face folders have them: trained on a little text, with the settings of real families."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path
from typing import Any

from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)

from tokentrail.protocol import InvalidRequest, ModelFileError
from tokentrail.text import Tokenizer as OurTokenizer
from tokentrail.text.pretokenizers import PRE_TOKENIZERS

TEXT = (
    """The quick brown fox jumps over the lazy dog. It's 1234567890 o'clock, they'll say: don't!
def f(x: int) -> int:\n    if x < 2:\n        return x\n    return f(x - 1) + f(x - 2)  # fib\n\n\n
你好，世界！今天天气怎么样？我们去公园吧。こんにちは、世界。한국어 텍스트 Привет, мир! ÀÉÎ école ñandú Ελληνικά مرحبا
<html><b>bold</b></html> {"a": [1, 2.5e-3, null]} 👩‍👩‍👧‍👦 🇩🇪 ½ ² x\u00a0y\u2003z\t\ttab
"""
    * 3
)
SPECIAL = ["<s>", "</s>", "<unk>", "<|user|>", "<|end|>"]
WORDS = pre_tokenizers.Sequence


def _split(pattern: str) -> pre_tokenizers.Split:
    return pre_tokenizers.Split(Regex(pattern), "isolated")


def _byte_level(pre: str, **bpe: Any) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE(**bpe))
    patterns = PRE_TOKENIZERS[pre].patterns
    bytes_only = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = WORDS([*map(_split, patterns), bytes_only])
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=700,
        special_tokens=SPECIAL,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([TEXT], trainer)
    return tokenizer


def _characters(model: models.BPE | models.Unigram, normalizer: Any, words: Any, decoder: Any) -> Tokenizer:
    tokenizer = Tokenizer(model)
    tokenizer.normalizer, tokenizer.decoder = normalizer, decoder
    if words is not None:
        tokenizer.pre_tokenizer = words
    bytes_ = [f"<0x{byte:02X}>" for byte in range(256)]
    common = {"vocab_size": 900, "special_tokens": [*SPECIAL, *bytes_], "show_progress": False}
    trainer = (
        trainers.BpeTrainer(**common, limit_alphabet=100)
        if isinstance(model, models.BPE)
        else trainers.UnigramTrainer(**common, unk_token="<unk>")
    )
    # Without spaces within a piece, which only the absence of a pre-tokenizer would allow.
    plain, tokenizer.pre_tokenizer = tokenizer.pre_tokenizer, pre_tokenizers.Metaspace(prepend_scheme="first")
    tokenizer.normalizer = None
    tokenizer.train_from_iterator([TEXT], trainer)
    tokenizer.pre_tokenizer = plain or WORDS([])
    tokenizer.normalizer = normalizer
    return tokenizer


def _fallback(*, strip: bool) -> decoders.Sequence:
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    return decoders.Sequence([*steps, decoders.Strip(" ", 1, 0)] if strip else steps)


def _around(tokenizer: Tokenizer, single: str) -> Tokenizer:
    ids = [(text, tokenizer.token_to_id(text)) for text in ("<s>", "</s>")]
    tokenizer.post_processor = processors.TemplateProcessing(single=single, special_tokens=ids)
    return tokenizer


def qwen2() -> Tokenizer:
    tokenizer = _byte_level("qwen2")
    tokenizer.normalizer = normalizers.NFC()
    return tokenizer


def llama3() -> Tokenizer:
    return _around(_byte_level("llama3", ignore_merges=True), "<s> $A")


def deepseek() -> Tokenizer:
    return _around(_byte_level("deepseek-v3"), "<s> $A")


def gpt_oss() -> Tokenizer:
    return _byte_level("gpt-4o")


def llama2() -> Tokenizer:
    normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    bpe = models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True)
    return _around(_characters(bpe, normalizer, None, _fallback(strip=True)), "<s> $A")


def mistral() -> Tokenizer:
    bpe = models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True)
    words = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    return _around(_characters(bpe, None, words, _fallback(strip=True)), "<s> $A")


def gemma() -> Tokenizer:
    bpe = models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True)
    words = pre_tokenizers.Split(" ", "merged_with_previous")
    return _around(_characters(bpe, normalizers.Replace(" ", "▁"), words, _fallback(strip=False)), "<s> $A")


def t5() -> Tokenizer:
    words = pre_tokenizers.Metaspace(prepend_scheme="always")
    decoder = decoders.Metaspace(prepend_scheme="always")
    return _around(_characters(models.Unigram(), normalizers.NFKC(), words, decoder), "$A </s>")


def bert() -> Tokenizer:
    tokenizer = Tokenizer(models.WordPiece(unk_token="<unk>"))
    tokenizer.normalizer, tokenizer.pre_tokenizer = (
        normalizers.BertNormalizer(),
        pre_tokenizers.BertPreTokenizer(),
    )
    tokenizer.decoder = decoders.WordPiece()
    tokenizer.train_from_iterator(
        [TEXT], trainers.WordPieceTrainer(vocab_size=500, special_tokens=SPECIAL, show_progress=False)
    )
    return _around(tokenizer, "<s> $A </s>")


FAMILIES: dict[str, Callable[[], Tokenizer]] = {
    function.__name__: function
    for function in (qwen2, llama3, deepseek, gpt_oss, llama2, mistral, gemma, t5, bert)
}


@cache
def trained(family: str) -> str:
    """tokenizer.json of a family."""
    tokenizer = FAMILIES[family]()
    # As published ones have them, with the flags that change what text is taken along.
    tokenizer.add_tokens([AddedToken("<think>", normalized=False), AddedToken("  ", normalized=False)])
    tokenizer.add_tokens([AddedToken("Word", single_word=True), AddedToken("<Ñ>", normalized=True)])
    tokenizer.add_special_tokens([AddedToken("<left>", lstrip=True), AddedToken("<right>", rstrip=True)])
    value = json.loads(tokenizer.to_str())
    # The trainer makes byte tokens special; published files have them in the vocabulary alone.
    value["added_tokens"] = [
        token for token in value["added_tokens"] if not token["content"].startswith("<0x")
    ]
    return json.dumps(value)


def write_tokenizer(folder: Path, family: str, **settings: Any) -> Path:
    """A folder with tokenizer.json and tokenizer_config.json; `settings` go into the latter."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "tokenizer.json").write_text(trained(family), encoding="utf-8")
    values = {
        "bos_token": "<s>",
        "eos_token": "</s>",
        "tokenizer_class": "PreTrainedTokenizerFast",
        **settings,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(values), encoding="utf-8")
    return folder


def assert_works_or_says_why(open_folder: Callable[[], OurTokenizer], texts: Iterable[str]) -> None:
    """Of damaged files: a tokenizer that works somehow, or one line that says why there is none."""
    try:
        tokenizer = open_folder()
    except ModelFileError as error:
        assert "\n" not in str(error)  # noqa: PT017
        return
    for text in texts:
        try:
            ids = tokenizer.encode(text)
        except InvalidRequest:
            continue
        tokenizer.decode(ids)
