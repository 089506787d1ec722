"""Request bodies, as the documentation of llama.cpp's server describes them (tools/server/README.md of its repository).

Types are strict. Known fields that this server cannot honour are refused, each with its reason; unknown ones are
ignored, and logged once.
"""

from __future__ import annotations

from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict

from tokentrail.answer import InfillPrompt, LineEnds
from tokentrail.protocol import InvalidRequest, SamplingParams, StructuredOutputsParams
from tokentrail.server.llama_cpp.options import SamplingOptions
from tokentrail.server.openai.requests import ChatCompletionRequest
from tokentrail.server.schemas import List


class PromptObject(BaseModel):
    model_config = ConfigDict(strict=True, extra="ignore")

    prompt_string: str
    multimodal_data: List[Any] | None = None
    """Refused: the model reads text only."""


class CompletionRequest(SamplingOptions):
    """`POST /completion`."""

    prompt: str | PromptObject | List[int | str | PromptObject | List[int | str]] | None = None
    """A text; token ids, with texts among them or not; or a list of such."""
    n_predict: int | None = None
    """Tokens to generate at most; below 0: all the context has room for; 0: none, the prompt is only read."""
    max_tokens: int | None = None
    """The same."""
    n_cmpl: int | None = None
    """Answers to each prompt."""
    n: int | None = None
    """The same."""
    stream: bool | None = None
    grammar: str | None = None
    """GBNF."""
    json_schema: dict[str, Any] | bool | None = None
    ignore_eos: bool | None = None
    logit_bias: List[List[int | float | str | bool]] | dict[str, float | bool] | None = None
    """Pairs of a token id or a text and what is added to its logits; false: never."""
    n_probs: int | None = None
    return_tokens: bool | None = None
    n_indent: int | None = None
    """The answer ends before a line with fewer spaces and tabs in front; empty lines and the first one do not count."""
    t_max_predict_ms: float | None = None
    """The answer ends with the first line that is complete so long after its first token; 0 or below: no matter."""
    timings_per_token: bool | None = None
    response_fields: List[str] | None = None
    """Only these fields of the response; `a/b` is the field b of a."""
    model: str | None = None
    """A served name or that of a LoRA adapter; none: the model itself."""

    UNSUPPORTED: ClassVar[dict[str, str]] = {
        **SamplingOptions.UNSUPPORTED,
        "post_sampling_probs": "log-probabilities are those before sampling.",
        "lora": "ask for an adapter by its name, as model.",
        "image_data": "the model reads text only.",
    }
    HARMLESS: ClassVar[frozenset[str]] = SamplingOptions.HARMLESS | {
        # How a prompt is kept and found again: here always, and without an effect on answers.
        "cache_prompt",
        "id_slot",
        "slot_id",
        "n_keep",
        "n_discard",
        "n_cache_reuse",
        # Without an effect in llama.cpp, too.
        "t_max_prompt_ms",
        # The order is ours, and no sampler is on unless its parameter is.
        "samplers",
        "min_keep",
        "return_progress",
        "sse_ping_interval",
        "backend_sampling",
        "preserved_tokens",
        "grammar_lazy",
        "grammar_triggers",
        "speculative.n_max",
        "speculative.n_min",
        "speculative.p_min",
        "user",
    }

    @property
    def limit(self) -> int | None:
        return self.max_tokens if self.n_predict is None else self.n_predict

    @property
    def choices(self) -> int:
        """Answers to each prompt."""
        return self.n_cmpl or self.n or 1

    @property
    def lines(self) -> LineEnds | None:
        indent, milliseconds = max(0, self.n_indent or 0), self.t_max_predict_ms or 0
        seconds = milliseconds / 1e3 if milliseconds > 0 else None
        return LineEnds(indent=indent, seconds=seconds) if indent or seconds is not None else None

    @property
    def only_reads(self) -> bool:
        """Nothing is generated."""
        return self.limit == 0

    @classmethod
    def names(cls) -> dict[str, str]:
        return {
            **super().names(),
            "logprobs": "n_probs",
            "n": "n_cmpl",
            "max_tokens": "n_predict",
            "lines": "n_indent or t_max_predict_ms",
        }

    def params(self, logit_bias: dict[int, float]) -> SamplingParams:
        """Not validated. Raises `InvalidRequest`."""
        return self.sampling(
            max_tokens=0 if self.only_reads else None,
            ignore_eos=bool(self.ignore_eos),
            logprobs=self.n_probs or None,
            logit_bias=logit_bias,
            structured_outputs=self._form(),
            n=self.choices,
        )

    def _form(self) -> StructuredOutputsParams | None:
        if self.grammar and self.json_schema is not None:
            raise InvalidRequest("An answer can have one form only, but grammar and json_schema are given.")
        if self.grammar:
            return StructuredOutputsParams(grammar=self.grammar, field="grammar")
        if self.json_schema is not None:
            return StructuredOutputsParams(json=self.json_schema, field="json_schema")
        return None


class ExtraText(BaseModel):
    model_config = ConfigDict(strict=True, extra="ignore")

    filename: str = ""
    text: str


class InfillRequest(CompletionRequest):
    """`POST /infill`."""

    prompt: str | None = None
    """More of what stands before the answer."""
    input_prefix: str | None = None
    input_suffix: str | None = None
    input_extra: List[ExtraText] | None = None
    """Other texts to be read before."""

    @property
    def infill(self) -> InfillPrompt:
        extra = [f"{one.filename}\n{one.text}\n" for one in self.input_extra or ()]
        return InfillPrompt(
            "".join((*extra, self.input_prefix or "", self.prompt or "")), self.input_suffix or ""
        )


class EmbeddingRequest(BaseModel):
    """`POST /embedding`."""

    model_config = ConfigDict(strict=True, extra="ignore", protected_namespaces=())

    content: str | PromptObject | List[int | str | PromptObject | List[int | str]] | None = None
    input: str | PromptObject | List[int | str | PromptObject | List[int | str]] | None = None
    """The same."""
    embd_normalize: int = 2
    """2: vectors of length 1; -1: as the model makes them."""
    model: str | None = None

    def check(self) -> None:
        if self.embd_normalize not in (2, -1):
            raise InvalidRequest(
                f"embd_normalize must be 2 (vectors of length 1) or -1 (none), not {self.embd_normalize}.",
                param="embd_normalize",
            )


class ApplyTemplateRequest(ChatCompletionRequest):
    """`POST /apply-template`: messages as for /v1/chat/completions."""

    model_config = ConfigDict(defer_build=True)

    model: str = ""
