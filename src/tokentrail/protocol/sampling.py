"""How tokens are chosen: the sampling parameters of one request, with OpenAI's and vLLM's meaning."""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import Any

import msgspec

from tokentrail.protocol.errors import InvalidRequest

MAX_SEED = 2**63 - 1
MAX_STOP_CHARACTERS = 8192
"""Of all stop strings together: searching for them takes memory for each character."""

# The engine computes with 32-bit numbers: what is above 0 must not become 0 there, nor a finite number infinite.
_MAX_INT32 = 2**31 - 1
_MIN_FLOAT32 = 2.0**-126
_MAX_FLOAT32 = (2.0 - 2.0**-23) * 2.0**127


class StructuredOutputsParams(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What form an answer must have, of which exactly one is given. Names as in vLLM."""

    json: str | dict[str, Any] | bool | None = None
    """A JSON Schema, as text or as it is. The answer is compact JSON that it allows."""
    json_object: bool = False
    """Any JSON object."""
    regex: str | None = None
    """A regular expression that the whole answer matches (Rust's syntax)."""
    choice: tuple[str, ...] | None = None
    """One of these texts."""
    grammar: str | None = None
    """A context-free grammar: llguidance's Lark, or GBNF as in llama.cpp."""
    structural_tag: str | dict[str, Any] | None = None
    """Text with parts that have a form of their own, as vLLM and XGrammar describe it; an object, or its JSON."""
    whitespace_pattern: str | None = None
    """Of JSON: a regular expression for the space that may stand between its tokens; None: there is none."""
    field: str = "structured_outputs"
    """The request's field that it came from: errors name it."""

    def validate(self) -> None:
        """Raise `InvalidRequest` unless exactly one form is given."""
        given = [name for name in _FORMS if getattr(self, name) not in (None, False)]
        if len(given) != 1:
            what = ", ".join(given) or "none"
            raise InvalidRequest(
                f"{self.field} must have exactly one of {', '.join(_FORMS)}, not {what}.", param=self.field
            )
        if self.whitespace_pattern is not None and self.json is None and not self.json_object:
            raise InvalidRequest(
                f"{self.field}: whitespace_pattern needs json or json_object.", param=self.field
            )


_FORMS = ("json", "json_object", "regex", "choice", "grammar", "structural_tag")


class SamplingParams(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Sampling parameters of one request.

    Sources: OpenAI API reference (`max_tokens`, `temperature`, `top_p`, penalties, `logit_bias`, `stop`,
    `seed`, `n`, `logprobs`) and vLLM's `SamplingParams` (the rest).
    """

    max_tokens: int | None = None
    """Tokens to generate at most; None: all that the context has left."""
    temperature: float = 1.0
    """0 is greedy."""
    top_p: float = 1.0
    top_k: int = 0
    """0 or -1: all tokens."""
    min_p: float = 0.0
    typical_p: float = 1.0
    """Of what these have left, the tokens whose surprise is nearest to the mean, which hold this share; as in TGI."""
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    repetition_penalty: float = 1.0
    """Over prompt and output tokens, as vLLM does."""
    logit_bias: dict[int, float] = {}
    """Token id → value added to its logit, -100 … 100."""
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    seed: int | None = None
    """None: one is drawn when the request is admitted, and returned."""
    n: int = 1
    logprobs: int | None = None
    """None: no log-probabilities asked for; k: those of the chosen token and of the k most likely."""
    prompt_logprobs: int | None = None
    """The same for the prompt's tokens (the first has none)."""
    ignore_eos: bool = False
    min_tokens: int = 0
    """Before so many tokens, neither an end-of-sequence token nor a stop token or string ends the answer."""
    include_stop_str_in_output: bool = False
    skip_special_tokens: bool = True
    structured_outputs: StructuredOutputsParams | None = None
    allowed_token_ids: tuple[int, ...] | None = None
    """None: every token may come; else only these (an end-of-sequence token, too, must be among them)."""
    bad_words: tuple[str, ...] = ()
    """Texts that must not be generated: the tokens that they are written with, at a text's start or behind a space."""
    bad_token_ids: tuple[tuple[int, ...], ...] = ()
    """Runs of tokens that must not be generated; `bad_words` become such on admission."""

    def validate(self, *, vocab_size: int | None = None) -> None:
        """Raise `InvalidRequest` naming the first field out of range, its value and the range."""
        _check_int("max_tokens", self.max_tokens, low=1, optional=True)
        _check_float("temperature", self.temperature, 0.0, 2.0)
        _check_float("top_p", self.top_p, 0.0, 1.0, open_low=True)
        _check_int("top_k", self.top_k, low=-1, high=_MAX_INT32)
        _check_float("min_p", self.min_p, 0.0, 1.0)
        _check_float("typical_p", self.typical_p, 0.0, 1.0, open_low=True)
        _check_float("frequency_penalty", self.frequency_penalty, -2.0, 2.0)
        _check_float("presence_penalty", self.presence_penalty, -2.0, 2.0)
        _check_float("repetition_penalty", self.repetition_penalty, 0.0, _MAX_FLOAT32, open_low=True)
        _check_int("seed", self.seed, low=-(2**63), high=MAX_SEED, optional=True)
        _check_int("n", self.n, low=1, high=128)
        _check_int("logprobs", self.logprobs, low=0, high=20, optional=True)
        _check_int("prompt_logprobs", self.prompt_logprobs, low=0, high=20, optional=True)
        _check_int("min_tokens", self.min_tokens, low=0)
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise InvalidRequest(
                f"min_tokens ({self.min_tokens}) must not be above max_tokens ({self.max_tokens}).",
                param="min_tokens",
            )
        for text in self.stop:
            if not isinstance(text, str) or not text:
                raise InvalidRequest("stop must be one or more strings that are not empty.", param="stop")
        if (size := sum(map(len, self.stop))) > MAX_STOP_CHARACTERS:
            raise InvalidRequest(
                f"stop may have {MAX_STOP_CHARACTERS} characters in all its strings together, not {size}.",
                param="stop",
            )
        for text in self.bad_words:
            if not isinstance(text, str) or not text.strip():
                raise InvalidRequest("bad_words must be strings that are more than space.", param="bad_words")
        if (size := sum(map(len, self.bad_words))) > MAX_STOP_CHARACTERS:
            raise InvalidRequest(
                f"bad_words may have {MAX_STOP_CHARACTERS} characters in all of them together, not {size}.",
                param="bad_words",
            )
        if self.structured_outputs is not None:
            self.structured_outputs.validate()
        if self.allowed_token_ids is not None and not self.allowed_token_ids:
            raise InvalidRequest("allowed_token_ids must name at least one token.", param="allowed_token_ids")
        for token in self.allowed_token_ids or ():
            _check_token("allowed_token_ids", token, vocab_size)
        for run in self.bad_token_ids:
            for token in run:
                _check_token("bad_words", token, vocab_size)
        for token in self.stop_token_ids:
            _check_token("stop_token_ids", token, vocab_size)
        for token, bias in self.logit_bias.items():
            _check_token("logit_bias", token, vocab_size)
            _check_float("logit_bias", bias, -100.0, 100.0)

    @property
    def greedy(self) -> bool:
        return self.temperature == 0.0

    def replace(self, **changes: Any) -> SamplingParams:
        return msgspec.structs.replace(self, **changes)


class SamplingDefaults(msgspec.Struct, frozen=True, kw_only=True):
    """What a model's makers recommend (generation_config.json); None: nothing."""

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    max_tokens: int | None = None

    def fill(self, sampling: SamplingParams, unset: Collection[str]) -> SamplingParams:
        """`sampling` with the recommendations for those of its fields that are in `unset`."""
        changes = {}
        for name in DEFAULTED:
            value = getattr(self, name)
            if value is not None and name in unset:
                changes[name] = value
        return sampling.replace(**changes) if changes else sampling


DEFAULTED: tuple[str, ...] = SamplingDefaults.__struct_fields__
"""Fields of `SamplingParams` for which a model may recommend a value."""


def _check_float(name: str, value: float, low: float, high: float, *, open_low: bool = False) -> None:
    bracket = "(" if open_low else "["
    limit = f"{bracket}{low:g}, {high:g}]"
    if not isinstance(value, (int, float)) or isinstance(value, bool) or not math.isfinite(value):
        raise InvalidRequest(f"{name} must be a finite number in {limit}, not {value!r}.", param=name)
    if value < low or value > high or (open_low and value < low + _MIN_FLOAT32):
        raise InvalidRequest(f"{name} must be in {limit}, not {value!r}.", param=name)


def _check_int(
    name: str, value: int | None, *, low: int, high: int | None = None, optional: bool = False
) -> None:
    if value is None and optional:
        return
    limit = f"at least {low}" if high is None else f"from {low} to {high}"
    if not isinstance(value, int) or isinstance(value, bool):
        raise InvalidRequest(f"{name} must be an integer {limit}, not {value!r}.", param=name)
    if value < low or (high is not None and value > high):
        raise InvalidRequest(f"{name} must be {limit}, not {value!r}.", param=name)


def _check_token(name: str, token: int, vocab_size: int | None) -> None:
    high = None if vocab_size is None else vocab_size - 1
    _check_int(name, token, low=0, high=high)
