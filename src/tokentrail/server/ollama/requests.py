"""Request bodies, as Ollama's documentation describes them (docs/api.md of its repository).

Types are strict. Known fields that this server cannot honour are refused, each with its reason; unknown ones are
ignored, and logged once.
"""

from __future__ import annotations

from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict, Field

from tokentrail.protocol import InvalidRequest, StructuredOutputsParams
from tokentrail.server.llama_cpp.options import SamplingOptions
from tokentrail.server.openai.requests import ToolBody
from tokentrail.server.schemas import LazyRequest, List, check_top_logprobs

_LOADING = frozenset(
    {
        "num_ctx",
        "num_batch",
        "num_gpu",
        "num_keep",
        "num_thread",
        "main_gpu",
        "numa",
        "low_vram",
        "f16_kv",
        "logits_all",
        "vocab_only",
        "use_mmap",
        "use_mlock",
        "embedding_only",
        "draft_num_predict",
    }
)
"""How a model is loaded: ours is."""
_EFFORTS = ("low", "medium", "high", "max")


class Options(SamplingOptions):
    num_predict: int | None = None
    """Tokens to generate at most; 0 or below: all the context has room for."""

    WHERE: ClassVar[str] = "options."
    HARMLESS: ClassVar[frozenset[str]] = SamplingOptions.HARMLESS | _LOADING


class AnyModel(BaseModel):
    model_config = ConfigDict(strict=True, extra="ignore", protected_namespaces=())

    model: str | None = None
    name: str | None = None
    """Its older word for `model`."""

    @property
    def asked(self) -> str:
        """Raises `InvalidRequest` if there is none."""
        if not (name := self.model or self.name):
            raise InvalidRequest("You must provide model.", param="model")
        return name


class PullRequest(AnyModel):
    stream: bool | None = None


class GenerationRequest(LazyRequest):
    """What both ways of asking share."""

    model: str = Field(min_length=1)
    stream: bool | None = None
    """True unless given."""
    options: Options | None = None
    format: str | dict[str, Any] | None = None
    """json, or a JSON Schema."""
    think: bool | str | None = None
    """Whether to think before the answer, or how hard: low, medium, high or max."""
    keep_alive: float | str | None = None
    """Accepted: the model stays."""
    logprobs: bool | None = None
    top_logprobs: int | None = None

    HARMLESS: ClassVar[frozenset[str]] = frozenset({"truncate", "shift"})

    def check(self) -> None:
        super().check()
        if self.options is not None:
            self.options.check()
        if isinstance(self.think, str) and self.think not in _EFFORTS:
            raise InvalidRequest(
                f"think must be true, false, {', '.join(_EFFORTS[:-1])} or {_EFFORTS[-1]}, not {self.think[:40]!r}.",
                param="think",
            )
        check_top_logprobs(self.top_logprobs)

    @property
    def num_logprobs(self) -> int | None:
        """As `SamplingParams.logprobs`."""
        return (self.top_logprobs or 0) if self.logprobs or self.top_logprobs else None

    def form(self) -> StructuredOutputsParams | None:
        """The form of the answer that is asked for, if any is."""
        if self.format is None or self.format == "":
            return None
        if self.format == "json":
            return StructuredOutputsParams(json_object=True, field="format")
        if isinstance(self.format, str):
            raise InvalidRequest(
                f"format must be json or a JSON Schema, not {self.format[:40]!r}.", param="format"
            )
        return StructuredOutputsParams(json=self.format, field="format")


class EmbedRequest(LazyRequest):
    """`POST /api/embed`."""

    model: str = Field(min_length=1)
    input: str | List[str] | None = None
    truncate: bool | None = None
    """Not false: of a text that is longer than the context only the end is read."""
    dimensions: int | None = None
    options: Options | None = None
    """Accepted: nothing is drawn."""
    keep_alive: float | str | None = None


class EmbeddingsRequest(LazyRequest):
    """`POST /api/embeddings`, its older way."""

    model: str = Field(min_length=1)
    prompt: str | None = None
    options: Options | None = None
    keep_alive: float | str | None = None


class CalledFunction(BaseModel):
    model_config = ConfigDict(strict=True, extra="ignore")

    name: str
    arguments: dict[str, Any] | None = None


class MessageCall(BaseModel):
    model_config = ConfigDict(strict=True, extra="ignore")

    id: str | None = None
    function: CalledFunction


class Message(BaseModel):
    model_config = ConfigDict(strict=True, extra="ignore")

    role: str
    content: str | None = None
    thinking: str | None = None
    tool_calls: List[MessageCall] | None = None
    tool_name: str | None = None
    """Of a tool's result: which one it was."""
    tool_call_id: str | None = None
    images: List[Any] | None = None
    """Refused: the model reads text only."""


class ChatRequest(GenerationRequest):
    """`POST /api/chat`."""

    messages: List[Message] | None = None
    """None: nothing is asked but whether the model is there."""
    tools: List[ToolBody] | None = None


_NO_IMAGES = "the model reads and writes text only."


class GenerateRequest(GenerationRequest):
    """`POST /api/generate`."""

    prompt: str | None = None
    """Empty: nothing is asked but whether the model is there."""
    suffix: str | None = None
    """Text after the answer: the model fills in the middle."""
    system: str | None = None
    raw: bool | None = None
    """The prompt is sent as it is, without the chat template."""

    UNSUPPORTED: ClassVar[dict[str, str]] = {
        "images": _NO_IMAGES,
        "template": "a template comes from the model or from the server's settings; or use raw.",
        "context": "send the conversation as messages to /api/chat.",
        "width": _NO_IMAGES,
        "height": _NO_IMAGES,
        "steps": _NO_IMAGES,
    }
