"""Chat templates against `transformers`, and templates that mean harm."""

from __future__ import annotations

import json
import os
import time
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from tokentrail.checkpoints import Checkpoint
from tokentrail.protocol import InvalidRequest, ModelFileError
from tokentrail.text import ChatTemplate, read_chat_template, template_sandbox
from tokentrail.text.template_sandbox import MAX_VALUE

HELLO = [{"role": "user", "content": "Hi"}]
TALK = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "What's 1 < 2 & 'é'?"},
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"function": {"name": "f", "arguments": {"x": "é<b>"}}}],
    },
    {"role": "tool", "content": '{"ok": true}'},
    {"role": "user", "content": "世界 👍\n  indented"},
]
TOOLS = [
    {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {"x": {}}}}}
]

TEMPLATES = {
    "chatml": "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + "
    "'<|im_end|>' + '\n'}}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}",
    "blocks": """{{ bos_token }}
{%- for message in messages %}
    {%- if message.role == 'system' %}
        {{- '[SYS]' ~ message.content ~ '[/SYS]' }}
    {%- elif message.tool_calls is defined %}
        {%- for call in message.tool_calls %}
            {{- call.function | tojson }}
        {%- endfor %}
    {%- else %}
        {{- message.role | upper ~ ': ' ~ message.content | trim }}
    {%- endif %}
    {%- if not loop.last %}
        {{- eos_token }}
    {%- endif %}
{%- endfor %}
  {% if tools %}
tools: {{ tools | tojson(indent=2) }}
  {% endif %}
""",
    "namespace and loop controls": "{% set ns = namespace(found=false, n=0) %}{% for m in messages %}"
    "{% if m.role == 'tool' %}{% set ns.found = true %}{% break %}{% endif %}{% if loop.index0 == 1 %}"
    "{% continue %}{% endif %}"
    "{% set ns.n = ns.n + 1 %}{{ m.role[:2] }},{% endfor %}{{ ns.found }} {{ ns.n }}",
    "macro": "{% macro show(m, depth=1) %}{{ '#' * depth }}{{ m.role }}{% if m.content is string %}: "
    "{{ m.content.split('\n')[0].strip() }}{% endif %}\n{% endmacro %}"
    "{% for m in messages %}{{ show(m, loop.index) }}{% endfor %}",
    "filters": "{{ messages | map(attribute='role') | unique | list | join(', ') }} {{ messages | length }} "
    "{{ messages | selectattr('role', 'equalto', 'user') | list | length }} {{ 'a-b'|replace('-', '+') }} "
    "{{ {'b': 1, 'a': [1, 2.5, none, true]} | tojson }} {{ 'x\ny' | indent(2) }} "
    "{{ '%s=%d' | format('n', 3) }} {{ {'a': 1}.items() | list }} "
    "{{ (messages | first).role }} {{ [3, 1, 2] | sort | reverse | list }}",
    "generation": "{% for m in messages %}{% generation %}{{ m.role }}{% endgeneration %}\n{% endfor %}",
    "strings": "{% set t = 'Hello {name}' %}{{ t.format(name='x') }} {{ 'a b'.title() }} {{ 'x' in 'xyz' }} "
    "{{ '{}'.format(7) }} {{ 'ab'.startswith('a') }} {{ 'a,b'.split(',')[-1] }} "
    "{{ '%02d' % 5 }} {{ 7 // 2 ** 2 }}",
    "html": "{{ '<b>&\"' }} {{ {'h': '<b>'} | tojson }} {{ '<' | e }}",
}


