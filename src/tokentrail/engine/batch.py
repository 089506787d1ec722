"""One step's work as flat arrays: what the scheduler hands to the runner, and what comes back."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import numpy.typing as npt

from tokentrail.protocol import EngineInfo

if TYPE_CHECKING:
    from tokentrail.text.tokenizer import Tokenizer

I32 = npt.NDArray[np.int32]
F32 = npt.NDArray[np.float32]


@dataclass
class SamplingRows:
    """Sampling parameters of the L rows that need logits, as arrays. Ragged parts are None when no row has any."""

    temperature: F32  # [L], 0: greedy
    top_p: F32  # [L]
    min_p: F32  # [L]
    top_k: I32  # [L], 0: off
    seed: npt.NDArray[np.uint64]  # [L]
    choice: I32  # [L]
    position: I32  # [L], absolute position of the token to be drawn (prompt + output so far)
    num_top: I32  # [L], alternatives to return; 0: none
    target: (
        I32  # [L], -1: draw; else: report this token's log-probability instead of drawing (prompt_logprobs)
    )
    typical_p: F32 | None = None  # [L]
    frequency_penalty: F32 | None = None  # [L]
    presence_penalty: F32 | None = None  # [L]
    repetition_penalty: F32 | None = None  # [L]
    # Tokens that penalties look at, rows concatenated; offsets [L+1]. Rows without penalties have none.
    prompt_tokens: I32 | None = None
    prompt_offsets: I32 | None = None
    output_tokens: I32 | None = None
    output_offsets: I32 | None = None
    # Additive biases (logit_bias; -inf bans a token, which is how min_tokens works), rows concatenated; offsets [L+1].
    bias_tokens: I32 | None = None
    bias_values: F32 | None = None
    bias_offsets: I32 | None = None
    # Tokens that a grammar allows: bit t % 32 of word t // 32 stands for token t. Applied after the biases.
    masks: npt.NDArray[np.uint32] | None = None  # [any, ceil(vocab / 32)]
    mask_rows: I32 | None = None  # [L], each row's mask; -1: none

    @classmethod
    def greedy(cls, count: int, **changes: npt.NDArray[Any]) -> SamplingRows:
        """Rows that draw the likeliest token and report no alternatives, but for the fields in `changes`."""
        plain: dict[str, npt.NDArray[Any]] = {
            "temperature": np.zeros(count, np.float32),
            "top_p": np.ones(count, np.float32),
            "min_p": np.zeros(count, np.float32),
            "top_k": np.zeros(count, np.int32),
            "seed": np.zeros(count, np.uint64),
            "choice": np.zeros(count, np.int32),
            "position": np.zeros(count, np.int32),
            "num_top": np.zeros(count, np.int32),
            "target": np.full(count, -1, np.int32),
        }
        return cls(**plain | changes)


@dataclass
class Batch:
    """S sequences, T tokens: each sequence brings a run of new tokens (a prompt chunk, or one decoded token).

    Token t of sequence s sits at `positions[t]`; its keys and values go to block
    `block_tables[s, positions[t] // block_size]`. All positions below it are already in the cache, or earlier in
    this batch's rows of the same sequence.
    """

    tokens: I32  # [T]
    positions: I32  # [T]
    row_starts: I32  # [S+1], rows of sequence s are row_starts[s] … row_starts[s+1]
    block_tables: I32  # [S, W], padded with 0; W covers the longest sequence of the batch
    logit_rows: I32  # [L], rows of T whose logits are needed, ascending
    sampling: SamplingRows
    adapters: I32 | None = None  # [S], low-rank adapter of each sequence, -1: none; None: nobody has one
    state_rows: I32 | None = (
        None  # [P], rows of T whose last hidden states are wanted, ascending; None: none are
    )
    revealed: list[int] | None = None  # which of the L rows' logits are to be told; None: none
    top_width: int = field(init=False)  # max(sampling.num_top)
    masks_ready: Callable[[], object] | None = (
        None  # waits until sampling.masks are written: call it before sampling
    )

    def __post_init__(self) -> None:
        num_top = self.sampling.num_top
        self.top_width = int(num_top.max()) if len(num_top) else 0


@dataclass
class SampledRows:
    """What sampling brought for the L logit rows."""

    tokens: I32  # [L], drawn token (or the target)
    logprobs: F32  # [L], natural log-probability before penalties and temperature
    top_tokens: I32 | None = None  # [L, K], K = max(num_top); rows with fewer hold -1
    top_logprobs: F32 | None = None  # [L, K]
    states: F32 | None = None  # [P, dim]
    logits: dict[int, bytes] | None = None  # little-endian float32 of the rows that are to be told
    forward_seconds: float = 0.0
    sample_seconds: float = 0.0
    forwarded_at: float = field(default=0.0)  # time.time() when the forward pass ended


class DraftRunner(Protocol):
    """A draft model: smaller, of the same vocabulary. Its own keys and values lie under the numbers of the target's
    blocks, so that one block table serves both.
    """

    max_model_len: int
    """Positions it can be used at."""
    max_num_batched_tokens: int

    def execute(self, batch: Batch) -> SampledRows: ...


class Runner(Protocol):
    """Executes batches. The engine knows nothing else about models, kernels or devices.

    Limits it is built with: T ≤ max_num_batched_tokens, S ≤ max_num_seqs, L ≤ max_logit_rows.
    """

    info: EngineInfo
    max_logit_rows: int
    draft: DraftRunner | None
    """The draft model, where the configuration names one."""

    def execute(self, batch: Batch) -> SampledRows:
        """Run forward over T tokens, then sample L rows. Blocks until done; releases the GIL while it runs."""
        ...

    def tokenizer(self) -> Tokenizer:
        """The model's tokenizer, made anew: only grammars need it."""
        ...

    def close(self) -> None: ...
