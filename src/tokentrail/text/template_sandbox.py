"""A Jinja2 environment for chat templates that nobody has read: they come with model files from anywhere.

Jinja2's immutable sandbox keeps templates away from Python's insides. What it does not do is bound their
work: ten lines can ask for hours of computing or terabytes of text. Here every loop turn, macro call and
operator is counted against a budget of processor time and of characters, and operations whose result could
be much larger than their operands are checked before they run. Filters and string methods that only pad, or
that draw at random, are left out.

Nothing interrupts Python while it compares, hashes or prints a value, so that containers are measured when they are
made, with all they hold, as often as they hold it: forty times `x = [x, x]` is small in memory and endless in `x == y`.
"""

from __future__ import annotations

import functools
import json
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import datetime
from typing import Any, NamedTuple

import jinja2
import jinja2.ext
from jinja2 import nodes
from jinja2.exceptions import SecurityError
from jinja2.filters import FILTERS, make_attrgetter
from jinja2.runtime import Context, Macro, Undefined
from jinja2.sandbox import ImmutableSandboxedEnvironment

MAX_SECONDS = 3.0
"""Processor time of one rendering. Ordinary templates take about a millisecond."""
MAX_VALUE = 1 << 24
"""Characters, or elements, of one value and of the output."""
MAX_NESTED = 1 << 20
"""Elements that a value has, those of nested containers included."""
MAX_DEPTH = 200
"""Containers within each other: deeper ones, compared or freed, would fill the stack."""
MAX_SLOW = 1 << 20
"""Characters of a text for filters that take it apart: about a second, and a hundred bytes for each."""
MAX_STRIPPED = 1 << 10
"""Characters that `strip` looks for."""
MAX_SORTED = 1 << 17
"""Elements of a list that is sorted."""
MAX_WORK = 1 << 28
"""Characters that all values of one rendering may have together."""
MAX_INTEGER_BITS = 4096


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_FILTERS = _words(
    "abs attr capitalize count d default dictsort e escape first float format groupby indent int items join "
    "last length list lower map max min reject rejectattr replace reverse round safe select selectattr sort "
    "string striptags sum title trim truncate unique upper urlencode wordcount"
)
_COUNTED = _words("dictsort map max min reject rejectattr select selectattr unique")
"""Those that walk through a list; others that do have versions of their own here."""
_STRING_METHODS = _words(
    "capitalize casefold count endswith find format index isalnum isalpha isascii isdecimal isdigit islower "
    "isnumeric isspace istitle isupper join lower lstrip partition removeprefix removesuffix replace rfind "
    "rindex rpartition rsplit rstrip split splitlines startswith strip swapcase title upper"
)
# Widths that pad to thousands of characters, in str.format and in %-formatting; nested or starred ones.
_WIDE_FORMAT = re.compile(r"\{[^{}]*(?:\d{4,}|\{)")
_WIDE_PERCENT = re.compile(r"%[^a-zA-Z%]*(?:\d{4,}|\*)")


_CONTAINERS = (list, tuple, set, frozenset)


class TemplateRefusal(Exception):
    """The template called `raise_exception`: the messages are not ones it takes."""


class TemplateLimit(Exception):
    """The template asked for more work or memory than it may have."""


class _Budget:
    __slots__ = ("deadline", "known", "work")

    def __init__(self) -> None:
        self.known: dict[int, tuple[Any, _Weight]] = {}
        self.deadline = time.thread_time() + MAX_SECONDS
        self.work = MAX_WORK


_budget: ContextVar[_Budget | None] = ContextVar("template_budget", default=None)


@contextmanager
def limited() -> Iterator[None]:
    """Renderings inside this context have one budget."""
    token = _budget.set(_Budget())
    try:
        yield
    finally:
        _budget.reset(token)


def _spend(amount: int) -> None:
    """Take `amount` characters (or elements) from the running budget, before they are made."""
    if amount > MAX_VALUE:
        raise TemplateLimit(f"a value of {amount} characters or elements (at most {MAX_VALUE})")
    budget = _budget.get()
    if budget is not None:
        budget.work -= amount + 1
        if budget.work < 0:
            raise TemplateLimit(f"values of more than {MAX_WORK} characters together")
        if time.thread_time() > budget.deadline:
            raise TemplateLimit(f"more than {MAX_SECONDS:g} seconds")