@pytest.mark.oracle
@pytest.mark.parametrize("name", TEMPLATES)
@pytest.mark.parametrize("generate", [True, False])
@pytest.mark.parametrize("tools", [None, TOOLS], ids=["plain", "tools"])
def test_rendering_equals_transformers(name: str, generate: bool, tools: list | None) -> None:
    utils = pytest.importorskip("transformers.utils.chat_template_utils")
    messages = TALK if name != "chatml" else [m for m in TALK if m["content"] is not None]
    rendered, _ = utils.render_jinja_template(
        conversations=[messages],
        tools=tools,
        chat_template=TEMPLATES[name],
        add_generation_prompt=generate,
        bos_token="<s>",
        eos_token="</s>",
    )
    ours = ChatTemplate(TEMPLATES[name], bos_token="<s>", eos_token="</s>")
    assert ours.render(messages, tools=tools, add_generation_prompt=generate) == rendered[0]


def test_demo_template(demo_checkpoint: Checkpoint) -> None:
    template = ChatTemplate(demo_checkpoint.chat_template)
    system = (
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
    )
    assert template.render(HELLO) == system + "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    assert template.render(HELLO, add_generation_prompt=False) == system + "<|im_start|>user\nHi<|im_end|>\n"


def test_further_variables() -> None:
    template = ChatTemplate("{{ 'think' if enable_thinking else 'answer' }}{{ bos_token }}")
    assert template.render(HELLO, enable_thinking=True) == "think"
    assert template.render(HELLO, bos_token="<s>") == "answer<s>"


@pytest.mark.parametrize("name", ["self", "context", "source", "args", "no identifier", ""])
def test_variables_may_have_any_name(name: str) -> None:
    assert ChatTemplate("{{ messages[0].content }}").render([{"content": "x"}], **{name: 1}) == "x"


def test_date() -> None:
    before = datetime.now().strftime("%Y-%m-%d")
    shown = ChatTemplate("{{ strftime_now('%Y-%m-%d') }}").render(HELLO)
    assert before <= shown <= datetime.now().strftime("%Y-%m-%d")


def test_the_template_refuses_in_its_own_words() -> None:
    template = ChatTemplate("{{ raise_exception('Roles must alternate') }}")
    with pytest.raises(InvalidRequest, match=r"^Roles must alternate$") as caught:
        template.render(HELLO)
    assert caught.value.param == "messages"


def test_no_template() -> None:
    with pytest.raises(InvalidRequest, match=r"no chat template.*--chat-template"):
        ChatTemplate(None).render(HELLO)


@pytest.mark.parametrize(
    "source",
    [
        "{% if",
        "{{ x | nosuchfilter }}",
        "{% endfor %}",
        "{{ " + "(" * 100_000 + "}}",
        "{% for %}" * 1000,
        "x" * (1 << 21),
        "{{ 'unclosed }}",
        "{{ 'a' | center(10) }}",
    ],
    ids=lambda source: source[:20],
)
def test_invalid_templates(source: str) -> None:
    with pytest.raises(ModelFileError, match="--chat-template") as caught:
        ChatTemplate(source, origin="model.gguf")
    assert str(caught.value).startswith("model.gguf")
    assert "\n" not in str(caught.value)


def refusal(source: str, messages: Any = HELLO) -> str:
    start = time.thread_time()
    with pytest.raises(InvalidRequest) as caught:
        ChatTemplate(source).render(messages)
    assert time.thread_time() - start < 10  # of what would take forever; a slow machine needs two
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 500
    return str(caught.value)


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("{{ messages[0]['content']['x']['y'] }}", "cannot render"),
        ("{{ 1 + 'a' }}", "cannot render"),
        ("{{ '' + messages[0].thoughts }}", "it needs 'thoughts', which a message does not have"),
        ("{{ nothing() }}", "'nothing' is undefined"),
        ("{% include 'x' %}", "cannot render"),
        ("{{ 1 / 0 }}", "division by zero"),
        ("{{ messages | sum }}", "sum takes numbers only"),
    ],
)
def test_templates_that_fail(source: str, expected: str) -> None:
    assert expected in refusal(source)


