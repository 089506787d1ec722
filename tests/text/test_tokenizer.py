"""Tokenizers against llama.cpp on the same files: the ids must be equal."""

from __future__ import annotations

import random
import re
import time
import unicodedata
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gguf_files import write_model
from llama_oracle import LlamaCpp
from tokentrail.checkpoints import Checkpoint, TokenizerSource, open_checkpoint
from tokentrail.protocol import InvalidRequest, ModelFileError
from tokentrail.text import Tokenizer, build_tokenizer
from tokentrail.text.byte_level import _byte_alphabet
from tokentrail.text.pretokenizers import PRE_TOKENIZERS

TEXTS = [
    "",
    "Hello, world! It's a test; they'll see we've DON'T.",
    "The quick brown fox jumps over 13 lazy dogs, 1234567890 times (3.14159).",
    "你好，世界！今天天气怎么样？我们去公园吧。",
    "こんにちは、世界。カタカナ ｶﾀｶﾅ 한국어 텍스트",
    "Привет, МИР! приветМир Ελληνικά مرحبا بالعالم हिन्दी में ไทย",
    "👩‍👩‍👧‍👦 family 🇩🇪 flag 👍🏽 skin ✨🚀 a️⃣",
    "def f(x: int) -> int:\n\tif x < 2:\n        return x\n    return f(x - 1) + f(x - 2)  # fib\n",
    '{"a": [1, 2.5e-3, null], "b": {"c": "\\u00e9"}}',
    "SELECT * FROM t WHERE a <> 'b' AND c != \"d\"; -- x",
    "   leading",
    "trailing   ",
    " " * 100 + "x" + " " * 33,
    "a\n\n\n b\r\n\r\n  c\t\t\td \n ",
    "\u00a0\u2003\u3000 x\u0085y\u2028z\u200b\u200d\ufeff",
    "\x00\x01\x02\x1f\x7f\x80\x9f",
    "ÀÉÎ ÉcoleÉ ñandú ÑÑ éÉ ǅ ß ſ 'ſ 'S",
    "e\u0301 combining a\u0308\u0308 \u0301alone",
    "½ ² ٣٤ Ⅷ ๔ ①",
    "HTTPServer camelCase XMLHttpRequest snake_case https://a.b/c?d=e&f=g#h",
    "$100+200=300 <a href='x'>~^|`\\ foo/bar//baz\n/",
    "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n",
    "x<|im_start|><|im_end|>y <|endoftext|> z",
    "<|im_start|",
    "<|<|im_start|>|>",
    "a" * 500,
    "\U0010fffd\ufffd\ufffe\U0001f9ff",
]


def check(ours: Tokenizer, theirs: LlamaCpp, text: str) -> None:
    for parse in (True, False):
        for add in (True, False):
            expected = theirs.encode(text, add_special=add, parse_special=parse)
            assert ours.encode(text, add_special_tokens=add, parse_special=parse) == expected, repr(text)


@pytest.mark.parametrize("text", TEXTS)
def test_ids_equal_llama_cpp(text: str, demo_tokenizer: Tokenizer, demo_llama: LlamaCpp) -> None:
    check(demo_tokenizer, demo_llama, text)


# Unassigned code points are left out: what they count as depends on a library's version of Unicode.
ALPHABET = _byte_alphabet()
CHARACTERS = st.characters(exclude_categories=("Cs", "Cn"))
WORDS = st.sampled_from(
    ["<|im_start|>", "<|im_end|>", "'s", "'LL", "  ", "\n", " the", "123", "世界", "👩‍👧", "<0x0A>"]
)


@settings(max_examples=300, deadline=None)
@given(text=st.lists(st.one_of(st.text(CHARACTERS, max_size=8), WORDS), max_size=8).map("".join))
def test_random_text_equals_llama_cpp(text: str, demo_tokenizer: Tokenizer, demo_llama: LlamaCpp) -> None:
    for parse in (True, False):
        expected = demo_llama.encode(text, parse_special=parse)
        assert demo_tokenizer.encode(text, parse_special=parse) == expected
    # This vocabulary lacks a few control characters, which vanish.
    encodable = bytes(
        byte for byte in text.encode() if demo_tokenizer.token_to_id(ALPHABET[byte]) is not None
    )
    assert demo_tokenizer.decode_bytes(expected, skip_special_tokens=False) == encodable


