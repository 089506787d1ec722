"""What every checkpoint format is turned into: a `Checkpoint` of configuration, tensors and text sources."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True)
class RopeConfig:
    """Rotary position embedding (Su et al. 2021, arXiv:2104.09864) and its scalings."""

    dim: int
    """Leading dimensions of a head that are rotated."""
    theta: float = 10000.0
    interleaved: bool = False
    """True: pairs are (2i, 2i+1), as in the paper and GGUF's llama files; False: (i, i + dim/2), as in HF."""
    scaling: str = "none"
    """none, linear, dynamic (NTK), llama3 (per-frequency factors), yarn, longrope. In GGUF, llama3 is the tensor
    `rope_freqs`."""
    factor: float = 1.0
    original_max_position: int = 0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    truncate: bool = True
    """Of YaRN: whether the range of dimensions that are mixed is widened to whole numbers (gpt-oss: it is not)."""
    attention_factor: float = 1.0
    """Multiplies cos and sin: the whole of it, YaRN's 0.1 ln(factor) + 1 included."""
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    short_factors: tuple[float, ...] = ()
    """LongRoPE (arXiv:2402.13753): divisors of the dim / 2 frequencies for contexts up to `original_max_position` …"""
    long_factors: tuple[float, ...] = ()
    """… and for longer ones. Which holds is decided once, by the longest context served."""


@dataclass(frozen=True)
class MoeConfig:
    """A feed-forward network of experts, of which a router chooses a few for each token."""

    num_experts: int
    experts_per_token: int
    intermediate_size: int
    """Of one expert."""
    scoring: str = "softmax"
    """How scores become weights: `softmax` over all experts, `sigmoid` of each, or `softmax_of_chosen`."""
    normalize: bool = True
    """Whether the weights of the chosen are divided by their sum."""
    scale: float = 1.0
    """Multiplies the weights in the end."""
    shared_intermediate_size: int = 0
    """Of the experts that every token has, taken together; 0: there are none."""
    shared_gate: bool = False
    """Whether a gate, sigmoid(x · shared_gate), scales what they give (Qwen2-MoE)."""
    layers: tuple[bool, ...] = ()
    """Which layers have experts; empty: all."""


@dataclass(frozen=True)
class ModelConfig:
    """The numbers a model family needs, in one vocabulary for all formats."""

    architecture: str
    """Family name: llama, qwen3, …: the module of `models/` that runs it."""
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    max_position: int
    """Context length the model was trained for."""
    rms_norm_eps: float
    rope: RopeConfig
    tie_embeddings: bool = False
    sliding_window: int | None = None
    """Positions that a token sees, itself included; None: all before it."""
    windowed_layers: tuple[bool, ...] = ()
    """Which layers have the sliding window; empty: all."""
    rope_local: RopeConfig | None = None
    """RoPE of the windowed layers, where it differs (Gemma 3)."""
    attention_scale: float | None = None
    """Multiplies scores; None: 1 / sqrt(head_dim)."""
    attention_softcap: float = 0.0
    """Scores become cap · tanh(score / cap); 0: they stay (Gemma 2)."""
    logit_softcap: float = 0.0
    embedding_scale: float = 1.0
    norm_offset: float = 0.0
    """Added to the weights of norms: 1 where a format stores Gemma's as trained."""
    moe: MoeConfig | None = None

    def window(self, layer: int) -> int:
        """Positions that a token of this layer sees; 0: all before it."""
        windowed = not self.windowed_layers or self.windowed_layers[layer]
        return self.sliding_window or 0 if windowed else 0

    def has_experts(self, layer: int) -> bool:
        return self.moe is not None and (not self.moe.layers or self.moe.layers[layer])


def _nothing_to_release() -> None:
    """Bytes that are not a file's."""


@dataclass(frozen=True)
class Deferred:
    """Bytes that are made, anew, each time they are asked for: of formats that are transcoded, of scattered rows."""

    nbytes: int
    make: Callable[[], npt.NDArray[np.uint8]]
    """Returns a contiguous array of shape (nbytes,)."""


@dataclass(frozen=True)
class Tensor:
    """One tensor of a checkpoint: bytes in a memory-mapped file, or what makes them."""

    name: str
    """Canonical name: `embed`, `layers.3.q`, `layers.3.q.bias`, `norm`, `head` …"""
    shape: tuple[int, ...]
    """Logical shape, row-major: (out_features, in_features) for a matrix."""
    format: str
    """GGUF type name (`F32`, `F16`, `BF16`, `Q4_0`, `Q4_1`, `Q8_0` …) or another format's."""
    stored: npt.NDArray[np.uint8] | Deferred = field(repr=False)
    release: Callable[[], None] = field(default=_nothing_to_release, repr=False, compare=False)
    """Lets go of the memory behind `data`, which can still be read afterwards: for who has made a copy."""

    @property
    def data(self) -> npt.NDArray[np.uint8]:
        """The bytes in `format`, flat and contiguous. Ask once: they may have to be made."""
        return self.stored.make() if isinstance(self.stored, Deferred) else self.stored

    @property
    def nbytes(self) -> int:
        return int(self.stored.nbytes)


@dataclass(frozen=True)
class TokenizerSource:
    """What a checkpoint says about its tokenizer, uninterpreted. `text.tokenizer` builds from it."""

    kind: str
    """`gpt2` (byte-level BPE), `llama` (SentencePiece-style BPE with byte fallback) …, as GGUF names them; or `folder`:
    the files of a Hugging Face model."""
    folder: Path | None = None
    """Where those files are: tokenizer.json, tokenizer_config.json, tokenizer.model, vocab.json and merges.txt …"""
    pre: str = ""
    """GGUF pre-tokenizer name: smollm, llama-bpe, qwen2 …"""
    tokens: list[str] = field(default_factory=list)
    scores: npt.NDArray[np.float32] | None = None
    token_types: npt.NDArray[np.int32] | None = None
    """GGUF token types: 1 normal, 2 unknown, 3 control, 4 user-defined, 5 unused, 6 byte."""
    merges: list[str] = field(default_factory=list)
    bos_token_id: int | None = None
    eos_token_id: int | None = None
    eot_token_id: int | None = None
    unk_token_id: int | None = None
    pad_token_id: int | None = None
    add_bos: bool | None = None
    """None in this and the next two: the file does not say, and the kind's own default holds."""
    add_eos: bool | None = None
    add_space_prefix: bool | None = None


@dataclass(frozen=True)
class Checkpoint:
    """A model on disk, opened: nothing is copied until a tensor's bytes are touched."""

    path: Path
    name: str
    """A human name: `general.name`, or that of the file or folder."""
    config: ModelConfig
    tensors: Mapping[str, Tensor]
    tokenizer: TokenizerSource
    chat_template: str | None
    eos_token_ids: tuple[int, ...]
    """All tokens that end an answer: eos, eot, and the control tokens by which chat formats end a turn."""
    fingerprint: str
    """Hex digest of metadata, tensor table and a sample of every tensor: part of `system_fingerprint`."""
    metadata: Mapping[str, Any] = field(default_factory=dict)

    @property
    def nbytes(self) -> int:
        return sum(tensor.nbytes for tensor in self.tensors.values())
