"""Thoughts, calls and answers in one grammar, followed token by token."""

from __future__ import annotations

import json
import random
from functools import cache
from typing import Any

import jsonschema
import numpy as np
import pytest

from tokentrail.checkpoints import demo_model_path, open_checkpoint
from tokentrail.protocol import InvalidRequest, StructuredOutputsParams
from tokentrail.text import Tokenizer
from tokentrail.text.grammar import Calls, GrammarTokenizer, Matcher, Thoughts, build_form
from tokentrail.text.grammar import matcher as matchers
from tokentrail.text.grammar.matcher import MaskWriter
from tokentrail.text.reasoning import REASONING_FORMATS, THINK
from tokentrail.text.tool_calls import FORMATS, Arguments, CallStart, Tool

NUMBER = StructuredOutputsParams(regex=r"\d{3}")
TOOLS = [
    Tool(
        "add",
        {
            "type": "object",
            "properties": {"a": {"type": "integer"}},
            "required": ["a"],
            "additionalProperties": False,
        },
        strict=True,
    ),
    Tool("now"),
]
ADD = '{"a":12}'


_GRAMMARS: dict[tuple[str, ...], GrammarTokenizer] = {}


@cache
def demo_tokenizer() -> Tokenizer:
    return Tokenizer.from_checkpoint(open_checkpoint(demo_model_path()))


