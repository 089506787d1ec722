"""Chat templates to begin from, and pieces to make others of: some ordinary, most meaning harm."""

from __future__ import annotations

import random

TEMPLATES = {
    "chatml": "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + "
    "'<|im_end|>' + '\n'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}",
    "tools": "{{ bos_token }}{% if tools %}{{ tools | tojson(indent=2) }}{% endif %}{% for m in messages %}"
    "{% if m.tool_calls is defined %}{% for c in m.tool_calls %}{{ c.function | tojson }}{% endfor %}"
    "{% else %}{{ m.role | upper ~ ': ' ~ m.content | trim }}{% endif %}{{ eos_token }}{% endfor %}",
    "namespace": "{% set ns = namespace(found=false, n=0) %}{% for m in messages %}{% if loop.index0 == 9 %}"
    "{% break %}{% endif %}{% set ns.n = ns.n + 1 %}{{ m.role[:2] }}{{ m.content }}{% endfor %}{{ ns.n }}",
    "macro": "{% macro show(m, depth=1) %}{{ '#' * depth }}{{ m.role }}: {{ m.content.split('\n')[0].strip() }}"
    "{% endmacro %}{% for m in messages %}{{ show(m, loop.index) }}{% endfor %}",
    "filters": "{{ messages | map(attribute='role') | unique | list | join(', ') }} {{ messages | length }} "
    "{{ (messages | first).content }} {{ {'b': 1, 'a': [1, 2.5, none]} | tojson }} {{ 'x\ny' | indent(2) }}",
    "refusal": "{% if messages[0].role != 'user' %}{{ raise_exception('no') }}{% endif %}{{ messages[0].content }}",
}

_ATOMS = (
    "messages", "messages[0]", "messages[0].content", "bos_token", "tools", "x", "ns", "loop", "self", "caller",
    "''", "'ab'", "'a' * 9999", "'%s'", "'{0.__class__}'", "'{0[0]}'", "'%999d'", "'{:>9999}'", "0", "1", "-1",
    "7.5", "1e308", "9999999", "10**9", "[]", "{}", "()", "[1, 2]", "{'a': 1}", "none", "true", "range(9)",
    "range(10**8)", "namespace(a=1)", "dict(a=1)", "cycler(1, 2)", "joiner(',')", "strftime_now", "raise_exception",
    "lipsum", "varargs", "kwargs", "undefined_name", "loop.previtem", "'\\u0000'", "'\\ud800'", "f", "g", "f()",
)  # fmt: skip
_ATTRIBUTES = (
    "__class__", "__mro__", "__subclasses__()", "__globals__", "__init__", "__dict__", "format", "format('x')",
    "format_map({})", "join([1])", "join('abc')", "items()", "keys()", "append(1)", "split()", "split('')",
    "replace('a', 'bb')", "replace('', 'x')", "encode()", "_parent", "gi_frame", "f_globals", "mro()", "update({})",
    "real", "content", "role", "strip()", "index('a')", "count('a')", "title()", "center(99)", "ljust(99)",
    "setdefault('a', [])", "pop()", "copy()", "__getitem__(0)", "zfill(10)", "expandtabs(9999)", "translate({})",
    "splitlines()", "next()", "reset()", "current", "changed(1)",
)  # fmt: skip
_FILTERS = (
    "abs", "attr('__class__')", "batch(2)", "capitalize", "count", "d('x')", "dictsort", "e", "first", "float",
    "forceescape", "format(1, 2)", "groupby(0)", "groupby('role')", "indent(9999)", "indent('ab'*99)", "int",
    "int(default=7, base=36)", "items", "join(',')", "join(messages)", "last", "length", "list", "lower",
    "map('upper')", "map(attribute='__class__')", "map('tojson')", "max", "min", "pprint", "random", "reject('none')",
    "replace('a', 'b' * 99)", "reverse", "round(99)", "round(-999999999)", "round", "safe", "select", "slice(3)",
    "sort", "sort(attribute='a.b.c')", "string", "striptags", "sum", "sum(start=[])", "title", "tojson",
    "tojson(indent=4)", "trim", "trim('a')", "truncate(5)", "truncate(9, true, 'x' * 99)", "unique", "upper",
    "urlencode", "urlize", "wordcount", "wordwrap(1)", "xmlattr", "center(9999)", "filesizeformat",
)  # fmt: skip
_TESTS = (
    "defined",
    "none",
    "string",
    "mapping",
    "iterable",
    "sameas(1)",
    "eq(1)",
    "in([1])",
    "divisibleby(0)",
    "odd",
)
_OPERATORS = ("+", "-", "*", "/", "//", "%", "**", "~", "==", "<", "in", "and", "or", "not in")