@pytest.mark.parametrize(
    "source",
    [
        "{{ ''.__class__.__mro__ }}",
        "{{ messages.append(1) }}",
        "{{ messages[0].update({}) }}",
        "{{ raise_exception.__globals__ }}",
        "{{ self.__init__.__globals__ }}",
        "{{ cycler.__init__.__globals__ }}",
        "{{ namespace(__class__=1) }}",
        "{% set ns = namespace() %}{% set ns.__class__ = 1 %}",
        "{{ '{0.__class__}'.format(messages) }}",
        "{{ (messages | attr('__class__')).x }}",
        "{{ (1).to_bytes(9, 'big') }}",
        "{{ 'a'.ljust(9) }}",
        "{{ 'a'.encode() }}",
        "{{ lipsum.x }}",
    ],
)
def test_templates_that_reach_outside(source: str) -> None:
    """What is forbidden is undefined, as in Jinja2's sandbox: printed it is nothing, used it is an error."""
    try:
        assert ChatTemplate(source).render(HELLO) == ""
    except InvalidRequest as error:
        assert "unsafe" in str(error) or "cannot" in str(error)  # noqa: PT017


@pytest.mark.parametrize("name", ["split", "replace", "strip", "format", "join", "upper", "startswith"])
def test_string_methods_work_inside_loops_and_macros(name: str) -> None:
    arguments = {"split": "' '", "replace": "'a', 'b'", "join": "['x', 'y']", "startswith": "'a'"}.get(
        name, ""
    )
    call = f"m.{name}({arguments})"
    source = f"{{% macro f(m) %}}{{{{ {call} }}}}{{% endmacro %}}{{% for m in ['a b'] %}}{{{{ {call} }}}}"
    expected = str(getattr("a b", name)(*eval(f"[{arguments}]")))
    assert ChatTemplate(source + "|{{ f(m) }}{% endfor %}").render(HELLO) == f"{expected}|{expected}"


DOUBLE = "{% set ns = namespace(x=START) %}{% for i in range(100) %}{% set ns.x = MORE %}{% endfor %}"


