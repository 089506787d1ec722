"""Messages between the API process and the engine (msgpack over a socket, or the same objects in-process)."""

from __future__ import annotations

from enum import Enum

import msgspec

from tokentrail.protocol.errors import InvalidRequest
from tokentrail.protocol.events import StepRecord
from tokentrail.protocol.sampling import SamplingParams


class FinishReason(str, Enum):
    """Why a sequence ended."""

    STOP = "stop"
    """An end-of-sequence or stop token, or a stop string."""
    LENGTH = "length"
    """`max_tokens` or the context's end."""
    ABORT = "abort"
    """The client went away, or the request was cancelled."""
    TIMEOUT = "timeout"
    """Its deadline passed, while it waited or while it ran."""
    ERROR = "error"


class TokenAlternatives(msgspec.Struct, array_like=True, gc=False):
    """The most likely tokens at one position, best first; ties by id."""

    token_ids: list[int]
    logprobs: list[float]


# --- to the engine ---------------------------------------------------------------------------------


POOLINGS = ("last", "mean", "cls")


class Pooling(msgspec.Struct, kw_only=True, frozen=True):
    """How a prompt's last hidden states become one vector."""

    kind: str
    """`last`: that of the last token; `cls`: that of the first one; `mean`: of all."""
    dimensions: int | None = None
    """So many values are kept; None: all."""
    normalize: bool = True
    """Give it a length of one."""

    def validate(self, hidden_size: int) -> None:
        """Raise `InvalidRequest` for what cannot be computed from states of `hidden_size` values."""
        if self.kind not in POOLINGS:
            raise InvalidRequest(
                f"pooling must be one of {', '.join(POOLINGS)}, not {self.kind!r}.", param="pooling"
            )
        if self.dimensions is not None and not 1 <= self.dimensions <= hidden_size:
            raise InvalidRequest(
                f"dimensions must be from 1 to {hidden_size}, which this model's embeddings have, "
                f"not {self.dimensions}.",
                param="dimensions",
            )


class GenerateRequest(msgspec.Struct, tag="generate", kw_only=True):
    """One sequence to generate. A request with n > 1 is n of these, which share `group` and differ in `choice`."""

    id: str
    group: str
    """The user-visible request id (also the journey's)."""
    prompt: list[int]
    sampling: SamplingParams
    """With `seed` and `max_tokens` resolved."""
    choice: int = 0
    output: list[int] = []
    """Tokens already generated and sent, when a sequence resumes on a fresh engine. They count as output."""
    priority: int = 0
    """Lower runs first, as in vLLM."""
    tenant: str = ""
    weight: float = 1.0
    salt: str = ""
    """Prefix-cache salt: only requests with the same salt share blocks."""
    adapter: str = ""
    """Name of the low-rank adapter to answer with; empty: the model as it is."""
    deadline: float | None = None
    """Wall-clock second after which the sequence is aborted."""
    trace: str | None = None
    """W3C trace context (`traceparent`) of the request."""
    arrival: float = 0.0
    """Wall-clock second of admission; 0: when it reaches the engine. Orders requests of one priority."""
    session: str = ""
    """Of several engines of one model, the same one computes requests with the same session; empty: any does."""
    grammar: str | None = None
    """What the output must be, as `text.grammar` compiles it; None: anything."""
    resumed: bool = False
    """An engine process that died had accepted it already, so the waiting queue's bound does not concern it."""
    pooling: Pooling | None = None
    """Generate nothing: the answer is the prompt's embedding, in `Finish.embedding`."""
    reveal: bool = False
    """Tell the logits from which the first token is drawn, in its delta."""


class Abort(msgspec.Struct, tag="abort"):
    """Stop these sequences at once and free their blocks. Unknown ids are ignored. No answer is sent."""

    ids: list[str]


class Shutdown(msgspec.Struct, tag="shutdown"):
    pass


class Look(msgspec.Struct, tag="look"):
    """Tell the states of the KV blocks, once."""


RequestMessage = GenerateRequest | Abort | Look | Shutdown


# --- from the engine -------------------------------------------------------------------------------


class Finish(msgspec.Struct, array_like=True):
    reason: FinishReason
    stop_token: int | None = None
    """The end-of-sequence or stop token that ended the sequence. It is the last of `Delta.token_ids`."""
    error: str | None = None
    embedding: bytes | None = None
    """Of a request with `pooling`: little-endian float32."""


