"""Patterns of layers' names match as Python's `re` has it, and in bounded time."""

from __future__ import annotations

import re
import time
import warnings

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tokentrail.checkpoints.name_patterns import UnknownPattern, name_pattern

NAMES = (
    "model.layers.0.self_attn.q_proj",
    "model.layers.17.mlp.experts.3.down_proj",
    "model.layers.5.mlp.gate_up_proj",
    "lm_head",
    "",
    "a",
    "q-proj",
)
PATTERNS = (
    ".*",
    r".*self_attn.*",
    r"model\.layers\.\d+\.mlp\..*",
    r".*\.(q|k|v|o)_proj$",
    r".*(gate_up|down)_proj",
    r"^model\.layers\.[0-9]\..*",
    r"^(?!.*lm_head).*",
    r"(?=.*mlp)(?!.*experts).*_proj$",
    r".*layers\.\d{2,3}\..*",
    r"model\.layers\.(?:1?7|[^0-4\D])\.mlp",
    r"[^\d]+\.\d+.*experts\.\d+\.(gate|up|down)_proj",
    r"lm_head|.*q_proj",
    r"a{0}lm.{0,4}d",
    r".+?proj",
    r"[\w.]+",
    r"[]a-]",
    "$",
    "a?$",
    "(a|b)*?c",
    "",
)


@pytest.mark.parametrize("pattern", PATTERNS)
def test_published_kinds_of_patterns(pattern: str) -> None:
    if r"[^0-4\D]" in pattern:
        with pytest.raises(UnknownPattern):
            name_pattern(pattern)
        return
    for name in NAMES:
        assert name_pattern(pattern).matches(name) == (re.match(pattern, name) is not None), name


pieces = st.sampled_from(
    ["a", "b", ".", "[ab]", "[^a]", "(a|b)", "(ab)", r"\d", r"\.", "(a|)", "1", "$", "(a(b|1))"]
)
quantifiers = st.sampled_from(["", "", "*", "+", "?", "{2}", "{1,3}", "{0,2}", "{2,}", "*?", "{0}"])
repeated = st.tuples(pieces, quantifiers).map(lambda part: part[0] if part[0] == "$" else "".join(part))
patterns = st.lists(repeated, max_size=6).map("".join)


@settings(max_examples=500, deadline=None)
@given(pattern=st.lists(patterns, min_size=1, max_size=3).map("|".join), name=st.text("ab1.", max_size=8))
def test_random_patterns_equal_re(pattern: str, name: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected = re.match(pattern, name) is not None
    assert name_pattern(pattern).matches(name) == expected


@pytest.mark.parametrize(
    "pattern", ["(.*)*x", "(a|a)*(a|a)*x", "(.*.*)*" * 20 + "x", ".*" * 500 + "x", "(((a*)*)*)*x"]
)
def test_patterns_that_would_take_for_ever(pattern: str) -> None:
    started = time.process_time()
    for layer in range(200):
        assert not name_pattern(pattern).matches(
            f"model.layers.{layer}.self_attn.q_proj.aaaaaaaaaaaaaaaaaaaaaaaaaaaa"
        )
    assert time.process_time() - started < 5


@pytest.mark.parametrize(
    "pattern",
    ["(", ")", "a)", "(a", "*", "a**", "[a", "a{", "a{x}", "a{9,1}", "a{1000}", "(a{200}){200}", r"\1", r"\b", "a^",
     "(?i)a", "(?P<n>a)", "a(?!b)", "(" * 60 + ")" * 60, "\\", "(?!a"],
)  # fmt: skip
def test_patterns_that_are_not_known(pattern: str) -> None:
    with pytest.raises(UnknownPattern):
        name_pattern(pattern)