@pytest.mark.parametrize(
    "source",
    [
        "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
        "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(60) }}",
        "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
        "{% for m in messages recursive %}{{ loop([m, m]) }}{% endfor %}",
        "{{ 'a' * 10 ** 10 }}",
        "{{ 10 ** 10 ** 10 }}".replace("10 ** 10 ** 10", "10 ** (10 ** 10)"),
        "{{ [1] * 10 ** 10 }}",
        DOUBLE.replace("START", "'ab'").replace("MORE", "ns.x ~ ns.x"),
        DOUBLE.replace("START", "'ab'").replace("MORE", "ns.x + ns.x"),
        DOUBLE.replace("START", "['ab']").replace("MORE", "ns.x + ns.x"),
        DOUBLE.replace("START", "'ab'").replace("MORE", "ns.x.replace('a', ns.x)"),
        DOUBLE.replace("START", "'ab'").replace("MORE", "ns.x | replace('a', ns.x)"),
        DOUBLE.replace("START", "'ab'").replace("MORE", "[ns.x, ns.x] | join"),
        DOUBLE.replace("START", "'ab'").replace("MORE", "''.join([ns.x, ns.x])"),
        DOUBLE.replace("START", "'ab'").replace("MORE", "'{0}{0}'.format(ns.x)"),
        DOUBLE.replace("START", "'ab'").replace("MORE", "'%s%s' % (ns.x, ns.x)"),
        DOUBLE.replace("START", "'ab'").replace("MORE", "'%s%s' | format(ns.x, ns.x)"),
        DOUBLE.replace("START", "7").replace("MORE", "ns.x * ns.x"),
        DOUBLE.replace("START", "['ab']").replace("MORE", "[ns.x, ns.x]") + "{{ ns.x }}",
        DOUBLE.replace("START", "['ab']").replace("MORE", "[ns.x, ns.x]") + "{{ ns.x | tojson }}",
        DOUBLE.replace("START", "['ab']").replace("MORE", "[ns.x, ns.x]") + "{{ ns.x | string }}",
        DOUBLE.replace("START", "['ab']").replace("MORE", "[ns.x, ns.x]") + "{{ ns.x ~ '' }}",
        DOUBLE.replace("START", "['ab']").replace("MORE", "[ns.x, ns.x]") + "{{ '%s' % (ns.x,) }}",
        "{{ '%1000000000d' % 1 }}",
        "{{ '%*d' % (1000000000, 1) }}",
        "{{ '{:>1000000000}'.format(1) }}",
        "{{ '{:{}}'.format(1, 1000000000) }}",
        "{{ 'x' | indent(1000000000, true) }}",
        "{{ [1] | tojson(indent=1000000000) }}",
        "{% set x %}{% for i in range(100000) %}" + "a" * 10000 + "{% endfor %}{% endset %}",
        "{% for i in range(100000) %}" + "a" * 1000 + "{% endfor %}",
        "{% set big = 'a' * 1000000 %}{% for i in range(100000) %}{{ big }}{% endfor %}",
        "{{ range(10 ** 9) }}",
        "{{ (range(100000) | list * 100) | sort | length }}",
        "{{ ('ba' * 5000000) | sort | length }}",
        "{{ ([{'a': 1}] * 1000000) | groupby('a') | length }}",
    ],
    ids=lambda source: source[-60:],
)
def test_templates_that_ask_for_too_much(source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(template_sandbox, "MAX_SECONDS", 0.1)
    message = refusal(source)
    assert "asks for too much" in message or "Range too big" in message


NESTED = (
    "{% set ns = namespace(x=[1], y=[1]) %}"
    "{% for i in range(40) %}{% set ns.x = MORE %}{% set ns.y = MORE %}{% endfor %}"
)


@pytest.mark.parametrize(
    "more",
    [
        "[ns.x, ns.x]",
        "(ns.x, ns.x)",
        "[ns.x] * 2",
        "[ns.x] + [ns.x]",
        "dict(a=ns.x, b=ns.x)",
        "{'a': ns.x, 'b': ns.x}",
        "[0, 0] | map('d', ns.x, true) | list",
        "[{'a': ns.x}, {'a': ns.x}] | map(attribute='a') | list",
    ],
)
@pytest.mark.parametrize("use", ["{{ ns.x == ns.y }}", "{{ ns.x in [ns.y] }}", "{{ [ns.x, ns.y] | sort }}"])
def test_values_that_hold_themselves_over_and_over(more: str, use: str) -> None:
    """Forty times two: small in memory, endless to compare, which nothing would interrupt."""
    assert "asks for too much" in refusal(NESTED.replace("MORE", more) + use)


@pytest.mark.parametrize(
    "source",
    [
        "{% set ns = namespace(x=(1,)) %}{% macro f() %}{% set ns.x = varargs %}{% endmacro %}"
        "{% for i in range(40) %}{{ f(ns.x, ns.x) }}{% endfor %}",
        "{% set ns = namespace(x=(1,)) %}{% macro f() %}{% set ns.x = varargs %}{% endmacro %}"
        "{% for i in range(90000) %}{{ f(ns.x) }}{% endfor %}{{ {ns.x: 1} }}",
        "{% set ns = namespace(x=[]) %}{% for i in range(90000) %}{% set ns.x = [ns.x] %}{% endfor %}",
        "{% set ns = namespace(x=[]) %}{% for i in range(500) %}{% set ns.x = ns.x + ['a' * 1000000] %}{% endfor %}",
        "{{ ([1] * 1000000) | map('int') | map('int') | map('int') | map('int') | map('int') | list | length }}",
        "{{ ([1] * 1000000) | select('odd') | select('odd') | select('odd') | select('odd') | list | length }}",
        "{{ ('<>' * 1000000) | striptags }}",
        "{{ ('a' * 9999999).strip('b' * 9999999) }}",
        "{{ ('a' * 9999999) | trim('b' * 9999999) }}",
        "{{ 1 | round(1000000000, 'ceil') }}",
        "{{ ([1] * 100000) | tojson(separators=('x' * 9999, 'y')) }}",
        "{{ ([[[[[[[[1]]]]]]]] * 90000) | tojson(indent=64) }}",
        "{{ ('x' * 9999999) | list | length }}",
    ],
    ids=lambda source: source[-60:],
)
def test_containers_and_filters_with_a_bound(source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(template_sandbox, "MAX_SECONDS", 0.5)
    assert "asks for too much" in refusal(source)


def test_lists_that_grow_with_a_conversation_pass() -> None:
    source = (
        "{% set ns = namespace(x=[]) %}{% for m in messages %}{% set ns.x = ns.x + [m] %}{% endfor %}"
        "{{ ns.x | length }} {{ ns.x == messages }}"
    )
    many = [{"role": "user", "content": [{"type": "text", "text": "a"}]}] * 1000
    assert ChatTemplate(source).render(many) == "1000 True"


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("{% for a, (b, c) in [(1, (2, 3))] %}{{ a }}{{ b }}{{ c }}{% endfor %}", "123"),
        ("{% set a, b = 1, 2 %}{{ b }}{{ a }}", "21"),
        (
            "{% macro f(a, b=[1, [2]]) %}{{ a }}{{ b }}{{ kwargs }}{% endmacro %}{{ f(1, c=[3]) }}",
            "1[1, [2]]{'c': [3]}",
        ),
        ("{{ {'b': [1], 'a': (2,)} | dictsort }}", "[('a', (2,)), ('b', [1])]"),
        ("{{ [3, 1] | max }}{{ [3, 1] | min }}{{ [3, 1] | first }}{{ [3, 1] | last }}", "3131"),
        (
            "{{ [1, 2, 3] | reject('odd') | list }}{{ 'cab' | reverse }}{{ [1, 2] | reverse | list }}",
            "[2]bac[2, 1]",
        ),
        ("{{ [{'a': 1}, {'a': 2}] | selectattr('a', 'gt', 1) | list }}", "[{'a': 2}]"),
        (
            "{{ '  x ' | trim }}|{{ 'xax' | trim('x') }}|{{ 'xax'.strip('x') }}|{{ 2.567 | round(1) }}",
            "x|a|a|2.6",
        ),
        ("{{ undefined_name | first }}|{{ none | d('x', true) }}", "|x"),
        (
            "{{ 'a b' | title }} {{ 'a b' | wordcount }} {{ 'ä b' | urlencode }} {{ '<b>x</b>' | striptags }}",
            "A B 2 %C3%A4%20b x",
        ),
    ],
)
def test_containers_and_filters_are_jinjas(source: str, expected: str) -> None:
    assert ChatTemplate(source).render(HELLO) == expected