def _size(value: Any) -> int:
    """Characters that `str(value)` has, roughly, or a `TemplateLimit` when they are too many.

    Containers are counted with all they hold, as often as they hold it: a list of two lists of two lists …
    is small in memory and endless in print.
    """
    return len(value) if isinstance(value, str) else _weigh(value).size


class _Weight(NamedTuple):
    """Of a value with all that it holds, as often as it holds it."""

    size: int
    """As `_size` has it."""
    elements: int
    depth: int


def _weigh(value: Any) -> _Weight:
    """Raises a `TemplateLimit` where the value is too large or too deep."""
    budget = _budget.get()
    return _weigh_known(value, {} if budget is None else budget.known)


def _weigh_known(value: Any, known: dict[int, tuple[Any, _Weight]]) -> _Weight:
    """Containers are weighed once in a rendering: nothing in a template changes one."""
    if isinstance(value, str):
        return _Weight(len(value), 1, 0)
    if not isinstance(value, (Mapping, *_CONTAINERS)):
        return _Weight(8, 1, 0)
    found = known.get(id(value))
    if found is not None:
        return found[1]
    size, elements, depth = 2 * len(value), 1, 0
    for item in (*value.keys(), *value.values()) if isinstance(value, Mapping) else value:
        weight = _weigh_known(item, known)
        size, elements, depth = size + weight.size, elements + weight.elements, max(depth, weight.depth)
        if size > MAX_VALUE or elements > MAX_NESTED:
            raise TemplateLimit(f"a value of more than {MAX_VALUE} characters or {MAX_NESTED} elements")
        if depth >= MAX_DEPTH:
            raise TemplateLimit(f"containers nested more than {MAX_DEPTH} deep")
    weight = _Weight(size, elements, depth + 1)
    known[id(value)] = value, weight  # the value, so that no other takes its place in memory
    return weight


def _check_container(value: Any) -> Any:
    """Measure a container that has just been made, if it holds others."""
    items = value.values() if isinstance(value, Mapping) else value
    if any(isinstance(item, (Mapping, *_CONTAINERS)) for item in items):
        _weigh(value)
        _spend(0)
    return value


def _text(value: Any) -> str:
    _spend(_size(value))
    return str(value)


# --- operators, methods and filters with a bound ------------------------------------------------------------


def _check_multiply(left: Any, right: Any) -> None:
    for sequence, times in ((left, right), (right, left)):
        count = max(times, 0) if isinstance(times, int) else 0
        if isinstance(sequence, str):
            _spend(len(sequence) * count)
            return
        if isinstance(sequence, (list, tuple)):
            _check_elements(_weigh(sequence).elements * count)
            return
    if isinstance(left, int) and isinstance(right, int):
        _check_bits(left.bit_length() + right.bit_length())


def _check_power(left: Any, right: Any) -> None:
    if isinstance(left, int) and isinstance(right, int):
        _check_bits(left.bit_length() * abs(right))


def _check_bits(bits: int) -> None:
    _spend(0)
    if bits > MAX_INTEGER_BITS:
        raise TemplateLimit(f"an integer of more than {MAX_INTEGER_BITS} bits")


def _check_add(left: Any, right: Any) -> None:
    if isinstance(left, str) and isinstance(right, str):
        _spend(len(left) + len(right))
    elif isinstance(left, (list, tuple)) and isinstance(right, (list, tuple)):
        _check_elements(_weigh(left).elements + _weigh(right).elements)
    else:
        _spend(0)


def _check_elements(count: int) -> None:
    _spend(count)
    if count > MAX_NESTED:
        raise TemplateLimit(f"a value of {count} elements (at most {MAX_NESTED})")


def _check_percent(left: Any, right: Any) -> None:
    if isinstance(left, str):
        if _WIDE_PERCENT.search(left):
            raise TemplateLimit("formatting to a width of thousands")
        # Each argument appears once, unless a mapping is named several times.
        _spend(len(left) + _size(right) * (left.count("%") if isinstance(right, Mapping) else 1))


_CHECKS: dict[str, Callable[[Any, Any], None]] = {
    "*": _check_multiply,
    "**": _check_power,
    "+": _check_add,
    "%": _check_percent,
}


