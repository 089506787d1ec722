"""What a stranger's tokenizer.json may cost: checked when it is loaded, since nothing stops the library once it runs.

Its steps may make text longer at each turn (ten replacements of `a` by `aaaa` make a million of one), and its patterns
may look back over and over (`a*a*b`), for minutes where a text is long. Oniguruma gives up on a single match after ten
million steps, but not on a search, which is a match at every place.
"""

from __future__ import annotations

import base64
import binascii
import math
import time
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, NoReturn

import msgspec

from tokentrail.protocol import ModelFileError
from tokentrail.text.charsmap import longest_replacement

if TYPE_CHECKING:
    import tokenizers

MAX_GROWTH = 4096
"""How many times longer all steps together may make a text. Ordinary ones come to about ten."""
MAX_REPLACEMENT = 1024
"""Characters that one character may become."""
MAX_PATTERNS = 64
MAX_ADDED_TOKENS = 1 << 18
MAX_PATTERN = 2048
"""Characters of a pattern. Real ones have some hundreds."""
PROBED_LENGTHS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024)
"""Each little more than the one before: a pattern that is slow shows before it is slow without end."""
MAX_PROBE_SECONDS = 0.05
"""Processor time. Ordinary patterns take less than a millisecond."""
_PROBES = "aA1 \n'-世"
_MAX_PROBES = 12

State = Mapping[str, Any]


def check_limits(tokenizer: tokenizers.Tokenizer, origin: str) -> None:
    """Raise `ModelFileError` for a tokenizer that could take memory or time without bound."""

    def fail(problem: str) -> NoReturn:
        raise ModelFileError(
            f"{origin}: the tokenizer {problem}. Use the tokenizer files that the model's makers published."
        )

    try:
        normalizer, words = _state(tokenizer.normalizer), _state(tokenizer.pre_tokenizer)
        steps = [*_steps(normalizer, "normalizers"), *_steps(words, "pretokenizers")]
        _check_growth("its steps make", steps, fail)
        _check_growth("its decoder makes", list(_steps(_state(tokenizer.decoder), "decoders")), fail)
        _check_template(list(_steps(_state(tokenizer.post_processor), "processors")), fail)
        patterns = [pattern for step in steps if (pattern := _pattern(step)) is not None]
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        fail(f"has settings that make no sense ({type(error).__name__}: {error})"[:300])
    if len(patterns) > MAX_PATTERNS:
        fail(f"has {len(patterns)} patterns; at most {MAX_PATTERNS} are possible")
    if (longest := max(map(len, patterns), default=0)) > MAX_PATTERN:
        fail(f"has a pattern of {longest} characters; at most {MAX_PATTERN} are possible")
    if patterns:
        check_patterns(lambda text: tokenizer.encode(text, add_special_tokens=False), patterns, origin)


def check_patterns(encode: Callable[[str], object], patterns: list[str], origin: str) -> None:
    """Raise `ModelFileError` where a run of one character takes long, or more than the library's patience.

    Tried are characters that the patterns themselves name. What grows with the third power of a text's length or faster
    is found; what grows with the second passes, and so does a pattern made to be slow for one text alone.
    """
    own = sorted({character for pattern in patterns for character in pattern if character.isprintable()})
    # Letters first: most others mean something in patterns.
    own.sort(key=lambda character: not character.isalnum())
    for character in list(dict.fromkeys([*_PROBES, *own]))[:_MAX_PROBES]:
        for length in PROBED_LENGTHS:
            if _seconds(encode, character * length + "!") > MAX_PROBE_SECONDS:
                raise ModelFileError(
                    f"{origin}: the tokenizer's patterns take too long: for {length} times {character!r}, more than "
                    f"{MAX_PROBE_SECONDS:g} seconds. Use the tokenizer files that the model's makers published."
                )


def _seconds(encode: Callable[[str], object], text: str) -> float:
    """Processor time; infinite where the library gives a match up."""
    begun = time.thread_time()
    try:
        encode(text)
    except BaseException as error:
        # It panics then; a panic is no `Exception`. What a text may lack otherwise shows when it is used.
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        if "retry-limit" in str(error):
            return math.inf
    return time.thread_time() - begun


def _state(part: Any) -> State | None:
    """The JSON of a part of the tokenizer."""
    if part is None:
        return None
    state = msgspec.json.decode(part.__getstate__())
    return state if isinstance(state, dict) else None


def _steps(state: State | None, inner: str) -> Iterator[State]:
    """Those of a sequence, and of sequences in it."""
    if state is None:
        return
    if state.get("type") == "Sequence":
        for step in state[inner]:
            yield from _steps(step, inner)
    else:
        yield state


def _pattern(step: State) -> str | None:
    pattern = step.get("pattern")
    return pattern.get("Regex") if isinstance(pattern, dict) else None


def _check_growth(who: str, steps: list[State], fail: Callable[[str], NoReturn]) -> None:
    growth = 1.0
    for step in steps:
        factor, longest = _growth(step, fail)
        if longest > MAX_REPLACEMENT:
            fail(f"replaces characters by {longest} others; at most {MAX_REPLACEMENT} are possible")
        growth *= factor
    if growth > MAX_GROWTH:
        fail(
            f"cannot be run: {who} a text up to {growth:.3g} times longer; at most {MAX_GROWTH} times is possible"
        )


def _growth(step: State, fail: Callable[[str], NoReturn]) -> tuple[float, int]:
    """(how many times longer a step may make a text, characters that it puts in place of one)."""
    kind = step.get("type")
    if kind == "Replace":
        pattern, content = step["pattern"], len(step["content"])
        replaced = len(pattern.get("String", "")) if isinstance(pattern, dict) else 0
        # A pattern may match nothing, between any two characters.
        return (max(content / replaced, 1.0) if replaced else 1.0 + content), content
    if kind == "Prepend":
        return 1.0, len(step["prepend"])
    if kind == "ByteLevel":
        return 2.0, 1
    if kind == "Precompiled":
        try:
            charsmap = base64.b64decode(step["precompiled_charsmap"])
        except binascii.Error:
            fail("has normalization rules that are damaged")
        return 2.0, longest_replacement(charsmap)
    if kind in ("Strip", "WordPiece", "BPEDecoder"):
        return 1.0, max((len(value) for value in step.values() if isinstance(value, str)), default=0)
    return 1.0, 0


def _check_template(steps: list[State], fail: Callable[[str], NoReturn]) -> None:
    """What is put around a text holds it once."""
    templates = [step for step in steps if step.get("type") == "TemplateProcessing"]
    texts = sum("Sequence" in piece for template in templates for piece in template["single"])
    pieces = sum(len(template["single"]) for template in templates)
    if texts > len(templates) or len(templates) > 4 or pieces > MAX_REPLACEMENT:
        fail(f"puts {pieces} tokens and the text {texts} times where a text stands")
