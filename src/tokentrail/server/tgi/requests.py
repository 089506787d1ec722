"""Request bodies, as the OpenAPI document of Text Generation Inference describes them.

Types are strict. Known parameters that this server cannot honour are refused, each with its reason; unknown ones are
ignored, and logged once.
"""

from __future__ import annotations

from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict

from tokentrail.protocol import InvalidRequest, SamplingParams, StructuredOutputsParams
from tokentrail.server.schemas import LazyRequest, List, given, left_open

_SAME = ("temperature", "top_k", "top_p", "typical_p", "repetition_penalty", "frequency_penalty", "seed")


class Grammar(BaseModel):
    """What the answer must be."""

    model_config = ConfigDict(strict=True, extra="ignore")

    type: str
    """json (also called json_schema) or regex."""
    value: dict[str, Any] | str | bool
    """A JSON Schema, as it is or as text; or a regular expression."""

    def params(self) -> StructuredOutputsParams:
        """Raises `InvalidRequest`."""
        field = "parameters.grammar"
        if self.type in ("json", "json_schema"):
            value: Any = self.value
            if self.type == "json_schema" and isinstance(value, dict) and "schema" in value:
                value = value["schema"]  # with a name beside it
            return StructuredOutputsParams(json=value, field=field)
        if self.type != "regex" or not isinstance(self.value, str):
            raise InvalidRequest(
                f"{field} must have the type json, or regex with a text as its value, not {self.type[:40]!r}.",
                param=field,
            )
        return StructuredOutputsParams(regex=self.value, field=field)


class Parameters(LazyRequest):
    do_sample: bool | None = None
    """False: the likeliest token, unless `temperature`, `top_k`, `top_p` or `typical_p` ask for a draw."""
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    typical_p: float | None = None
    repetition_penalty: float | None = None
    frequency_penalty: float | None = None
    seed: int | None = None
    max_new_tokens: int | None = None
    stop: List[str] | None = None
    """Texts after which the answer ends; they are part of it."""
    best_of: int | None = None
    return_full_text: bool | None = None
    truncate: int | None = None
    """Only so many of the last tokens of `inputs` are read."""
    details: bool | None = None
    decoder_input_details: bool | None = None
    top_n_tokens: int | None = None
    grammar: Grammar | None = None
    adapter_id: str | None = None
    """The name of a LoRA adapter."""

    UNSUPPORTED: ClassVar[dict[str, str]] = {
        "watermark": "answers are not marked.",
    }
    WHERE: ClassVar[str] = "parameters."

    def check(self) -> None:
        super().check()
        for name in ("max_new_tokens", "best_of", "truncate", "top_k", "top_n_tokens"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise InvalidRequest(
                    f"parameters.{name} must be at least 1, not {value}.", param=f"parameters.{name}"
                )
        if (self.best_of or 1) > 1 and not self.samples:
            raise InvalidRequest(
                "parameters.best_of above 1 needs do_sample: without it all answers are the same.",
                param="parameters.best_of",
            )

    def check_stream(self) -> None:
        """Refuse what only a whole answer can have."""
        for name, asked in (
            ("best_of", (self.best_of or 1) > 1),
            ("decoder_input_details", self.decoder_input_details),
        ):
            if asked:
                field = f"parameters.{name}"
                raise InvalidRequest(f"{field} is not supported in a stream.", param=field)

    @property
    def samples(self) -> bool:
        return bool(
            self.do_sample
            or self.temperature not in (None, 1)
            or self.top_k is not None
            or (self.top_p is not None and self.top_p < 1)
            or (self.typical_p is not None and self.typical_p < 1)
        )

    @classmethod
    def names(cls) -> dict[str, str]:
        """See `Question.names`."""
        names = {name: cls.WHERE + name for name in (*_SAME, "stop")}
        return names | {
            "max_tokens": "parameters.max_new_tokens",
            "n": "parameters.best_of",
            "logprobs": "parameters.top_n_tokens",
            "prompt": "inputs",
            "truncate_prompt_tokens": "parameters.truncate",
        }

    def unset(self) -> list[str]:
        """Sampling parameters that the request leaves to the model's makers."""
        unset = left_open(given(self, _SAME))
        return unset if self.samples else [name for name in unset if name != "temperature"]

    def sampling(self, *, logprobs: bool) -> SamplingParams:
        """Not validated. `logprobs`: whether those of chosen tokens are wanted. Raises `InvalidRequest`."""
        chosen = given(self, _SAME)
        if not self.samples:
            chosen["temperature"] = 0.0
        return SamplingParams(
            max_tokens=self.max_new_tokens,
            n=self.best_of or 1,
            stop=tuple(self.stop or ()),
            include_stop_str_in_output=True,
            logprobs=(self.top_n_tokens or 0) if logprobs or self.top_n_tokens else None,
            prompt_logprobs=0 if self.decoder_input_details else None,
            structured_outputs=None if self.grammar is None else self.grammar.params(),
            **chosen,
        )


class GenerateRequest(LazyRequest):
    """`POST /generate` and `POST /generate_stream`."""

    inputs: str
    parameters: Parameters | None = None

    # Whether it is streamed, the path tells. The rest is for Hugging Face's own service.
    HARMLESS: ClassVar[frozenset[str]] = frozenset({"stream", "options", "model"})

    def check(self) -> None:
        super().check()
        if self.parameters is not None:
            self.parameters.check()


class CompatRequest(GenerateRequest):
    """`POST /`."""

    stream: bool | None = None
