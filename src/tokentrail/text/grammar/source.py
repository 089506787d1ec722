"""What a request asks for → one grammar text, checked."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from functools import lru_cache
from types import MappingProxyType
from typing import Any

from tokentrail.protocol import InvalidRequest, StructuredOutputsParams
from tokentrail.text.grammar.limits import MAX_SOURCE, parser_limits
from tokentrail.text.grammar.structural_tag import StructuralTag

NO_MARKS: Mapping[str, int] = MappingProxyType({})

_JSON_OPTIONS = {
    # Where a token is the only one that can follow, nobody need compute which it is.
    "whitespace_flexible": False,
    "item_separator": ",",
    "key_separator": ":",
    # A keyword that is not known is an error: an answer must be exactly what was asked for.
    "lenient": False,
    "coerce_one_of": False,
}
_MOST_SHOWN = 300


def build_grammar(wanted: StructuredOutputsParams, marks: Mapping[str, int] = NO_MARKS) -> str:
    """The grammar for an answer of the wanted form, as `GrammarTokenizer.compile` takes it. `marks`: tokens that
    structural tags may name.

    Raises `InvalidRequest` naming the field and what is wrong with it. May take a second; releases the GIL.
    """
    grammar = json.dumps({"grammars": sources_of(wanted, marks)})
    check(grammar, wanted.field)
    return grammar


def sources_of(wanted: StructuredOutputsParams, marks: Mapping[str, int] = NO_MARKS) -> list[dict[str, Any]]:
    """`wanted` as members of llguidance's list of grammars, unchecked: one called `answer`, and those it refers to.
    Raises `InvalidRequest` naming the field.
    """
    wanted.validate()
    try:
        if wanted.structural_tag is not None:
            return _structural(wanted.structural_tag, marks)
        return [{"name": "answer", **_source(wanted)}]
    except InvalidRequest as error:
        raise _invalid(wanted.field, error.message) from None


def source_of(wanted: StructuredOutputsParams) -> dict[str, Any]:
    """The same for a form that one grammar says."""
    source = dict(sources_of(wanted)[0])
    del source["name"]
    return source


def check(grammar: str, field: str) -> None:
    """Raise `InvalidRequest` naming `field` if the grammar cannot be used."""
    problem = _problem(grammar)
    if problem:
        raise _invalid(field, problem)


def _source(wanted: StructuredOutputsParams) -> dict[str, Any]:
    """`wanted` as a member of llguidance's list of grammars. Raises `InvalidRequest` without a field."""
    if wanted.json_object:
        return {"json_schema": json_schema({"type": "object"}, wanted.whitespace_pattern)}
    if wanted.json is not None and wanted.json is not False:
        return {"json_schema": json_schema(wanted.json, wanted.whitespace_pattern)}
    if wanted.regex is not None:
        return {"lark_grammar": regex(wanted.regex)}
    if wanted.choice is not None:
        return {"lark_grammar": choice(wanted.choice)}
    assert wanted.grammar is not None
    return {"lark_grammar": lark(wanted.grammar)}


def _structural(given: str | dict[str, Any], marks: Mapping[str, int]) -> list[dict[str, Any]]:
    given = _read(given, "structural tag")
    if not isinstance(given, dict):
        raise InvalidRequest("a structural tag must be an object")

    def schema(given: Any) -> str:
        return f"%json {json.dumps(json_schema(given))}"

    tag = StructuralTag(marks, schema=schema, regex=pattern_of, grammar=lark)
    try:
        source = tag.lark(given)
    except RecursionError:
        raise InvalidRequest("the structural tag is nested too deeply") from None
    _check_size(source)
    return [{"name": "answer", "lark_grammar": source}, *tag.parts]


def _read(given: Any, what: str) -> Any:
    """A value, which may come as a text of JSON."""
    if not isinstance(given, str):
        return given
    _check_size(given)
    try:
        return json.loads(given)
    except (ValueError, RecursionError) as error:
        raise InvalidRequest(f"the {what} is not valid JSON ({error})") from None


def json_schema(schema: str | dict[str, Any] | bool, whitespace: str | None = None) -> dict[str, Any]:
    """A schema whose answers are compact JSON, or have space as a regular expression says."""
    schema = _read(schema, "JSON schema")
    if schema is True:
        schema = {}
    if not isinstance(schema, dict):
        raise InvalidRequest("the JSON schema must be an object")
    try:
        _check_size(json.dumps(schema))
    except RecursionError:
        raise InvalidRequest("the JSON schema is nested too deeply") from None
    options: dict[str, Any] = dict(_JSON_OPTIONS)
    if whitespace is not None:
        _check_size(whitespace)
        options |= {"whitespace_flexible": True, "whitespace_pattern": whitespace}
    return {**schema, "x-guidance": options}


def regex(pattern: str) -> str:
    """A grammar for what `pattern` matches as a whole."""
    return f"start: {pattern_of(pattern)}"


def pattern_of(pattern: str) -> str:
    """A regular expression in Lark's syntax. Anchors at its ends say what is so anyway."""
    from llguidance import regex_to_lark

    _check_size(pattern)
    pattern = pattern.removeprefix("^")
    if (end := re.search(r"(\\*)\$\Z", pattern)) and len(end[1]) % 2 == 0:
        pattern = pattern[:-1]
    try:
        return f"/{regex_to_lark(pattern, use_ascii='d')}/"
    except ValueError as error:
        raise InvalidRequest(str(error)) from None


def choice(texts: tuple[str, ...]) -> str:
    """A grammar for one of the texts."""
    if not texts or not all(isinstance(text, str) and text for text in texts):
        raise InvalidRequest("choice must be a list of texts that are not empty")
    _check_size("".join(texts))
    return "start: " + " | ".join(json.dumps(text, ensure_ascii=False) for text in texts)


def lark(grammar: str) -> str:
    """A grammar in Lark's or llama.cpp's notation, in Lark's."""
    from llguidance.gbnf_to_lark import any_to_lark

    _check_size(grammar)
    try:
        return str(any_to_lark(grammar))
    except Exception as error:  # of any kind: the converter is a small parser without errors of its own
        raise InvalidRequest(f"it is neither a Lark grammar nor GBNF ({error})") from None


@lru_cache(maxsize=256)
def _problem(grammar: str) -> str:
    """What is wrong with a grammar; empty: nothing."""
    from llguidance._lib import LLMatcher

    try:
        failed, messages = LLMatcher.validate_grammar_with_warnings(grammar, limits=parser_limits())
    except ValueError as error:
        return str(error)
    except BaseException as error:
        if type(error).__name__ != "PanicException":  # the library's own way to fail, which is no Exception
            raise
        return "it is too complex"
    return messages[0] if failed else ""


def _check_size(text: str) -> None:
    if len(text) > MAX_SOURCE:
        raise InvalidRequest(f"it has {len(text)} characters, more than {MAX_SOURCE}")


def _invalid(field: str, problem: str) -> InvalidRequest:
    if unknown := re.match(r"Unimplemented keys: \[(.*)\]", problem):
        problem = f"the JSON Schema keywords {unknown[1]} are not supported"
    problem = " ".join(problem.split()).rstrip(".")
    if len(problem) > _MOST_SHOWN:
        problem = problem[:_MOST_SHOWN] + "…"
    return InvalidRequest(f"{field} cannot be used: {problem}.", param=field)