def test_sorting_works() -> None:
    source = (
        "{{ messages | sort(attribute='role', reverse=true) | map(attribute='role') | join(' ') }}"
        "{% for role, group in messages | groupby('role') %} {{ role }}={{ group | length }}{% endfor %}"
    )
    messages = [{"role": role, "content": ""} for role in ("user", "assistant", "user")]
    assert ChatTemplate(source).render(messages) == "user user assistant assistant=1 user=2"


def test_large_but_reasonable_prompts_pass(demo_checkpoint: Checkpoint) -> None:
    template = ChatTemplate(demo_checkpoint.chat_template)
    many = [{"role": "user", "content": "x" * 100}] * 10_000
    assert len(template.render(many)) > 1_000_000
    large = [{"role": "user", "content": "x" * (MAX_VALUE // 4)}]
    assert len(template.render(large)) > MAX_VALUE // 4


PARTS = [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}]


def test_text_parts_are_joined_where_the_template_knows_only_text(demo_checkpoint: Checkpoint) -> None:
    template = ChatTemplate(demo_checkpoint.chat_template)
    assert not template.takes_parts
    assert "<|im_start|>user\na\nb<|im_end|>" in template.render(PARTS)
    image = [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]
    with pytest.raises(InvalidRequest, match="a part of type 'image_url'"):
        template.render(image)


def test_parts_are_passed_where_the_template_reads_them() -> None:
    source = (
        "{% for m in messages %}{% if m.content is string %}{{ m.content }}{% else %}"
        "{% for p in m.content %}[{{ p.text }}]{% endfor %}{% endif %}{% endfor %}"
    )
    template = ChatTemplate(source)
    assert template.takes_parts
    assert template.render(PARTS) == "[a][b]"
    assert template.render(HELLO) == "Hi"


@pytest.mark.parametrize("source", ["{{ messages[0].content }}", "{{ messages[0] | tojson }}"])
def test_templates_that_print_lists_do_not_read_them(source: str) -> None:
    assert not ChatTemplate(source).takes_parts


def test_messages_are_not_changed() -> None:
    messages = [{"role": "user", "content": None, "x": [1]}]
    ChatTemplate("{{ messages | tojson }}").render(messages)
    assert messages == [{"role": "user", "content": None, "x": [1]}]


# --- several templates, and where they come from ------------------------------------------------------------


def test_requests_with_tools_take_the_template_for_them() -> None:
    template = ChatTemplate("plain", named={"tool_use": "{{ tools | length }} tools", "rag": "documents"})
    assert template.render(HELLO) == "plain"
    assert template.render(HELLO, tools=[]) == "plain"
    assert template.render(HELLO, tools=TOOLS) == "1 tools"
    assert ChatTemplate("{{ tools | length }}", named={"rag": "x"}).render(HELLO, tools=TOOLS) == "1"


def test_a_template_only_for_tools() -> None:
    template = ChatTemplate(None, named={"tool_use": "tools"})
    assert template.render(HELLO, tools=TOOLS) == "tools"
    with pytest.raises(InvalidRequest, match="no chat template"):
        template.render(HELLO)


def test_every_template_is_checked_when_it_is_loaded() -> None:
    with pytest.raises(ModelFileError, match=r"^m.gguf 'rag' is not valid"):
        ChatTemplate("plain", named={"rag": "{% if"}, origin="m.gguf")


def test_special_tokens_are_variables() -> None:
    template = ChatTemplate(
        "{{ pad_token }}{{ bos_token }}{{ eos_token is defined }}",
        special_tokens={"pad_token": "<p>"},
        bos_token="<s>",
    )
    assert template.render(HELLO) == "<p><s>False"


def test_what_a_user_gives_as_template(tmp_path: Path) -> None:
    file = tmp_path / "own.jinja"
    file.write_text("of a file {{ messages | length }}", encoding="utf-8")
    named = {"rag": "of the model"}
    assert read_chat_template(str(file), named) == ("of a file {{ messages | length }}", str(file))
    assert read_chat_template("rag", named)[0] == "of the model"
    assert read_chat_template("{{ 'inline' }}", named)[0] == "{{ 'inline' }}"
    assert read_chat_template("{% if true %}" + "x" * 10_000 + "{% endif %}", {})[0].startswith("{% if")
    for given, known in (("nowhere.jinja", {}), ("nowhere.jinja", named), (str(tmp_path), {}), ("a\0b", {})):
        with pytest.raises(ModelFileError, match="chat template") as caught:
            read_chat_template(given, known)
        assert "\n" not in str(caught.value)
        assert ("(rag)" in str(caught.value)) is bool(known)
    file.write_bytes(b"\xff\xfe")
    with pytest.raises(ModelFileError, match="cannot read the chat template"):
        read_chat_template(str(file), {})


# --- messages made fit for a template -----------------------------------------------------------------------

CALL = {"id": "call00001", "type": "function", "function": {"name": "f", "arguments": {"x": "é<b>"}}}
CALL_AS_TEXT = {**CALL, "function": {"name": "f", "arguments": json.dumps(CALL["function"]["arguments"])}}


@pytest.mark.parametrize("call", [CALL, CALL_AS_TEXT], ids=["objects", "text"])
@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("call.function.arguments | tojson", '{"x": "é<b>"}'),
        ("call.function.arguments.x", "é<b>"),
        ("'```' + call.function.arguments + '```'", '```{"x": "é<b>"}```'),
        ("call.function.arguments if call.function.arguments is string else 'none'", '{"x": "é<b>"}'),
    ],
)
def test_arguments_come_as_the_template_takes_them(call: dict, expression: str, expected: str) -> None:
    source = (
        "{% for m in messages %}{% for call in m.tool_calls %}{{ "
        + expression
        + " }}{% endfor %}{% endfor %}"
    )
    asked = [*HELLO, {"role": "assistant", "content": None, "tool_calls": [call]}]
    shown = ChatTemplate(source).render(asked)
    assert shown.replace("\\u00e9", "é") == expected