def expression(draw: random.Random, depth: int = 0) -> str:
    """Any expression; seldom a sensible one."""
    kind = draw.randrange(10 if depth < 5 else 2)
    if kind < 2:
        return draw.choice(_ATOMS)
    inner = expression(draw, depth + 1)
    if kind < 4:
        return f"({inner}) {draw.choice(_OPERATORS)} ({expression(draw, depth + 1)})"
    if kind == 4:
        return f"({inner}).{draw.choice(_ATTRIBUTES)}"
    if kind == 5:
        return f"({inner}) | {draw.choice(_FILTERS)}"
    if kind == 6:
        return f"({inner})[{expression(draw, depth + 1)}]"
    if kind == 7:
        first, last, step = (
            draw.choice(("", "0", "-1")),
            draw.choice(("", "99", "-9")),
            draw.choice(("", "-1", "0")),
        )
        return f"({inner})[{first}:{last}:{step}]"
    if kind == 8:
        return f"({inner}) is {draw.choice(_TESTS)}"
    return f"({inner}) if ({expression(draw, depth + 1)}) else ({expression(draw, depth + 1)})"


def statement(draw: random.Random, depth: int = 0) -> str:
    """Any statement, and what stands in it."""
    kind = draw.randrange(11 if depth < 5 else 2)
    if kind < 2:
        return "{{ " + expression(draw) + " }}"
    body = "".join(statement(draw, depth + 1) for _ in range(draw.randrange(1, 4)))
    value = expression(draw, 2)
    if kind == 2:
        recursive = draw.choice(("", "", " recursive"))
        again = "{{ loop(messages) }}" if recursive else ""
        return f"{{% for x in {value}{recursive} %}}{body}{again}{{% else %}}{body}{{% endfor %}}"
    if kind == 3:
        return f"{{% if {value} %}}{body}{{% endif %}}"
    if kind == 4:
        name = draw.choice("fgx")
        return f"{{% macro {name}(a=1, b={draw.choice('fgx1')}) %}}{body}{{% endmacro %}}{{{{ {name}() }}}}"
    if kind == 5:
        return f"{{% set {draw.choice(('x', 'f', 'ns.a', 'ns._a', 'messages', 'loop'))} = {value} %}}{body}"
    if kind == 6:
        return f"{{% set x %}}{body}{{% endset %}}{{{{ x }}}}"
    if kind == 7:
        return f"{{% filter {draw.choice(_FILTERS)} %}}{body}{{% endfilter %}}"
    if kind == 8:
        return f"{{% call(a) {draw.choice(('f', 'g', 'x', 'joiner'))}({value}) %}}{body}{{% endcall %}}"
    if kind == 9:
        tag = draw.choice(("with x = 1", "generation", "autoescape true", "block b", "raw"))
        return f"{{% {tag} %}}{body}{{% end{tag.split()[0]} %}}"
    return draw.choice(
        (
            "{% break %}",
            "{% continue %}",
            "{% include 'x' %}",
            "{% import 'x' as y %}",
            "{% extends 'x' %}",
            "{% do x %}",
        )
    )


def hostile(draw: random.Random) -> str:
    source = "{% set ns = namespace(a=1) %}" if draw.random() < 0.5 else ""
    return source + "".join(statement(draw) for _ in range(draw.randrange(1, 5)))