class Delta(msgspec.Struct, array_like=True):
    """What one step brought for one sequence."""

    id: str
    token_ids: list[int]
    logprobs: list[float]
    """Natural logarithms, before penalties and temperature, as OpenAI and vLLM report them."""
    top: list[TokenAlternatives] | None = None
    """Per token, when the request asked for alternatives."""
    finish: Finish | None = None
    cached_tokens: int | None = None
    """Prompt tokens found in the prefix cache; set on the first delta."""
    prompt_logprobs: list[float] | None = None
    """For prompt tokens 1…, on the first delta of a request that asked for them."""
    prompt_top: list[TokenAlternatives] | None = None
    logits: bytes | None = None
    """Of a request with `reveal`, with its first token: the model's own, one an entry of the vocabulary, as
    little-endian float32.
    """


class EngineStats(msgspec.Struct, array_like=True, gc=False):
    """Sizes now, and counters since the engine process started."""

    running: int = 0
    waiting: int = 0
    blocks_total: int = 0
    blocks_used: int = 0
    """Blocks referenced by a sequence. Blocks that only the prefix cache remembers count as free."""
    prefix_queries: int = 0
    """Prompt tokens looked up in the prefix cache."""
    prefix_hits: int = 0
    """Prompt tokens found there."""
    preemptions: int = 0
    prompt_tokens: int = 0
    """Prompt tokens computed."""
    generated_tokens: int = 0
    steps: int = 0
    drafted_tokens: int = 0
    """Tokens that were drafted and verified (speculative decoding)."""
    accepted_tokens: int = 0
    """Those of them that were right."""


class StepOutput(msgspec.Struct, tag="step"):
    deltas: list[Delta]
    record: StepRecord
    stats: EngineStats


class BlockStates(msgspec.Struct, tag="blocks"):
    """What `Look` asks for: a byte a KV block. 0: free; 1: free, but what it holds is remembered; 2: a sequence's;
    3: several sequences'.
    """

    states: bytes


class Rejected(msgspec.Struct, tag="rejected"):
    """The engine refused a request (its queue was full). Nothing was computed for it."""

    id: str
    message: str
    code: str = "queue_full"


class AdapterInfo(msgspec.Struct, kw_only=True):
    """A low-rank adapter that is loaded."""

    name: str
    path: str
    rank: int
    fingerprint: str
    """`system_fingerprint` of answers made with it."""


class EngineInfo(msgspec.Struct, kw_only=True):
    """What a started engine is: told once, when it is ready."""

    architecture: str
    num_parameters: int
    max_model_len: int
    wanted_model_len: int = 0
    """The context asked for, or the model's own: above `max_model_len` where memory allowed only that. 0: unknown."""
    vocab_size: int
    block_size: int
    num_blocks: int
    kv_bytes_per_token: int
    weight_bytes: int
    eos_token_ids: list[int]
    fingerprint: str
    """`system_fingerprint`: equal fingerprints promise equal bytes (weights, numerics version, ISA, KV dtype)."""
    isa: str
    threads: int
    max_num_seqs: int
    max_num_batched_tokens: int
    hidden_size: int = 0
    """Values of a hidden state, and of an embedding."""
    load_seconds: float = 0.0
    adapters: list[AdapterInfo] = []
    file_bytes: int = 0
    """Of the tensors as they are stored, or quantized on loading; 0: unknown."""
    quantization_loss: dict[str, float] = {}
    """Of weights quantized on loading: relative error (|x - quantized| / |x|) by part of the model."""

    def fingerprint_with(self, adapter: str) -> str:
        """Of answers made with an adapter; with none: the model's own."""
        return next((one.fingerprint for one in self.adapters if one.name == adapter), self.fingerprint)

    @property
    def loaded(self) -> str:
        """How long loading took and what became of the file, for people."""
        sizes = ""
        if self.file_bytes:
            mib = (nbytes / (1 << 20) for nbytes in (self.file_bytes, self.weight_bytes))
            sizes = ": {:.0f} MiB of tensors, packed into {:.0f} MiB".format(*mib)
        losses = ", ".join(
            f"{part.replace('_', '-')} {loss:.1%}" for part, loss in sorted(self.quantization_loss.items())
        )
        quantized = f"; quantized on loading, relative error of weights: {losses}" if losses else ""
        return f"in {self.load_seconds:.2f} s{sizes}{quantized}"


class Loading(msgspec.Struct, tag="loading", gc=False):
    """The engine is loading its model. Sent now and then, before `Ready`."""

    done: int
    """Bytes of the file's tensors that have been packed."""
    total: int


class Ready(msgspec.Struct, tag="ready"):
    info: EngineInfo
    pid: int


class StartupFailed(msgspec.Struct, tag="startup_failed"):
    """The engine could not start; `message` is one line for the user."""

    message: str
    kind: str
    """Class name of the error: ModelFileError, CapacityError …"""


EngineMessage = StepOutput | Rejected | BlockStates | Loading | Ready | StartupFailed