def test_bytes_that_the_vocabulary_lacks_keep_their_neighbours_apart(
    demo_tokenizer: Tokenizer, demo_llama: LlamaCpp
) -> None:
    """`">` is a token of its own; with a character between them that no token has, they are two."""
    text = '"\x06> " \x06>\x06\x06'
    assert demo_tokenizer.token_to_id("Ĩ") is not None
    assert demo_tokenizer.token_to_id(ALPHABET[6]) is None
    assert demo_tokenizer.encode(text) == demo_llama.encode(text)


def test_long_text(demo_tokenizer: Tokenizer, demo_llama: LlamaCpp) -> None:
    text = "".join(random.Random(0).choices(TEXTS, k=300))
    assert demo_tokenizer.encode(text) == demo_llama.encode(text)


def test_special_tokens_are_text_unless_parsed(demo_tokenizer: Tokenizer) -> None:
    assert demo_tokenizer.encode("<|im_start|>") == [1]
    ids = demo_tokenizer.encode("<|im_start|>", parse_special=False)
    assert len(ids) > 1
    assert not any(map(demo_tokenizer.is_special, ids))
    assert demo_tokenizer.decode(ids) == "<|im_start|>"


def test_lone_surrogates_become_replacement_characters(demo_tokenizer: Tokenizer) -> None:
    assert demo_tokenizer.encode("a\ud800b\udfff") == demo_tokenizer.encode("a\ufffdb\ufffd")
    assert demo_tokenizer.encode("\ud83d\ude00") == demo_tokenizer.encode("😀")


def test_each_token_decodes_as_in_llama_cpp(demo_tokenizer: Tokenizer, demo_llama: LlamaCpp) -> None:
    valid = []
    for id in range(0, demo_tokenizer.vocab_size, 23):
        try:
            demo_tokenizer.token_bytes(id).decode()
        except UnicodeDecodeError:
            continue
        valid.append(id)
    assert len(valid) > 1500
    text = demo_tokenizer.decode(valid, skip_special_tokens=False)
    assert text == demo_llama.decode(valid)


def test_special_tokens_are_skipped_or_shown(demo_tokenizer: Tokenizer) -> None:
    ids = demo_tokenizer.encode("<|im_start|>user\nHi<|im_end|>")
    assert demo_tokenizer.decode(ids) == "user\nHi"
    assert demo_tokenizer.decode(ids, skip_special_tokens=False) == "<|im_start|>user\nHi<|im_end|>"


def test_properties(demo_tokenizer: Tokenizer) -> None:
    assert demo_tokenizer.vocab_size == 49152
    assert demo_tokenizer.bos_token_id == 1
    assert demo_tokenizer.eos_token_ids == (0, 2)
    assert demo_tokenizer.id_to_token(2) == "<|im_end|>"
    assert demo_tokenizer.token_to_id("<|im_end|>") == 2
    assert demo_tokenizer.token_to_id("no such token") is None
    assert demo_tokenizer.token_bytes(demo_tokenizer.encode(" the")[0]) == b" the"
    assert demo_tokenizer.is_special(2)
    assert not demo_tokenizer.is_special(300)


@pytest.mark.parametrize("id", [-1, 49152, 2**40])
def test_ids_outside_the_vocabulary(demo_tokenizer: Tokenizer, id: int) -> None:
    calls = (
        demo_tokenizer.token_bytes,
        demo_tokenizer.id_to_token,
        demo_tokenizer.is_special,
        lambda id: demo_tokenizer.decode([id]),
        lambda id: demo_tokenizer.decode([id], skip_special_tokens=False),
    )
    for call in calls:
        with pytest.raises(InvalidRequest, match=f"Token id {id} is not in the vocabulary of 49152"):
            call(id)


def test_building_is_quick(demo_checkpoint: Checkpoint) -> None:
    times = []
    for _ in range(3):
        start = time.process_time()  # not the time that other programs take
        Tokenizer.from_checkpoint(demo_checkpoint)
        times.append(time.process_time() - start)
    assert min(times) < 0.25


# --- pre-tokenizers ----------------------------------------------------------------------------------

RULE_NAMES = sorted({rule: name for name, rule in sorted(PRE_TOKENIZERS.items())}.values())
"""One name for each distinct rule."""
CASED = {
    "tekken",
    "gpt-4o",
    "talkie",
    "youtu",
    "granite-embed-multi-97m",
    "tiny_aya",
    "cohere2moe",
    "kimi-k2",
}
"""Their patterns tell upper from lower case in all scripts, as the models' own tokenizers do; llama.cpp tells
it for ASCII only, and treats combining marks differently. So they are compared without either."""
CASELESS = {"youtu", "tiny_aya", "cohere2moe", "kimi-k2"}
"""And here llama.cpp does not tell it at all."""
DIGITS_APART = {"afmoe", "tiny_aya", "cohere2moe"}
"""Their own tokenizers cut digits off first; llama.cpp leaves what stands before a number with it until the next
pattern, which sees other white space then. So white space before digits is not compared."""
POOL = "aZés É1٣7 \n\r\t.,!?'\"$s你の가к/_-~<>=👍\u0301\u00a0。＄ll  "