@pytest.mark.parametrize("test", ["is none", "is not defined", "== ''"])
def test_calls_without_content_are_shown(test: str) -> None:
    source = (
        "{% for m in messages %}{% if m.role == 'assistant' and m.content "
        + test
        + " %}{{ m.tool_calls[0].function | tojson }}{% endif %}{% endfor %}"
    )
    shown = ChatTemplate(source).render(
        [*HELLO, {"role": "assistant", "content": None, "tool_calls": [CALL]}]
    )
    assert json.loads(shown) == CALL["function"]


@pytest.mark.parametrize("arguments", ["", "not json", "[1]", "[" * 10_000])
def test_arguments_that_are_no_object(arguments: str) -> None:
    call = {"function": {"name": "f", "arguments": arguments}}
    template = ChatTemplate(
        "{% for m in messages %}{% for c in m.tool_calls %}{{ c.function.arguments | tojson }}{% endfor %}{% endfor %}"
    )
    shown = template.render([*HELLO, {"role": "assistant", "tool_calls": [call]}])
    assert json.loads(shown) == (arguments or {})


@pytest.mark.parametrize("name", ["reasoning_content", "reasoning", "thinking"])
def test_reasoning_has_all_its_names(name: str) -> None:
    template = ChatTemplate("{{ messages[0].reasoning_content }}{{ messages[0].thinking }}")
    assert template.render([{"role": "assistant", "content": "a", name: "hm"}]) == "hmhm"


