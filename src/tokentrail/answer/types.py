"""What is asked of a backend and what it answers, independent of any wire format."""

from __future__ import annotations

import builtins
from collections.abc import Collection, Mapping, Sequence
from typing import Any, TypeAlias

import msgspec

from tokentrail.answer.identity import Handling, Identity
from tokentrail.journey import Stage
from tokentrail.protocol import DeadlineExceeded, SamplingDefaults, SamplingParams

# --- the question ----------------------------------------------------------------------------------


class ChatPrompt(msgspec.Struct, kw_only=True):
    """A conversation, which the model's chat template turns into text."""

    messages: list[dict[str, Any]]
    """`role`, `content` (text, or None beside tool calls) and whatever else the template reads."""
    tools: list[dict[str, Any]] = []
    """What the model may call, as OpenAI's API describes it; rendered by the template."""
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    """The answer goes on with the last message, instead of being a new one."""
    template_kwargs: dict[str, Any] = {}
    """Further variables for the template."""
    template: str | None = None
    """A template to use instead of the model's. Templates are programs: only from those who are trusted."""
    add_special_tokens: bool = False
    """Put the beginning-of-sequence token before what the template wrote."""


class TextPrompt(msgspec.Struct):
    """Text as it is. Special tokens written in it are parsed, and a beginning-of-sequence token is added
    where the model wants one, unless `add_special_tokens` is false."""

    text: str
    add_special_tokens: bool = True


class TokensPrompt(msgspec.Struct):
    """Token ids as they are."""

    token_ids: list[int]


class InfillPrompt(msgspec.Struct):
    """What stands before and behind the text that is asked for, of models that know how to fill it in."""

    prefix: str | list[int]
    suffix: str


Prompt: TypeAlias = ChatPrompt | TextPrompt | TokensPrompt | InfillPrompt


class ChatOptions(msgspec.Struct, kw_only=True):
    """What a chat answer may hold beside text."""

    tools: list[dict[str, Any]] = []
    """As OpenAI has them: `{"type": "function", "function": {"name", "description", "parameters", "strict"}}`."""
    tool_choice: str = "auto"
    """auto, none, required, or the name of the one function to call."""
    parallel_tool_calls: bool = True
    """Several calls in one answer are fine."""
    thinking_token_budget: int | None = None
    """Tokens of thoughts at most."""
    thoughts_optional: bool = False
    """A model that does not mark its thoughts keeps any budget; otherwise it is refused."""


class LineEnds(msgspec.Struct, frozen=True, kw_only=True):
    """Where an answer ends that fills in code; see `text.LineLimit`."""

    indent: int = 0
    seconds: float | None = None
    """Such an answer may be longer or shorter when it is asked for again."""


class AnswerRequest(msgspec.Struct, kw_only=True):
    """One request: a number of prompts, each of which is answered `sampling.n` times.

    Choice k of the answer belongs to prompt k // n. Each prompt is answered as if it had been asked alone.
    """

    id: str
    """The answer's id, and its journey's."""
    prompts: list[Prompt]
    sampling: SamplingParams
    """`seed` and `max_tokens` may be None. `max_tokens=0` is allowed with `echo`: the prompt is only scored.
    """
    unset: Collection[str] = ()
    """Fields of `sampling` that nobody gave: what the model's makers recommend goes before their values."""
    model: str
    """The model's name as the request wrote it."""
    endpoint: str
    """Who asks: the route, or `LLM`."""
    default_max_tokens: int | None = None
    """Used, as far as the context has room, where `sampling.max_tokens` is None; None: all there
    is room for.
    """
    chat: ChatOptions | None = None
    """Tell thoughts and tool calls apart from the text; None: an answer is text alone."""
    echo: bool = False
    """Begin each choice with its prompt; with `sampling.logprobs`, with the prompt's log-probabilities too.
    """
    lines: LineEnds | None = None
    """End at certain lines, as if `max_tokens` were reached. Models of this machine only."""
    truncate_prompt_tokens: int | None = None
    """Only so many tokens of each prompt's end are kept; -1: as many as leave room for the answer."""
    token_ids: bool = False
    """Ids of tokens will be told. A local engine has them always; an upstream must be asked for them."""
    tokens_by_id: bool = False
    """Log-probabilities will name tokens by their ids."""
    begun: list[int] = []
    """Tokens of the answer that are there already, to be gone on with; `sampling.max_tokens` counts them too."""
    reveal: bool = False
    """Tell the logits from which the first token is drawn. Models of this machine only."""
    request_id: str | None = None
    """The client's own id for the request."""
    identity: Identity = Identity()
    handling: Handling = msgspec.field(default_factory=Handling)
    headers: Mapping[str, str] = msgspec.field(default_factory=dict)
    """Of the HTTP request, by names in lower case: routes may be chosen by them."""
    user: str = ""
    """Whose request it is, as its sender names its own users."""
    session: str = ""
    """Of several engines of one model, the same one answers requests with the same session; empty: any."""
    priority: int = 0
    salt: str = ""
    streamed: bool = False
    """Whoever asks hands chunks on as they come; False: only the whole answer."""
    deadline: float | None = None
    """Wall-clock second at which it ends with `DeadlineExceeded`, wherever it is then."""
    received: float | None = None
    """Wall clock; None: now."""

    @property
    def tenant(self) -> str:
        return self.identity.tenant

    @property
    def stages(self) -> Sequence[Stage]:
        return self.handling.stages

    @property
    def trace(self) -> str | None:
        return self.handling.trace

    def late(self) -> DeadlineExceeded:
        """What it ends with when its deadline has passed."""
        given = (self.deadline or 0.0) - (self.received or 0.0)
        return DeadlineExceeded(
            f"The request was not done within {given:.4g} seconds, the time it was given."
        )