def pair_vocabulary(texts: Sequence[str], alphabet: dict[int, str] | None) -> tuple[list[str], list[str]]:
    """A vocabulary that shows where words end: any two bytes (of those in `texts`) merge, but no three.

    Without an `alphabet` of bytes, any two characters, and bytes are there as a fallback.
    """
    if alphabet is None:
        letters = sorted({char.replace(" ", "▁") for text in texts for char in text if char != "👍"})
        spelled = [f"<0x{byte:02X}>" for byte in range(256)]
        return [*spelled, *letters, *(a + b for a in letters for b in letters), "<|end|>"], [
            f"{a} {b}" for a in letters for b in letters
        ]
    used = sorted({byte for text in texts for byte in text.encode()})
    singles = list(ALPHABET.values())
    pairs = [(ALPHABET[a], ALPHABET[b]) for a in used for b in used]
    return [*singles, *(a + b for a, b in pairs), "<|end|>"], [f"{a} {b}" for a, b in pairs]


@pytest.mark.parametrize("name", RULE_NAMES)
def test_words_are_cut_as_in_llama_cpp(name: str, tmp_path: Path) -> None:
    choose = random.Random(name)
    pool = POOL
    if name in CASED:
        pool = "".join(c for c in POOL if c.isascii() or not (c.isalpha() or unicodedata.combining(c)))
    texts = ["".join(choose.choices(pool, k=choose.randint(1, 24))) for _ in range(250)]
    if name in CASELESS:
        texts = [text.lower() for text in texts]
    if name in DIGITS_APART:
        texts = [re.sub(r"\s+(?=\d)", "", text) for text in texts]
    spelling = ALPHABET if PRE_TOKENIZERS[name].byte_level else None
    tokens, merges = pair_vocabulary(texts, spelling)
    path = write_model(
        tmp_path / "words.gguf",
        tokens=tokens,
        merges=merges,
        pre=name or None,
        types=[6 if re.fullmatch("<0x..>", text) else 1 for text in tokens[:-1]] + [3],
        metadata={
            "tokenizer.ggml.bos_token_id": len(tokens) - 1,
            "tokenizer.ggml.eos_token_id": len(tokens) - 1,
        },
    )
    ours, theirs = Tokenizer.from_checkpoint(open_checkpoint(path)), LlamaCpp(path)
    # All at once, and one by one where that differs, to name the text.
    joined = "<|end|>".join(texts)
    if ours.encode(joined) != theirs.encode(joined):
        for text in texts:
            assert ours.encode(text) == theirs.encode(text), repr(text)
        pytest.fail("texts agree one by one but not together")


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        # From the models' own tokenizer.json patterns, where llama.cpp differs.
        ("tekken", "ÉcoleÉ", ["École", "É"]),
        ("gpt-4o", "приветМир", ["привет", "Мир"]),
        ("gpt-4o", "ÉCOLE'S", ["ÉCOLE'S"]),
        ("tekken", "12", ["1", "2"]),
        ("gpt-4o", "1234", ["123", "4"]),
    ],
)
def test_cased_words(name: str, text: str, words: list[str]) -> None:
    from tokenizers import Regex
    from tokenizers.pre_tokenizers import Split

    (pattern,) = PRE_TOKENIZERS[name].patterns
    assert [word for word, _ in Split(Regex(pattern), "isolated").pre_tokenize_str(text)] == words


def test_defaults_that_come_with_a_name() -> None:
    tokens = [*_byte_alphabet().values(), "ab", "<s>"]
    source = TokenizerSource(
        kind="gpt2", pre="llama-bpe", tokens=tokens, merges=["a b"], bos_token_id=257, eos_token_id=257
    )
    assert build_tokenizer(source).encode("ab") == [257, 256]
    assert build_tokenizer(source).encode("ab", add_special_tokens=False) == [256]
    assert build_tokenizer(replace(source, add_bos=False)).encode("ab") == [256]
    assert build_tokenizer(replace(source, add_eos=True)).encode("ab") == [257, 256, 257]
    assert build_tokenizer(replace(source, pre="qwen2")).encode("ab") == [256]