def _check_replace(text: str, old: Any, new: Any, count: Any = -1) -> None:
    if isinstance(old, str) and isinstance(new, str):
        found = text.count(old)
        if isinstance(count, int) and count >= 0:
            found = min(found, count)
        _spend(len(text) + found * max(len(new) - len(old), 0))


def _check_format(text: str, *args: Any, **kwargs: Any) -> None:
    if _WIDE_FORMAT.search(text):
        raise TemplateLimit("formatting to a width of thousands")
    # Any argument may be named at every brace.
    largest = max((_size(value) for value in (*args, *kwargs.values())), default=0)
    _spend(len(text) + text.count("{") * largest)


def _filter_replace(s: Any, old: Any, new: Any, count: int | None = None) -> str:
    text, old, new = _text(s), _text(old), _text(new)
    _check_replace(text, old, new, -1 if count is None else count)
    return text.replace(old, new, -1 if count is None else count)


@jinja2.pass_environment
def _filter_join(environment: jinja2.Environment, value: Any, d: Any = "", attribute: Any = None) -> str:
    ticking = _ticking(value)
    items = list(ticking if attribute is None else map(make_attrgetter(environment, attribute), ticking))
    separator = _text(d)
    _spend(sum(map(_size, items)) + len(separator) * len(items))
    return separator.join(map(str, items))


def _filter_indent(value: Any, width: Any = 4, first: bool = False, blank: bool = False) -> Any:
    text = _text(value)
    size = width if isinstance(width, int) else len(_text(width))
    _spend(len(text) + max(size, 0) * (text.count("\n") + 1))
    return FILTERS["indent"](text, width, first, blank)


def _filter_format(value: Any, *args: Any, **kwargs: Any) -> str:
    if args and kwargs:
        raise jinja2.TemplateRuntimeError("format takes positional or keyword arguments, not both")
    text, values = _text(value), kwargs or args
    _check_percent(text, values)
    return str(text % values)


def _bounded_sort(name: str) -> Callable[..., Any]:
    """Jinja2's filter of this name, which sorts, for lists that are soon sorted: nothing can interrupt it."""
    plain = FILTERS[name]

    @jinja2.pass_environment
    def bounded(environment: jinja2.Environment, value: Any, *args: Any, **kwargs: Any) -> Any:
        items = list(_ticking(value))
        if len(items) > MAX_SORTED:
            raise TemplateLimit(f"a sorted list of {len(items)} elements (at most {MAX_SORTED})")
        _check_container(items)
        return _check_container(plain(environment, items, *args, **kwargs))

    return bounded


def _ticking(values: Any) -> Iterator[Any]:
    """The same values, each of them counted."""
    for value in values:
        _spend(1)
        yield value


def _counted(name: str) -> Callable[..., Any]:
    """Jinja2's filter of this name, whose turns through a list count, and whose lists are measured."""
    plain = FILTERS[name]

    @functools.wraps(plain)  # with what Jinja2 writes on it: whether it takes the environment or the context
    def counted(*args: Any, **kwargs: Any) -> Any:
        _spend(0)
        at = 1 if hasattr(plain, "jinja_pass_arg") else 0
        if (
            len(args) > at
            and not isinstance(args[at], (str, Mapping, Undefined))
            and isinstance(args[at], Iterable)
        ):
            args = (*args[:at], _ticking(args[at]), *args[at + 1 :])
        result = plain(*args, **kwargs)
        return _check_container(result) if isinstance(result, (list, tuple, dict)) else result

    return counted


def _filter_list(value: Any) -> list[Any]:
    if isinstance(value, str):
        _check_elements(len(value))
    items: list[Any] = []
    for item in value:
        _spend(1)
        items.append(item)
        if len(items) > MAX_NESTED:
            raise TemplateLimit(f"a list of more than {MAX_NESTED} elements")
    _check_container(items)
    return items


def _filter_round(value: Any, precision: Any = 0, method: str = "common") -> Any:
    if isinstance(precision, int) and abs(precision) > 300:
        raise TemplateLimit("rounding to more than 300 digits")
    return FILTERS["round"](value, precision, method)