# --- the answer ------------------------------------------------------------------------------------


class TokenText(msgspec.Struct, gc=False):
    """One token of the vocabulary as text."""

    id: int
    text: str
    """Decoded alone; a replacement character where it is not whole UTF-8."""
    bytes: builtins.bytes
    special: bool = False
    """A mark for the model rather than text."""


class TokenLogprob(msgspec.Struct):
    """A token of the answer (or of an echoed prompt) and how likely it was."""

    token: TokenText
    logprob: float | None
    """Natural logarithm, before penalties and temperature; None: the first token of a prompt."""
    top: list[tuple[TokenText, float]]
    """The most likely tokens, best first; as many as were asked for."""
    offset: int
    """Characters of the choice's text before this token."""


class CallPiece(msgspec.Struct):
    """A piece of a tool call. The first of each call has its id and name."""

    index: int
    arguments: str
    """JSON; the pieces of a call, joined, are one object."""
    id: str | None = None
    name: str | None = None
    before: int | None = None
    """Characters of the choice's text before this call, on its first piece; None: not known, and the text so far."""


class Chunk(msgspec.Struct):
    """What is new of one choice. Joined in order, the chunks of a choice are its whole answer."""

    index: int
    text: str = ""
    reasoning: str = ""
    """Thoughts, which are no part of the text."""
    calls: list[CallPiece] = []
    token_ids: list[int] = []
    """Tokens generated. Their text may come later: half characters and possible stop strings are held back.
    """
    logprobs: list[TokenLogprob] | None = None
    """Of `token_ids`, one by one, preceded in an echo by those of the prompt; None: not asked for."""
    logits: bytes | None = None
    """Of a request with `reveal`, in the first chunk: little-endian float32, one an entry of the vocabulary."""
    finish_reason: str | None = None
    """stop, length or tool_calls; set on the last chunk of each choice."""
    stop_reason: str | int | None = None
    """The stop string or the id from `stop_token_ids` that ended the choice."""
    prompt_logprobs: list[TokenLogprob] | None = None
    """Of the prompt's tokens, where `sampling.prompt_logprobs` asks: in the first chunk of each prompt's first choice.
    """


class Usage(msgspec.Struct, gc=False):
    """Tokens of a request. Each prompt counts once, however many choices it has."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    """Up to and including an end-of-sequence or stop token, or the token that completes a stop string."""
    cached_tokens: int = 0
    """Prompt tokens found in the prefix cache."""
    reasoning_tokens: int = 0
    """Of the completion tokens: those of thoughts, with the marks around them."""


class Timing(msgspec.Struct, gc=False):
    """When a request came, and when its first and its latest token did. Wall clock, in seconds."""

    received: float
    first_token: float | None = None
    last_token: float | None = None


class Choice(msgspec.Struct, kw_only=True):
    """A whole choice."""

    index: int
    text: str
    token_ids: list[int]
    logprobs: list[TokenLogprob] | None
    finish_reason: str | None
    stop_reason: str | int | None
    reasoning: str = ""
    calls: list[CallPiece] = []
    """Whole calls."""
    prompt_logprobs: list[TokenLogprob] | None = None


class ModelCard(msgspec.Struct, kw_only=True):
    """A model one can ask."""

    id: str
    created: int
    max_model_len: int
    """0: not known, of a remote model."""
    root: str
    """The model's name in its file; of an adapter, its path."""
    parent: str | None = None
    """Of an adapter: the model that it adapts."""


class ModelDetails(msgspec.Struct, kw_only=True):
    """What a model is: for who asks before choosing one."""

    architecture: str
    num_parameters: int
    """0, as all numbers here: not known, of a remote model."""
    num_layers: int
    num_heads: int
    num_kv_heads: int
    hidden_size: int
    vocab_size: int
    context_length: int
    """What the model was trained for; how much is served is `ModelCard.max_model_len`."""
    max_sequences: int
    """Answers generated at once at most."""
    file: str
    """Name of its file or folder, without the way there."""
    file_format: str
    """gguf or safetensors."""
    quantization: str
    """The type that most bytes of its file have: Q4_K, BF16, …"""
    file_bytes: int
    """Of the tensors in its file."""
    fingerprint: str
    """`system_fingerprint` of its answers."""
    chat_template: str | None
    """None: it has none; empty: it has one, which is not known."""
    bos_token: str | None
    eos_token: str | None
    calls_tools: bool
    """Its chat template knows tools."""
    infills: bool
    """It can fill in the middle of a text."""
    thinks: bool
    """It marks thoughts, which are told apart from its answers."""
    defaults: SamplingDefaults
    """How it draws unless a request says."""