def test_user_defined_tokens_are_found_without_parsing() -> None:
    tokens = [*_byte_alphabet().values(), "ab", "<think>", "<s>"]
    types = [1] * 257 + [4, 3]
    source = TokenizerSource(
        kind="gpt2", pre="gpt-2", tokens=tokens, merges=["a b"], token_types=np.array(types), bos_token_id=258
    )
    tokenizer = build_tokenizer(source)
    assert tokenizer.encode("ab<think>", parse_special=False) == [256, 257]
    assert 258 not in tokenizer.encode("<s>", parse_special=False)
    assert tokenizer.encode("<s>") == [258]
    assert tokenizer.decode([256, 257, 258]) == "ab<think>"


def test_the_longest_special_token_wins() -> None:
    tokens = [*_byte_alphabet().values(), "ab", "<a>", "<a><b>", "<b>"]
    source = TokenizerSource(
        kind="gpt2", pre="gpt-2", tokens=tokens, merges=["a b"], token_types=np.array([1] * 257 + [3] * 3)
    )
    assert build_tokenizer(source).encode("<a><b><a><a><b>") == [258, 257, 258]


GOOD = TokenizerSource(kind="gpt2", pre="gpt-2", tokens=[*_byte_alphabet().values(), "ab"], merges=["a b"])


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"kind": "bert"}, "tokenizer model 'bert' is not supported"),
        ({"pre": "no-such"}, "pre-tokenizer 'no-such' is not known"),
        ({"merges": []}, "merges are missing"),
        ({"tokens": [*GOOD.tokens, "a"]}, "the token 'a' is there twice"),
        ({"add_bos": True}, "beginning-of-sequence token, but its id is missing"),
        ({"add_eos": True}, "end-of-sequence token, but its id is missing"),
    ],
)
def test_tokenizers_that_cannot_be_built(change: dict, expected: str) -> None:
    with pytest.raises(ModelFileError, match=expected) as caught:
        build_tokenizer(replace(GOOD, **change), origin="model.gguf")
    assert str(caught.value).startswith("model.gguf: ")
    assert "\n" not in str(caught.value)


def test_merges_that_can_never_matter_do_not_hinder() -> None:
    tokenizer = build_tokenizer(replace(GOOD, merges=["a b", "x y", "nonsense", "ab ab"]))
    assert tokenizer.encode("abxy") == [256, *tokenizer.encode("x"), *tokenizer.encode("y")]


def test_empty_tokens_do_not_hinder() -> None:
    tokenizer = build_tokenizer(replace(GOOD, tokens=[*GOOD.tokens, "", ""]))
    assert tokenizer.encode("ab") == [256]
    assert tokenizer.token_bytes(257) == b""


WORD = st.text("ab ▁Ġ<|>0xA\n\u0120é", max_size=6)


@settings(max_examples=200, deadline=None)
@given(data=st.data())
def test_any_vocabulary_is_built_or_refused(data: st.DataObject) -> None:
    """A vocabulary from a file nobody has read: it may make no sense, but must not bring anything down."""
    tokens = data.draw(st.lists(WORD, min_size=1, max_size=20, unique=True))
    id_or_none = st.one_of(st.none(), st.integers(0, len(tokens) - 1))
    source = TokenizerSource(
        kind=data.draw(st.sampled_from(["gpt2", "llama"])),
        pre=data.draw(st.sampled_from(sorted(PRE_TOKENIZERS))),
        tokens=tokens,
        scores=data.draw(st.one_of(st.none(), st.just(np.linspace(-1, 1, len(tokens), dtype=np.float32)))),
        token_types=data.draw(
            st.one_of(
                st.none(),
                st.lists(st.integers(0, 6), min_size=len(tokens), max_size=len(tokens)).map(np.array),
            )
        ),
        merges=data.draw(st.lists(st.one_of(WORD, st.sampled_from(["a b", "a a", "Ġ a"])), max_size=10)),
        bos_token_id=data.draw(id_or_none),
        eos_token_id=data.draw(id_or_none),
        unk_token_id=data.draw(id_or_none),
        add_bos=data.draw(st.sampled_from([None, True, False])),
    )
    try:
        tokenizer = build_tokenizer(source)
    except ModelFileError as error:
        assert "\n" not in str(error)  # noqa: PT017
        return
    text = data.draw(st.text(max_size=20))
    for parse in (True, False):
        ids = tokenizer.encode(text, parse_special=parse)
        assert all(0 <= id < len(tokens) for id in ids)
        tokenizer.decode(ids, text_start=True)