def test_templates_that_read_only_parts_get_texts_as_such() -> None:
    source = (
        "{% for m in messages %}{% for part in m.content %}{% if part.type == 'text' %}[{{ part.text }}]"
        "{% endif %}{% endfor %}{% endfor %}"
    )
    assert ChatTemplate(source).render([*HELLO, *PARTS]) == "[Hi][a][b]"


CONTINUED = [*HELLO, {"role": "assistant", "content": "So it "}]


@pytest.mark.oracle
@pytest.mark.parametrize("name", [name for name in TEMPLATES if name in ("chatml", "blocks")])
@pytest.mark.parametrize("text", ["So it ", "So it", " So\n"])
def test_continuing_equals_transformers(name: str, text: str) -> None:
    utils = pytest.importorskip("transformers.utils.chat_template_utils")
    messages = [*HELLO, {"role": "assistant", "content": text}]
    rendered, _ = utils.render_jinja_template(
        conversations=[[dict(message) for message in messages]],
        chat_template=TEMPLATES[name],
        continue_final_message=True,
        bos_token="<s>",
        eos_token="</s>",
    )
    ours = ChatTemplate(TEMPLATES[name], bos_token="<s>", eos_token="</s>")
    assert ours.render(messages, add_generation_prompt=False, continue_final_message=True) == rendered[0]


def test_continuing_a_message_of_parts() -> None:
    template = ChatTemplate("{% for m in messages %}<{{ m.role }}>{{ m.content }}</>{% endfor %}")
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    shown = template.render(
        [{"role": "assistant", "content": parts}], add_generation_prompt=False, continue_final_message=True
    )
    assert shown == "<assistant>a\nb"