def _slow(name: str) -> Callable[[Any], Any]:
    """Jinja2's filter of this name, for texts that are not long."""
    plain = FILTERS[name]

    def bounded(value: Any) -> Any:
        size = _size(value)
        _spend(size)
        if size > MAX_SLOW:
            raise TemplateLimit(f"the filter {name} on {size} characters (at most {MAX_SLOW})")
        return plain(value)

    return bounded


def _filter_trim(value: Any, chars: Any = None) -> str:
    text = _text(value)
    _check_strip(text, chars)
    return text.strip(chars)


def _check_strip(text: str, chars: Any = None) -> None:
    """Python looks each character up in a text, from its beginning."""
    if isinstance(chars, str) and len(chars) > MAX_STRIPPED:
        raise TemplateLimit(f"{len(chars)} characters to strip (at most {MAX_STRIPPED})")


@jinja2.pass_environment
def _filter_sum(environment: jinja2.Environment, iterable: Any, attribute: Any = None, start: Any = 0) -> Any:
    total = start
    numbers = iterable if attribute is None else map(make_attrgetter(environment, attribute), iterable)
    for number in _ticking(numbers):
        if not isinstance(number, (int, float)) or not isinstance(total, (int, float)):
            raise jinja2.TemplateRuntimeError("sum takes numbers only")
        total = total + number
    return total


def _filter_tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """As `transformers` has it: plain JSON, where Jinja2's own filter would escape HTML characters."""
    width = 0 if indent is None else indent if isinstance(indent, int) else len(indent)
    if width > 64 or any(len(separator) > 64 for separator in separators or ()):
        raise TemplateLimit("an indentation or separators of more than 64 characters")
    if isinstance(value, str):
        _spend(6 * len(value))
    else:
        size, elements, depth = _weigh(value)
        # Every element may stand on its own line, indented as deep as it is nested.
        _spend(size + elements * (width * depth + sum(map(len, separators or ()))))
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _raise_exception(message: Any = "") -> None:
    raise TemplateRefusal(_text(message))


def _strftime_now(format: str) -> str:
    if not isinstance(format, str) or len(format) > 256:
        raise TemplateLimit("a date format of more than 256 characters")
    return datetime.now().strftime(format)


class _Namespace(jinja2.utils.Namespace):
    """Jinja2's, without names that begin with an underscore."""

    def __init__(*args: Any, **kwargs: Any) -> None:
        self, args = args[0], args[1:]
        attributes = dict(*args, **kwargs)
        for name in attributes:
            _check_name(name)
        jinja2.utils.Namespace.__init__(self, attributes)

    def __setitem__(self, name: str, value: Any) -> None:
        _check_name(name)
        super().__setitem__(name, value)


def _check_name(name: Any) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise SecurityError(f"a namespace cannot hold {name!r:.80}")


class _GenerationTag(jinja2.ext.Extension):
    """`{% generation %}` … `{% endgeneration %}` marks words for training; here it only groups."""

    tags = {"generation"}  # noqa: RUF012 (as Jinja2 declares it)

    def parse(self, parser: Any) -> Any:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=line)


