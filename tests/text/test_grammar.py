"""Grammars and matchers, over a byte-level and a SentencePiece vocabulary."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from tokentrail.checkpoints import TokenizerSource, demo_model_path, open_checkpoint
from tokentrail.protocol import InvalidRequest, StructuredOutputsParams
from tokentrail.text import Tokenizer, build_tokenizer
from tokentrail.text.grammar import GrammarTokenizer, Matcher, build_grammar
from tokentrail.text.grammar.matcher import MaskWriter

PERSON: dict[str, Any] = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 12}, "age": {"type": "integer"}},
    "required": ["name", "age"],
    "additionalProperties": False,
}


def sentencepiece() -> Tokenizer:
    """Pieces, bytes, and the space that this kind puts before the first word."""
    words = [
        '"',
        "{",
        "}",
        ":",
        ",",
        "a",
        "g",
        "e",
        "ag",
        "age",
        '":',
        '{"',
        "n",
        "m",
        "na",
        "me",
        "name",
        "1",
        "2",
        "▁",
        "▁a",
    ]
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *words]
    types = [2, 3, 3, *[6] * 256, *[1] * len(words)]
    source = TokenizerSource(
        kind="llama",
        tokens=tokens,
        scores=np.array([0.0] * 259 + [-float(i) for i in range(len(words))], np.float32),
        token_types=np.array(types, np.int32),
        bos_token_id=1,
        eos_token_id=2,
        unk_token_id=0,
    )
    return build_tokenizer(source)


@pytest.fixture(scope="module")
def demo() -> Tokenizer:
    return Tokenizer.from_checkpoint(open_checkpoint(demo_model_path()))


@pytest.fixture(scope="module", params=["demo", "sentencepiece"])
def tokenizer(request: pytest.FixtureRequest, demo: Tokenizer) -> Tokenizer:
    return demo if request.param == "demo" else sentencepiece()


@pytest.fixture(scope="module")
def grammars(tokenizer: Tokenizer) -> GrammarTokenizer:
    return GrammarTokenizer(tokenizer, tokenizer.vocab_size + 7)


def masks(grammars: GrammarTokenizer, matcher: Matcher, guessed: list[int] | None = None) -> list[list[int]]:
    """Allowed tokens, now and after each of the guesses."""
    found = np.zeros((1 + len(guessed or []), grammars.mask_words), np.uint32)
    MaskWriter(1).write(found, [(matcher, 0, guessed or [])])
    bits = np.unpackbits(found.view(np.uint8), axis=1, bitorder="little")[:, : grammars.vocab_size]
    return [np.flatnonzero(row).tolist() for row in bits]


def compiled(grammars: GrammarTokenizer, **wanted: Any) -> Matcher:
    return grammars.compile(build_grammar(StructuredOutputsParams(**wanted)))


def test_random_answers_are_what_was_asked_for(tokenizer: Tokenizer, grammars: GrammarTokenizer) -> None:
    random = np.random.default_rng(0)
    start = compiled(grammars, json=PERSON)
    for _ in range(10):
        matcher = start.copy()
        data = b""
        while not matcher.finished:
            (allowed,) = masks(grammars, matcher)
            assert max(allowed) < tokenizer.vocab_size
            token = int(random.choice(allowed))
            if token in tokenizer.eos_token_ids:
                assert matcher.accepting
                break
            assert matcher.consume(token)
            data += tokenizer.token_bytes(token)
        value = json.loads(data)
        assert list(value) == ["name", "age"]
        assert isinstance(value["age"], int)
        assert len(value["name"]) <= 12


def test_forced_tokens_are_the_only_ones_allowed(tokenizer: Tokenizer, grammars: GrammarTokenizer) -> None:
    matcher = compiled(grammars, json=PERSON)
    forced = matcher.forced()
    assert b"".join(map(tokenizer.token_bytes, forced)) in b'{"name":"'
    assert forced
    rows = masks(grammars, matcher, forced)
    for token, row in zip(forced, rows, strict=False):
        assert row == [token]
        assert matcher.forced()[0] == token
        assert masks(grammars, matcher) == [row]
        assert matcher.consume(token)
    assert len(rows[-1]) > 1 or not matcher.forced()


def test_a_matcher_is_a_function_of_its_tokens(tokenizer: Tokenizer, grammars: GrammarTokenizer) -> None:
    start = compiled(grammars, json=PERSON)
    ids = [
        i
        for i in tokenizer.encode('{"name":"ag', add_special_tokens=False)
        if tokenizer.token_bytes(i) != b" "
    ]
    matcher = start.copy()
    for token in matcher.forced():
        matcher.consume(token)
    wrong = tokenizer.token_to_id("<0x00>") or tokenizer.eos_token_ids[0]
    before = masks(grammars, matcher)
    assert not matcher.consume(wrong)
    assert matcher.count_allowed([wrong]) == 0
    assert masks(grammars, matcher) == before, "what is not allowed changes nothing"
    masks(grammars, matcher, before[0][:1])
    assert masks(grammars, matcher) == before, "guesses change nothing"
    other = start.copy()
    for token in start.forced():
        other.consume(token)
    assert masks(grammars, other) == before
    assert ids


def test_texts_are_split_as_the_model_splits_them(tokenizer: Tokenizer) -> None:
    """Within a text, that is: without the space before a first word."""
    from tokentrail.text.grammar.matcher import _Vocabulary

    vocabulary = _Vocabulary(tokenizer, tokenizer.vocab_size)
    for text in ('"name":', "age", " age", "na12", "größe 名前"):
        ids = vocabulary(text.encode())
        assert b"".join(map(tokenizer.token_bytes, ids)) == text.encode()
    assert len(vocabulary(b"age")) == 1
    assert vocabulary("é".encode()[:1]) == [] or vocabulary("é".encode()[:1])


def test_special_tokens_are_no_text(demo: Tokenizer) -> None:
    grammars = GrammarTokenizer(demo, demo.vocab_size)
    anything = compiled(grammars, regex="(?s:.*)")
    (allowed,) = masks(grammars, anything)
    specials = {id for id in range(demo.vocab_size) if demo.is_special(id)}
    assert set(allowed) & specials == set(demo.eos_token_ids)
    named = compiled(grammars, grammar="start: <|im_start|> /[a-z]+/")
    assert masks(grammars, named) == [[demo.token_to_id("<|im_start|>")]]


@pytest.mark.parametrize(
    "text", ['say "yes"', "back\\slash", "tab\t", "neue\nZeile", "不知道 🙂", "/slash/", "(paren)*"]
)
def test_choices_are_literal(demo: Tokenizer, text: str) -> None:
    grammars = GrammarTokenizer(demo, demo.vocab_size)
    matcher = compiled(grammars, choice=(text, "other"))
    for token in demo.encode(text, add_special_tokens=False):
        assert matcher.consume(token)
    assert matcher.finished


@pytest.mark.parametrize(
    ("wanted", "words"),
    [
        ({"json": {"not": {}}}, 'the JSON Schema keywords "not" are not supported'),
        ({"json": {"type": "array", "uniqueItems": True}}, "uniqueItems"),
        ({"json": {"$ref": "https://example.org/schema"}}, "not present"),
        ({"json": {"type": "integer", "minimum": 2, "maximum": 1}}, "greater than maximum"),
        ({"json": "[]"}, "must be an object"),
        ({"json": "nonsense"}, "not valid JSON"),
        ({"json": {"const": "x" * 300_000}}, "characters, more than 262144"),
        ({"regex": r"(a)\1"}, "backreferences"),
        ({"choice": ("",)}, "not empty"),
        ({"grammar": "start: ("}, "cannot be used"),
        ({"grammar": "start: " + "(" * 9999}, "cannot be used"),
        ({}, "exactly one of"),
        ({"regex": "a", "choice": ("a",)}, "exactly one of"),
    ],
)
def test_what_cannot_be_used_is_named(wanted: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        build_grammar(StructuredOutputsParams(**wanted, field="response_format.json_schema.schema"))
    assert caught.value.param == "response_format.json_schema.schema"
    assert words in caught.value.message
    assert "response_format.json_schema.schema" in caught.value.message
    assert "\n" not in caught.value.message
    assert len(caught.value.message) < 450