@pytest.mark.parametrize(
    ("source", "messages", "generate", "expected"),
    [
        ("{{ messages[-1].content }}", CONTINUED, True, "exclude each other"),
        ("nothing of it", CONTINUED, False, "does not show the last message"),
        ("{{ messages[-1].content | upper }}", CONTINUED, False, "does not show the last message"),
        ("{{ messages[-1].content }}", [{"role": "user"}], False, "has no text"),
        ("{{ messages[-1].content }}", [], False, "has no text"),
    ],
)
def test_messages_that_cannot_be_continued(
    source: str, messages: list, generate: bool, expected: str
) -> None:
    with pytest.raises(InvalidRequest, match=expected):
        ChatTemplate(source).render(messages, add_generation_prompt=generate, continue_final_message=True)


# --- the models' own templates ------------------------------------------------------------------------------

FOLDER = os.environ.get("TOKENTRAIL_CHAT_TEMPLATES")
"""A folder of *.jinja files, as models publish them: they are not ours to ship."""
FULL_TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "f",
            "description": 'Weather "now" & <later>',
            "parameters": {
                "type": "object",
                "properties": {
                    "x": {"type": "string", "description": "where"},
                    "unit": {"type": "string", "enum": ["c", "f"]},
                },
                "required": ["x"],
            },
        },
    }
]
TALKS = {
    "user": HELLO,
    "system": TALK[:2],
    "turns": [*TALK[:2], {"role": "assistant", "content": " b\n"}, {"role": "user", "content": "c"}],
    "thinking": [*HELLO, {"role": "assistant", "content": "<think>\nhm\n</think>\n\nb"}, *HELLO],
    "reasoning": [*HELLO, {"role": "assistant", "content": "b", "reasoning_content": "hm"}, *HELLO],
    "calls": [
        *HELLO,
        {"role": "assistant", "content": "", "tool_calls": [CALL]},
        {"role": "tool", "content": '{"t": 20}', "tool_call_id": CALL["id"], "name": "f"},
    ],
    "two calls": [
        *TALK[:2],
        {"role": "assistant", "content": "Let me see.", "tool_calls": [CALL, {**CALL, "id": "call00002"}]},
        {"role": "tool", "content": "20", "tool_call_id": "call00001", "name": "f"},
        {"role": "tool", "content": "21", "tool_call_id": "call00002", "name": "f"},
    ],
    "developer": [{"role": "developer", "content": "Be brief."}, *HELLO],
}


@pytest.mark.oracle
@pytest.mark.skipif(FOLDER is None, reason="TOKENTRAIL_CHAT_TEMPLATES names no folder of templates")
@pytest.mark.parametrize(
    "path", sorted(Path(FOLDER or ".").glob("*.jinja")) if FOLDER else [], ids=lambda path: path.stem
)
def test_real_templates_equal_transformers(path: Path) -> None:
    utils = pytest.importorskip("transformers.utils.chat_template_utils")
    source = path.read_text(encoding="utf-8")
    texts = {"bos_token": "<s>", "eos_token": "</s>"}
    ours = ChatTemplate(source, **texts)
    compared = 0
    for name, talk in TALKS.items():
        for tools in (None, FULL_TOOLS):
            for ending in (
                {"add_generation_prompt": True},
                {"add_generation_prompt": False},
                {"add_generation_prompt": False, "continue_final_message": True},
            ):
                messages = (
                    [*talk, {"role": "assistant", "content": "So "}]
                    if "continue_final_message" in ending
                    else talk
                )
                try:
                    rendered, _ = utils.render_jinja_template(
                        conversations=[[dict(message) for message in messages]],
                        tools=tools,
                        chat_template=source,
                        **ending,
                        **texts,
                    )
                except Exception:
                    continue  # refused, or failed: what we do then is not compared
                assert ours.render(messages, tools=tools, **ending) == rendered[0], (name, tools, ending)
                compared += 1
    if not compared:
        pytest.skip("it takes none of these conversations")


def test_templates_that_are_too_long() -> None:
    with pytest.raises(ModelFileError, match=r"at most 262144 are taken"):
        ChatTemplate("{% set x = 1 %}" * 20000)
