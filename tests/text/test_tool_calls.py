"""Parsers of tool calls and reasoning: what they find, and that it does not depend on how the text comes in pieces."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tokentrail.protocol import InvalidRequest
from tokentrail.text.reasoning import THINK, choose_reasoning_format, get_reasoning_format
from tokentrail.text.tool_calls import (
    FORMATS,
    Arguments,
    CallStart,
    Event,
    Text,
    Thought,
    Tool,
    choose_format,
    get_format,
)

TOOLS = [
    Tool(
        "get_weather",
        {
            "type": "object",
            "properties": {
                "city": {"type": "string"},
                "days": {"type": "integer"},
                "units": {"anyOf": [{"type": "string"}, {"type": "null"}]},
                "places": {"type": "array", "items": {"type": "string"}},
            },
        },
    ),
    Tool("now"),
]
Found = tuple[str, list[tuple[str, Any]]]
PARIS = ("get_weather", {"city": "Paris"})
NOW: tuple[str, Any] = ("now", {})
DS = {
    "all": "<｜tool▁calls▁begin｜>",
    "end": "<｜tool▁calls▁end｜>",
    "call": "<｜tool▁call▁begin｜>",
    "done": "<｜tool▁call▁end｜>",
    "sep": "<｜tool▁sep｜>",
}

# Format, answer, text that is shown, calls.
CASES: list[tuple[str, str, str, list[tuple[str, Any]]]] = [
    ("hermes", "Just text < with > signs <tool", "Just text < with > signs <tool", []),
    (
        "hermes",
        '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n</tool_call>',
        "",
        [PARIS],
    ),
    (
        "hermes",
        'I look.\n\n<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n</tool_call>\n'
        '<tool_call>{"name":"now"}</tool_call>\n',
        "I look.",
        [PARIS, NOW],
    ),
    (
        "hermes",
        '<tool_call>{"arguments": {"city": "Pa\\"}{ris"}, "name": "f"}</tool_call>',
        "",
        [("f", {"city": 'Pa"}{ris'})],
    ),
    ("hermes", '<tool_call>{"name": "f", "arguments": "{\\"a\\": 1}"}</tool_call>', "", [("f", {"a": 1})]),
    (
        "hermes",
        '<tool_call>{"name": "f", "arguments": {"a": [1, {"b": "}"}]}, "id": 7}</tool_call>',
        "",
        [("f", {"a": [1, {"b": "}"}]})],
    ),
    (
        "hermes",
        '<tool_call>{"name": "f", "arguments": {"</tool_call>": "a\\"</tool_call>"}}</tool_call>',
        "",
        [("f", {"</tool_call>": 'a"</tool_call>'})],
    ),
    (
        "mistral",
        '[TOOL_CALLS][{"name": "f", "arguments": {"a": "[TOOL_CALLS]x[ARGS]"}}]',
        "",
        [("f", {"a": "[TOOL_CALLS]x[ARGS]"})],
    ),
    ("mistral", '[TOOL_CALLS]f[ARGS]{"a": "[TOOL_CALLS]"}', "", [("f", {"a": "[TOOL_CALLS]"})]),
    (
        "granite",
        'See. <|tool_call|>[{"name": "get_weather", "arguments": {"city": "Paris"}}, {"name": "now", "arguments": {}}]',
        "See.",
        [PARIS, NOW],
    ),
    ("granite", '<|tool_call|>[{"name": "now", "arguments": {}}]<|/tool_call|>', "", [NOW]),
    (
        "granite",
        "No list: <|tool_call|>none<|/tool_call|> so",
        "No list:<|tool_call|>none<|/tool_call|> so",
        [],
    ),
    ("granite", "<|tool_call|>[]", "", []),
    (
        "command_r",
        '<|START_ACTION|>[\n    {"tool_call_id": "0", "tool_name": "f", "parameters": {"a": "<|END_ACTION|>"}},\n'
        '    {"tool_call_id": "1", "tool_name": "now", "parameters": {}}\n]<|END_ACTION|>',
        "",
        [("f", {"a": "<|END_ACTION|>"}), NOW],
    ),
    (
        "internlm",
        'Well.<|action_start|><|plugin|>\n{"name": "get_weather", "parameters": {"city": "Paris"}}<|action_end|>\n',
        "Well.",
        [PARIS],
    ),
    (
        "minimax_m2",
        'Well.\n<minimax:tool_call>\n<invoke name="get_weather">\n<parameter name="city">Paris</parameter>\n'
        '<parameter name="days">3</parameter>\n</invoke>\n<invoke name="now">\n</invoke>\n</minimax:tool_call>\n',
        "Well.",
        [("get_weather", {"city": "Paris", "days": 3}), NOW],
    ),
    (
        "minimax_m2",
        "<minimax:tool_call>none</minimax:tool_call>",
        "<minimax:tool_call>none</minimax:tool_call>",
        [],
    ),
    (
        "deepseek_v31",
        '{all}{call}f{sep}{{"a": "{done}"}}{done}{end}'.format(**DS),
        "",
        [("f", {"a": DS["done"]})],
    ),
    ("hermes", "<tool_call>not json</tool_call> so", "<tool_call>not json</tool_call> so", []),
    ("hermes", '<tool_call>{"name": "now", "arguments": {}}', "", [NOW]),
    ("hermes", '<tool_call>{"nam', '<tool_call>{"nam', []),
    (
        "hermes",
        '<tool_call>{"name":"größe","arguments":{"stadt":"北京 🏙️"}}</tool_call>',
        "",
        [("größe", {"stadt": "北京 🏙️"})],
    ),
    ("llama3_json", '{"name": "get_weather", "parameters": {"city": "Paris"}}', "", [PARIS]),
    (
        "llama3_json",
        '<|python_tag|>{"name": "get_weather", "parameters": {"city": "Paris"}}; {"name": "now", "parameters": {}}',
        "",
        [PARIS, NOW],
    ),
    ("llama3_json", "Hello {there}", "Hello {there}", []),
    ("llama3_json", '{"city": "Paris"}', '{"city": "Paris"}', []),
    ("llama3_json", "{not json}", "{not json}", []),
    (
        "json",
        '[{"name": "get_weather", "arguments": {"city": "Paris"}}, {"name": "now", "arguments": {}}]',
        "",
        [PARIS, NOW],
    ),
    (
        "mistral",
        '[TOOL_CALLS][{"name": "get_weather", "arguments": {"city": "Paris"}}, {"name": "now", "arguments": {}}]',
        "",
        [PARIS, NOW],
    ),
    (
        "mistral",
        '[TOOL_CALLS] [{"name": "get_weather", "arguments": {"city": "Paris"}, "id": "VvvODy9mT"}]',
        "",
        [PARIS],
    ),
    (
        "mistral",
        'Well.[TOOL_CALLS]get_weather[ARGS]{"city": "Paris"}[TOOL_CALLS]now[CALL_ID]ab1[ARGS]{}',
        "Well.",
        [PARIS, NOW],
    ),
    ("mistral", '[TOOL_CALLS]get_weather{"city": "Paris"}', "", [PARIS]),
    ("mistral", "Text with [TOOL", "Text with [TOOL", []),
    (
        "glm45",
        "Let me see.\n<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>Paris</arg_value>\n"
        "<arg_key>days</arg_key>\n<arg_value>3</arg_value>\n</tool_call>\n<tool_call>now\n</tool_call>",
        "Let me see.",
        [("get_weather", {"city": "Paris", "days": 3}), NOW],
    ),
    (
        "glm45",
        "<tool_call>get_weather<arg_key>city</arg_key><arg_value>12</arg_value>"
        '<arg_key>places</arg_key><arg_value>["a", "b<c"]</arg_value>'
        "<arg_key>units</arg_key><arg_value>null</arg_value></tool_call>",
        "",
        [("get_weather", {"city": "12", "places": ["a", "b<c"], "units": None})],
    ),
    (
        "qwen3_coder",
        "<tool_call>\n<function=get_weather>\n<parameter=city>\nPa\nris\n</parameter>\n<parameter=days>\n3\n</parameter>\n</function>\n</tool_call>",
        "",
        [("get_weather", {"city": "Pa\nris", "days": 3})],
    ),
    ("qwen3_coder", "<tool_call>\n<function=now>\n</function>\n</tool_call>", "", [NOW]),
    (
        "deepseek_v3",
        'Hm. {all}{call}function{sep}get_weather\n```json\n{{"city": "Paris"}}\n```{done}\n'
        "{call}function{sep}now\n```json\n{{}}\n```{done}{end}".format(**DS),
        "Hm.",
        [PARIS, NOW],
    ),
    (
        "deepseek_v31",
        '{all}{call}get_weather{sep}{{"city": "Paris"}}{done}{call}now{sep}{{}}{done}{end}'.format(**DS),
        "",
        [PARIS, NOW],
    ),
    (
        "functiongemma",
        "<start_function_call>call:get_weather{city:<escape>Paris<escape>}<end_function_call>",
        "",
        [PARIS],
    ),
    (
        "gemma4",
        'So: <|tool_call>call:get_weather{city:<|"|>Pa,}ris<|"|>,days:3,places:[<|"|>a<|"|>,<|"|>b<|"|>]}<tool_call|>',
        "So:",
        [("get_weather", {"city": "Pa,}ris", "days": 3, "places": ["a", "b"]})],
    ),
    ("gemma4", "<|tool_call>nonsense<tool_call|>", "<|tool_call>nonsense<tool_call|>", []),
    ("pythonic", '[get_weather(city="Paris"), now()]', "", [PARIS, NOW]),
    (
        "pythonic",
        "[get_weather(city='Pa)\\'r', days=-3, places=[\"a\"], units=None)]",
        "",
        [("get_weather", {"city": "Pa)'r", "days": -3, "places": ["a"], "units": None})],
    ),
    ("pythonic", '<|tool_call_start|>[get_weather(city="Paris")]<|tool_call_end|>', "", [PARIS]),
    ("pythonic", '```tool_code\nget_weather(city="Paris")\n```', "", [PARIS]),
    (
        "pythonic",
        '[get_weather(city="a\\/\\ud83e\\udd8a\\n"), now(n=1e999, of={"b": [true]})]',
        "",
        [("get_weather", {"city": "a/🦊\n"}), ("now", {"n": 1.7976931348623157e308, "of": {"b": [True]}})],
    ),
    ("pythonic", "[1, 2, 3] is a list", "[1, 2, 3] is a list", []),
    ("pythonic", "A list: [f()]", "A list: [f()]", []),
]


def collect(events: list[Event]) -> Found:
    text = ""
    calls: list[list[str]] = []
    for event in events:
        if isinstance(event, Text):
            text += event.text
        elif isinstance(event, CallStart):
            calls.append([event.name, ""])
        elif isinstance(event, Thought):
            assert event.text.startswith("Hm") or event.text
        else:
            assert isinstance(event, Arguments)
            calls[-1][1] += event.text
    return text, [(name, arguments) for name, arguments in calls]


def parse(format: str, pieces: list[str]) -> Found:
    parser = get_format(format).parser(TOOLS)
    events = [event for piece in pieces for event in parser.push(piece)]
    return collect(events + parser.flush())


def cut(text: str, at: list[int]) -> list[str]:
    borders = sorted({0, len(text), *(place % (len(text) + 1) for place in at)})
    return [text[a:b] for a, b in pairwise(borders)]


@pytest.mark.parametrize(("format", "answer", "text", "calls"), CASES)
def test_what_is_found(format: str, answer: str, text: str, calls: list[tuple[str, Any]]) -> None:
    found_text, found = parse(format, [answer])
    assert found_text == text
    assert [(name, json.loads(arguments)) for name, arguments in found] == calls


@pytest.mark.parametrize(("format", "answer"), [case[:2] for case in CASES])
def test_every_single_cut(format: str, answer: str) -> None:
    whole = parse(format, [answer])
    assert parse(format, list(answer)) == whole
    for at in range(1, len(answer)):
        assert parse(format, [answer[:at], answer[at:]]) == whole, at


PIECES = st.sampled_from(
    [part for case in CASES for part in (case[1], case[1][: len(case[1]) // 2], case[1][len(case[1]) // 2 :])]
    + [
        *'{}[]()<>"\\:,; \n',
        "<tool_call>",
        "</tool_call>",
        "text",
        "[TOOL_CALLS]",
        "<|tool_call>",
        *DS.values(),
    ]
)


@settings(max_examples=200, deadline=None)
@given(
    format=st.sampled_from(sorted(FORMATS)),
    parts=st.lists(PIECES, min_size=1, max_size=6),
    at=st.lists(st.integers(0, 10_000), max_size=12),
)
def test_pieces_do_not_matter(*, format: str, parts: list[str], at: list[int]) -> None:
    text = "".join(parts)
    assert parse(format, cut(text, at)) == parse(format, [text])


WRITTEN_AS_JSON = [
    name
    for name, one in FORMATS.items()
    if (grammar := one.grammar(TOOLS, several=True)) is not None and grammar.members is None
]


@settings(max_examples=100, deadline=None)
@given(
    calls=st.lists(
        st.tuples(
            st.sampled_from(["get_weather", "f_1", "ns.tool"]),
            st.dictionaries(
                st.sampled_from(["city", "a", "days"]),
                st.recursive(
                    st.none() | st.booleans() | st.integers(-9, 9) | st.text(max_size=12),
                    lambda inner: st.lists(inner, max_size=3),
                    max_leaves=5,
                ),
                max_size=3,
            ),
        ),
        min_size=1,
        max_size=3,
    ),
    name=st.sampled_from(WRITTEN_AS_JSON),
    ascii=st.booleans(),
)
def test_what_a_grammar_writes_is_read_back(
    *, calls: list[tuple[str, dict[str, Any]]], name: str, ascii: bool
) -> None:
    grammar = FORMATS[name].grammar(TOOLS, several=True)
    assert grammar is not None
    written = []
    for tool, arguments in calls:
        shown_name = json.dumps(tool) if grammar.quoted else tool
        shown_arguments = json.dumps(arguments, ensure_ascii=ascii)
        written.append(f"{grammar.before}{shown_name}{grammar.middle}{shown_arguments}{grammar.after}")
    text = grammar.begin + grammar.between.join(written) + grammar.end
    shown, found = parse(name, [text])
    assert shown == ""
    assert [(tool, json.loads(arguments)) for tool, arguments in found] == calls


TEMPLATES = {
    "hermes": "{% if tools %}<tools></tools> within <tool_call></tool_call>{% endif %}",
    "llama3_json": '{% if tools %}{"name": function name, "parameters": dictionary of argument name}{% endif %}',
    "mistral": "{% if tools %}[AVAILABLE_TOOLS]{% endif %}[TOOL_CALLS]",
    "mistral_v11": "{% if tools %}[AVAILABLE_TOOLS]{% endif %}[TOOL_CALLS][ARGS]",
    "glm45": "{% if tools %}<tool_call><arg_key>{% endif %}",
    "qwen3_coder": "{% if tools %}<tool_call><function=example><parameter=p>{% endif %}",
    "deepseek_v3": "{% if tools %}<｜tool▁calls▁begin｜>```json{% endif %}",
    "openai": "{% if tools %}{% endif %}<|channel|>analysis<|message|>",
    "kimi_k2": "{% if tools %}<|tool_calls_section_begin|>{% endif %}",
    "seed_oss": "{% if tools %}<seed:tool_call><function=f><parameter=p>{% endif %}",
    "deepseek_v31": "{% if tools %}<｜tool▁calls▁begin｜>{% endif %}",
    "functiongemma": "{% if tools %}<start_function_call>{% endif %}",
    "gemma4": "{% if tools %}<|tool_call>{% endif %}",
    "pythonic": "{% if tools %}[func_name1(params_name1=params_value1)]{% endif %}",
}


@pytest.mark.parametrize("name", TEMPLATES)
def test_the_template_says_which_format(name: str) -> None:
    found = choose_format(TEMPLATES[name])
    assert found is not None
    assert found.name == name


def test_names_of_formats() -> None:
    assert choose_format("{{ messages }}") is None
    assert choose_format(None) is None
    assert get_format("qwen3").name == "hermes"
    with pytest.raises(InvalidRequest, match="no tool call parser 'nonsense'; there are hermes"):
        get_format("nonsense")
    assert choose_reasoning_format("{{ content.split('</think>') }}") is THINK
    assert choose_reasoning_format("{{ content }}") is None
    assert get_reasoning_format("deepseek_r1") is THINK
    with pytest.raises(InvalidRequest, match="no reasoning parser"):
        get_reasoning_format("x")


def think(prompt: str, pieces: list[str]) -> tuple[str, str]:
    parser = THINK.parser(prompt)
    found = [*map(parser.push, pieces), parser.flush()]
    return "".join(one[0] for one in found), "".join(one[1] for one in found)


THOUGHTS = [
    ("", "<think>\nHm, well.\n\n</think>\n\nParis.", "Hm, well.", "Paris."),
    ("", "\n<think>a</think>b", "a", "b"),
    ("<think>\n", "Hm <b>.\n</think>\n\nParis. <think>", "Hm <b>.", "Paris. <think>"),
    ("<think>\n\n</think>\n\n", "Paris </think> it is.", "", "Paris </think> it is."),
    ("", "Paris <think>", "", "Paris <think>"),
    ("", "<thin", "", "<thin"),
    ("", "<think>unfinished </thi", "unfinished </thi", ""),
    ("", "<think></think>", "", ""),
    ("", "  spaced", "", "  spaced"),
]


@pytest.mark.parametrize(("prompt", "answer", "thoughts", "rest"), THOUGHTS)
def test_thoughts(prompt: str, answer: str, thoughts: str, rest: str) -> None:
    assert think(prompt, [answer]) == (thoughts, rest)
    assert think(prompt, list(answer)) == (thoughts, rest)
    for at in range(1, len(answer)):
        assert think(prompt, [answer[:at], answer[at:]]) == (thoughts, rest), at