class Follower:
    """A vocabulary in which some marks are tokens: ids of control tokens of the demo model stand for them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *marks: str) -> None:
        self.tokenizer = demo_tokenizer()
        self.marks = {mark: 10 + at for at, mark in enumerate(marks)}
        monkeypatch.setattr(matchers, "marks_of", lambda tokenizer: self.marks)
        known = _GRAMMARS.get(marks)
        if known is None:
            known = _GRAMMARS[marks] = GrammarTokenizer(self.tokenizer, self.tokenizer.vocab_size)
        self.grammars = known

    def tokens(self, text: str) -> list[int]:
        for mark, id in self.marks.items():
            if mark in text:
                before, _, after = text.partition(mark)
                return [*self.tokens(before), id, *self.tokens(after)]
        return self.tokenizer.encode(text, add_special_tokens=False, parse_special=False) if text else []

    def matcher(self, *form: Any) -> Matcher:
        grammar = build_form(*form, self.marks)
        assert grammar is not None
        return self.grammars.compile(grammar)

    def follows(self, matcher: Matcher, text: str) -> bool:
        """Whether `text` is an answer. Goes by bytes where a mark is no token: grammars may prefer other tokens."""
        matcher = matcher.copy()
        for token in self.tokens(text):
            for one in [token] if token in self.marks.values() else self._bytes(token):
                if not matcher.consume(one):
                    return False
        return matcher.accepting

    def _bytes(self, token: int) -> list[int]:
        text = self.tokenizer.token_bytes(token)
        ids = [self.tokenizer.encode(chr(byte), add_special_tokens=False) for byte in text]
        return [token] if any(len(one) != 1 for one in ids) else [one[0] for one in ids]

    def allowed(self, matcher: Matcher) -> set[int]:
        return set(np.flatnonzero(self.mask(matcher)).tolist())

    def mask(self, matcher: Matcher) -> np.ndarray:
        """By token, whether it may come."""
        found = np.zeros((1, self.grammars.mask_words), np.uint32)
        MaskWriter(1).write(found, [(matcher, 0, [])])
        bits = np.unpackbits(found.view(np.uint8), bitorder="little")
        return bits[: self.tokenizer.vocab_size].astype(bool)


@pytest.fixture(params=["tokens", "text"])
def follower(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Follower:
    marks = ("<think>", "</think>", "<tool_call>", "</tool_call>") if request.param == "tokens" else ()
    return Follower(monkeypatch, *marks)


def test_nothing_asked_for_is_no_grammar() -> None:
    assert build_form(None, None, None, {}) is None
    assert build_form(None, None, Thoughts(THINK, begun=True), {}) is None
    assert build_form(None, Calls(FORMATS["hermes"], [Tool("now")], required=False), None, {}) is None
    assert build_form(None, Calls(FORMATS["glm45"], TOOLS, required=False), None, {}) is None


def test_structured_output_begins_after_the_thoughts(follower: Follower) -> None:
    matcher = follower.matcher(NUMBER, None, Thoughts(THINK, begun=False))
    assert follower.follows(matcher, "<think>\nOne 1 two.\n</think>\n\n123")
    assert follower.follows(matcher, "<think></think>123")
    assert follower.follows(matcher, "123")
    assert not follower.follows(matcher, "<think>\nx</think>abc")
    assert not follower.follows(matcher, "abc")
    begun = follower.matcher(NUMBER, None, Thoughts(THINK, begun=True))
    assert follower.follows(begun, "Well.\n</think>\n\n123")
    assert not follower.follows(begun, "123")
    plain = follower.matcher(NUMBER, None, None)
    assert follower.follows(plain, "123")
    assert not follower.follows(plain, "<think>x</think>123")


def test_required_calls(follower: Follower) -> None:
    one = f'<tool_call>\n{{"name": "add", "arguments": {ADD}}}\n</tool_call>'
    other = '<tool_call>\n{"name": "now", "arguments": {"any":["thing"]}}\n</tool_call>'
    calls = Calls(FORMATS["hermes"], TOOLS, required=True)
    matcher = follower.matcher(None, calls, Thoughts(THINK, begun=False))
    for answer in (one, other, f"{one}\n{other}\n{one}", f"<think>hm</think>\n\n{one}"):
        assert follower.follows(matcher, answer), answer
    for answer in (
        "text",
        f"text {one}",
        one.replace('"a"', '"b"'),
        one.replace("add", "sub"),
        one.replace("12", '"x"'),
    ):
        assert not follower.follows(matcher, answer), answer
    single = follower.matcher(None, Calls(FORMATS["hermes"], TOOLS, required=True, several=False), None)
    assert follower.follows(single, one)
    assert not follower.follows(single, f"{one}\n{one}")


@pytest.mark.parametrize("name", [name for name, one in FORMATS.items() if one.grammar((), several=True)])
def test_what_other_formats_write(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    follower = Follower(monkeypatch, *[mark for mark in FORMATS[name].markers if mark != "<|python_tag|>"])
    form = FORMATS[name].grammar(TOOLS, several=True)
    assert form is not None
    tool = '"add"' if form.quoted else "add"
    written = ADD
    if form.members is not None:
        written = "".join(
            f"{form.members.before}{key}{form.members.middle}{value}{form.members.after}"
            for key, value in json.loads(ADD).items()
        )
    call = f"{form.before}{tool}{':7' * form.numbered}{form.middle}{written}{form.after}"
    matcher = follower.matcher(None, Calls(FORMATS[name], TOOLS, required=True), None)
    for calls in ([call], [call, call]):
        text = form.begin + form.between.join(calls) + form.end
        assert follower.follows(matcher, text)
        parser = FORMATS[name].parser(TOOLS)
        events = [*parser.push(text), *parser.flush()]
        assert events[::2] == [CallStart("add")] * len(calls)
        assert [json.loads(event.text) for event in events[1::2]] == [json.loads(ADD)] * len(calls)


def test_arguments_written_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    parameters = {
        "type": "object",
        "properties": {
            "city": {"type": "string", "description": "where"},
            "unit": {"type": "string", "enum": ["C", "F"]},
            "days": {"type": "array", "items": {"type": "integer", "minimum": 1}},
        },
        "required": ["city", "days"],
    }
    tools = [Tool("f", parameters)]
    for name in ("glm45", "qwen3_coder", "seed_oss"):
        for marks in ((), FORMATS[name].markers):
            follower = Follower(monkeypatch, *marks)
            form = FORMATS[name].grammar(tools, several=True)
            assert form is not None
            members = form.members
            assert members is not None

            def call(form: Any = form, members: Any = members, **arguments: str) -> str:
                written = [
                    members.before + k + members.middle + v + members.after for k, v in arguments.items()
                ]
                return f"{form.before}f{form.middle}{''.join(written)}{form.after}"

            matcher = follower.matcher(None, Calls(FORMATS[name], tools, required=True), None)
            for arguments in (
                {"city": "北京 🏙️\n<b>", "days": "[1,2]"},
                {"city": "Ulm", "unit": "C", "days": "[7]"},
                {"city": "", "days": "[]"},
            ):
                text = call(**arguments)
                assert follower.follows(matcher, text), (name, text)
                parser = FORMATS[name].parser(tools)
                events = [*parser.push(text), *parser.flush()]
                assert json.loads("".join(e.text for e in events if isinstance(e, Arguments))) == {
                    **arguments,
                    "days": json.loads(arguments["days"]),
                }
            for arguments in (
                {"city": "Ulm"},
                {"days": "[1]", "city": "Ulm"},
                {"city": "Ulm", "unit": "K", "days": "[1]"},
                {"city": "Ulm", "days": "[0]"},
                {"city": "Ulm", "days": "1"},
            ):
                assert not follower.follows(matcher, call(**arguments)), (name, arguments)
    # What texts could not be told from, and what they cannot be held to, is left to JSON.
    for schema in (
        {"type": ["string", "integer"]},
        {"type": "string", "format": "date"},
        {"type": "string", "pattern": "a^b"},
        {},
    ):
        tool = Tool("f", {"type": "object", "properties": {"a": schema}})
        assert FORMATS["glm45"].grammar([tool], several=True) is None, schema
    assert FORMATS["glm45"].grammar([Tool("f", {"$ref": "#/$defs/x"})], several=True) is None


RICH: dict[str, Any] = {
    "type": "object",
    "properties": {
        "maybe": {"anyOf": [{"type": "string", "pattern": "^[a-f]+$"}, {"type": "null"}], "default": None},
        "city": {"type": "string", "minLength": 1, "maxLength": 12},
        "unit": {"$ref": "#/$defs/Unit"},
        "note": {"type": "string"},
        "count": {"type": "integer", "minimum": 0, "maximum": 20},
        "tags": {"type": "array", "items": {"type": "string", "maxLength": 6}, "minItems": 1, "maxItems": 3},
        "place": {
            "type": "object",
            "properties": {"lat": {"type": "number"}, "label": {"type": ["string", "null"]}},
            "required": ["lat"],
            "additionalProperties": False,
        },
    },
    "required": ["city", "unit", "tags"],
    "additionalProperties": False,
    "$defs": {"Unit": {"type": "string", "enum": ["C", "F"]}},
}
NATIVE = {
    "functiongemma": (
        "<start_function_call>call:f{city:<escape>Ulm<escape>,unit:<escape>C<escape>,"
        "tags:[<escape>a,}<escape>,<escape><escape>],place:{lat:-1.5,label:null}}<end_function_call>"
    ),
    "gemma4": (
        '<|tool_call>call:f{maybe:<|"|>abc<|"|>,city:<|"|>{"Ulm"}<|"|>,unit:<|"|>F<|"|>,count:3,'
        'tags:[<|"|>北京<|"|>]}<tool_call|>'
    ),
    "pythonic": (
        '[f(maybe=null, city="Ulm", unit="C", note="a\\n\\"b", tags=["x"], place={"lat":1}), '
        'f(city="U", unit="F", tags=["a","b"])]'
    ),
    "glm45": (
        "<tool_call>f\n<arg_key>maybe</arg_key>\n<arg_value>null</arg_value>\n<arg_key>city</arg_key>\n"
        "<arg_value>Ulm</arg_value>\n<arg_key>unit</arg_key>\n<arg_value>C</arg_value>\n<arg_key>tags</arg_key>\n"
        '<arg_value>["a"]</arg_value>\n</tool_call>'
    ),
    "qwen3_coder": (
        "<tool_call>\n<function=f>\n<parameter=city>\nU\n</parameter>\n<parameter=unit>\nF\n</parameter>\n"
        '<parameter=tags>\n["\\n"]\n</parameter>\n</function>\n</tool_call>'
    ),
    "minimax_m2": (
        '<minimax:tool_call>\n<invoke name="f">\n<parameter name="city">U</parameter>\n'
        '<parameter name="unit">F</parameter>\n<parameter name="tags">["a"]</parameter>\n</invoke>\n'
        "</minimax:tool_call>"
    ),
}
"""A call of a function with these arguments, as each format has it."""


def calls_in(name: str, tools: list[Tool], text: str) -> list[Any]:
    parser = FORMATS[name].parser(tools)
    found: list[Any] = []
    for event in [*parser.push(text), *parser.flush()]:
        if isinstance(event, CallStart):
            found.append("")
        else:
            assert isinstance(event, Arguments), event
            found[-1] += event.text
    return [json.loads(arguments) for arguments in found]


@pytest.mark.parametrize("name", NATIVE)
@pytest.mark.parametrize("marked", [True, False])
def test_calls_in_a_format_of_their_own(monkeypatch: pytest.MonkeyPatch, name: str, *, marked: bool) -> None:
    tools = [Tool("f", RICH), Tool("now", {"type": "object", "properties": {}})]
    follower = Follower(monkeypatch, *(FORMATS[name].markers if marked else ()))
    matcher = follower.matcher(None, Calls(FORMATS[name], tools, required=True), None)
    text = NATIVE[name]
    assert follower.follows(matcher, text)
    called = calls_in(name, tools, text)
    assert called
    for arguments in called:
        jsonschema.validate(arguments, RICH)
    for was, now in (("U", "K" * 13), ("unit", "unot"), ("tags", "taks")):
        assert not follower.follows(matcher, text.replace(was, now)), (was, now)
    assert not follower.follows(matcher, "text")
    if name == "pythonic" and marked:
        assert follower.follows(matcher, f"<|tool_call_start|>{text}<|tool_call_end|>")
        assert not follower.follows(matcher, f"<|tool_call_start|>{text}")
    # Whatever the model would rather write.
    draw = random.Random(name)
    finished = 0
    for _ in range(4):
        answer = wandered(follower, matcher.copy(), draw)
        if answer is None:
            continue
        finished += 1
        called = calls_in(name, tools, answer)
        assert called, answer
        for arguments in called:
            if arguments:
                jsonschema.validate(arguments, RICH)
    assert finished


def wandered(follower: Follower, matcher: Matcher, draw: random.Random, most: int = 150) -> str | None:
    """A random answer that the grammar allows; None: it has not ended by then. Ends of things are preferred."""
    tokenizer = follower.tokenizer
    names = {id: mark for mark, id in follower.marks.items()}
    ends = [*names, *(tokenizer.encode(text, add_special_tokens=False)[0] for text in ENDS)]
    written = b""
    for _ in range(most):
        if matcher.accepting and draw.random() < 0.7:
            break
        allowed = follower.mask(matcher)
        wanted = [id for id in ends if allowed[id]]
        if not wanted or draw.random() < 0.3:
            allowed[:20] = False  # control tokens
            wanted = np.flatnonzero(allowed).tolist() or wanted
        if not wanted:
            break
        id = draw.choice(wanted)
        assert matcher.consume(id)
        written += names[id].encode() if id in names else tokenizer.token_bytes(id)
    return written.decode() if matcher.accepting else None


ENDS = ('"', "}", "]", ")", ",", "</", "\n", "<", ">", "null", "parameter", "escape")


def test_strict_tools_hold_a_call_once_it_begins(follower: Follower) -> None:
    good = f'<tool_call>\n{{"name": "add", "arguments": {ADD}}}\n</tool_call>'
    matcher = follower.matcher(None, Calls(FORMATS["hermes"], TOOLS, required=False), None)
    for answer in ("Just text, 1 < 2.", good, f"I add. {good}", f"{good}\n{good} Done.", ""):
        assert follower.follows(matcher, answer), answer
    assert not follower.follows(matcher, good.replace("12", '"x"'))
    assert not follower.follows(matcher, f"I add. {good.replace('add', 'sub')}")
    loose = good.replace("add", "now").replace("12", '"x"')
    assert follower.follows(matcher, loose), "tools that are not strict take any object"


def test_an_answer_of_a_form_or_calls(follower: Follower) -> None:
    matcher = follower.matcher(NUMBER, Calls(FORMATS["hermes"], TOOLS, required=False), None)
    assert follower.follows(matcher, "123")
    assert follower.follows(matcher, f'<tool_call>\n{{"name": "add", "arguments": {ADD}}}\n</tool_call>')
    assert not follower.follows(matcher, "text")


def test_a_budget_ends_thoughts(monkeypatch: pytest.MonkeyPatch) -> None:
    follower = Follower(monkeypatch, "<think>", "</think>")
    end = follower.marks["</think>"]
    for wanted in (None, NUMBER):
        matcher = follower.matcher(wanted, None, Thoughts(THINK, begun=True, budget=4))
        for token in follower.tokens("one two three four")[:4]:
            assert end in follower.allowed(matcher)
            assert matcher.consume(token)
        assert follower.allowed(matcher) == {end}
        assert matcher.forced() == [end]
        assert matcher.consume(end)
        for token in follower.tokens("123" if wanted else "anything at all"):
            assert matcher.consume(token)
        assert matcher.accepting
    short = follower.matcher(None, None, Thoughts(THINK, begun=False, budget=4))
    assert follower.follows(short, "<think>a</think>\n\nAnswer.")
    assert follower.follows(short, "No thoughts at all.")
    with pytest.raises(InvalidRequest, match="thinking_token_budget"):
        build_form(None, None, Thoughts(THINK, begun=True, budget=4), {})


def test_channels(monkeypatch: pytest.MonkeyPatch) -> None:
    follower = Follower(monkeypatch, *FORMATS["openai"].markers[:5])
    thoughts = Thoughts(REASONING_FORMATS["openai"], begun=False)
    begin = FORMATS["openai"].answer_begin
    grammar = build_form(NUMBER, None, thoughts, follower.marks, answer_begin=begin)
    assert grammar is not None
    matcher = follower.grammars.compile(grammar)
    hm = "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant"
    for answer in ("<|channel|>final<|message|>123", f"{hm}<|channel|>final<|message|>123"):
        assert follower.follows(matcher, answer), answer
    assert not follower.follows(matcher, "123")
    calls = Calls(FORMATS["openai"], TOOLS, required=True, several=False)
    matcher = follower.matcher(None, calls, thoughts)
    call = f"<|channel|>commentary to=functions.add <|constrain|>json<|message|>{ADD}"
    assert follower.follows(matcher, hm + call)
    assert not follower.follows(matcher, hm + call.replace("add", "sub"))
