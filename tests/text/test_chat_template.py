"""Chat templates against `transformers`, and templates that mean harm."""

from __future__ import annotations

import time
from datetime import datetime
from typing import Any

import pytest

from tokentrail.checkpoints import Checkpoint
from tokentrail.protocol import InvalidRequest, ModelFileError
from tokentrail.text import ChatTemplate, template_sandbox
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
    assert time.thread_time() - start < 2
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
    monkeypatch.setattr(template_sandbox, "MAX_SECONDS", 0.5)
    message = refusal(source)
    assert "asks for too much" in message or "Range too big" in message


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