class ChatTemplateEnvironment(ImmutableSandboxedEnvironment):
    """The sandbox. One instance serves all templates and threads; the budget belongs to the rendering."""

    intercepted_binops = frozenset(_CHECKS)

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            optimized=False,  # constant folding would work at load, outside any budget
            extensions=[_GenerationTag, jinja2.ext.loopcontrols],
            finalize=self._printed,
        )
        self.filters = {name: function for name, function in FILTERS.items() if name in _FILTERS}
        self.filters.update(
            **{name: _counted(name) for name in _COUNTED},
            **{name: _slow(name) for name in ("striptags", "title", "urlencode", "wordcount")},
            format=_filter_format,
            groupby=_bounded_sort("groupby"),
            indent=_filter_indent,
            join=_filter_join,
            list=_filter_list,
            replace=_filter_replace,
            round=_filter_round,
            sort=_bounded_sort("sort"),
            string=_text,
            sum=_filter_sum,
            tojson=_filter_tojson,
            trim=_filter_trim,
        )
        del self.globals["lipsum"]
        self.globals.update(
            raise_exception=_raise_exception, strftime_now=_strftime_now, namespace=_Namespace
        )

    def compile_template(self, source: str) -> jinja2.Template:
        """Raises Jinja2's `TemplateSyntaxError` and its relatives."""
        tree = self.parse(source)
        _count_work(tree)
        return jinja2.Template.from_code(self, self.compile(tree), self.make_globals(None))

    # Called from compiled templates, where `_count_work` puts them.

    def _printed(self, value: Any) -> Any:
        if not isinstance(value, Undefined):
            _spend(_size(value))
        return value

    def tick(self, amount: int) -> str:
        _spend(amount)
        return ""

    def made(self, container: Any) -> Any:
        return _check_container(container)

    def joined(self, *values: Any) -> str:
        _spend(sum(map(_size, values)))
        return "".join(map(str, values))

    # The sandbox's own hooks.

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        _CHECKS[operator](left, right)
        result = super().call_binop(context, operator, left, right)
        budget = _budget.get()
        if budget is not None and operator == "+" and isinstance(result, (list, tuple)):
            # Lists that grow by one are not weighed from the beginning each time.
            first, second = _weigh(left), _weigh(right)
            size, elements = first.size + second.size, first.elements + second.elements
            budget.known[id(result)] = result, _Weight(size, elements, max(first.depth, second.depth))
        return result

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        if isinstance(obj, str):
            return attr in _STRING_METHODS
        if isinstance(obj, (int, float, bytes)):
            return False
        return super().is_safe_attribute(obj, attr, value)

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        wrapped = super().wrap_str_format(value)
        if wrapped is None:
            return None
        text, method, plain = value.__self__, value.__name__, wrapped

        def checked(*args: Any, **kwargs: Any) -> str:
            if method == "format_map":
                raise SecurityError("format_map is not available")
            _check_format(text, *args, **kwargs)
            return plain(*args, **kwargs)

        return checked

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:
        _spend(0)
        owner = getattr(__obj, "__self__", None)
        if isinstance(owner, str):
            name = __obj.__name__
            if name == "replace":
                # Compiled templates pass their variables along (`_loop_vars`, `_block_vars`).
                own = {key: value for key, value in kwargs.items() if not key.startswith("_")}
                _check_replace(owner, *args, **own)
            elif name in ("strip", "lstrip", "rstrip"):
                _check_strip(owner, *args)
                _spend(len(owner))
            elif name == "join" and args:
                args = (list(_ticking(args[0])),)
                _spend(sum(map(_size, args[0])) + len(owner) * len(args[0]))
            else:
                _spend(len(owner))
        elif isinstance(__obj, Macro) and (__obj.catch_varargs or __obj.catch_kwargs):
            _weigh([args, kwargs])  # which it sees as containers
        result = super().call(__context, __obj, *args, **kwargs)
        return _check_container(result) if isinstance(result, dict) else result


def _count_work(tree: nodes.Template) -> None:
    """Put a count at the start of every loop turn and macro call, in place of every concatenation (`~`), and around
    every container.

    A turn costs what its literal text has in characters, as that text is printed without passing `finalize`.
    """
    for kind in (nodes.For, nodes.Macro, nodes.CallBlock):
        for node in tree.find_all(kind):
            assert isinstance(node, (nodes.For, nodes.Macro, nodes.CallBlock))
            text = sum(len(data.data) for data in node.find_all(nodes.TemplateData))
            node.body.insert(0, nodes.ExprStmt(_environment_call("tick", [nodes.Const(text)])))
    _replace(tree)
    assert tree.environment is not None
    tree.set_environment(tree.environment)


def _replace(node: nodes.Node) -> None:
    for field, value in node.iter_fields():
        if isinstance(value, list):
            for index, item in enumerate(value):
                if isinstance(item, nodes.Node):
                    value[index] = _replaced(item)
        elif isinstance(value, nodes.Node):
            setattr(node, field, _replaced(value))


def _replaced(node: nodes.Node) -> nodes.Node:
    """The node, or a call that does what it would, counted."""
    _replace(node)
    if isinstance(node, nodes.Concat):
        return _environment_call("joined", node.nodes)
    # A tuple may also be what a loop assigns to.
    is_value = isinstance(node, (nodes.Dict, nodes.List)) or (
        isinstance(node, nodes.Tuple) and node.ctx == "load"
    )
    return _environment_call("made", [node]) if is_value else node


def _environment_call(name: str, arguments: list[Any]) -> nodes.Call:
    return nodes.Call(nodes.EnvironmentAttribute(name), arguments, [], None, None)
