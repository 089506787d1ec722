"""What every checkpoint format is turned into: a `Checkpoint` of configuration, tensors and text sources."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, overload

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
    query_growth: float = 0.0
    """Beside YaRN: queries are multiplied by 1 + query_growth · ln(1 + ⌊position / original_max_position⌋), so that
    attention stays sharp in long texts (Llama 4, Ministral 3)."""
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
    unrotated_layers: tuple[bool, ...] = ()
    """Which layers know no positions (SmolLM3); empty: none."""
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

    def is_rotated(self, layer: int) -> bool:
        return not self.unrotated_layers or not self.unrotated_layers[layer]

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
    """GGUF type name (`F32`, `F16`, `BF16`, `Q4_0`, `Q4_K` …) or grouped integers (`G4_128`: see `formats.py`)."""
    stored: npt.NDArray[np.uint8] | Deferred = field(repr=False)
    release: Callable[[], None] = field(default=_nothing_to_release, repr=False, compare=False)
    """Lets go of the memory behind `data`, which can still be read afterwards: for who has made a copy."""
    column_order: npt.NDArray[np.int32] | None = field(default=None, repr=False, compare=False)
    """[in_features], where columns are stored in another order: the j-th stored one is column `column_order[j]`."""

    @property
    def data(self) -> npt.NDArray[np.uint8]:
        """The bytes in `format`, flat and contiguous. Ask once: they may have to be made."""
        return self.stored.make() if isinstance(self.stored, Deferred) else self.stored

    @property
    def nbytes(self) -> int:
        return int(self.stored.nbytes)


class LazyTokens(Sequence[str]):
    """Texts of all tokens by id, read from their file when somebody first looks: most never do."""

    def __init__(self, read: Callable[[], list[str]]) -> None:
        """`read` raises `ModelFileError`."""
        self._read = read
        self._tokens: list[str] | None = None

    def _all(self) -> list[str]:
        if self._tokens is None:
            self._tokens = self._read()
        return self._tokens

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> list[str]: ...
    def __getitem__(self, index: int | slice) -> str | list[str]:
        return self._all()[index]

    def __len__(self) -> int:
        return len(self._all())

    def __iter__(self) -> Iterator[str]:
        return iter(self._all())

    def __eq__(self, other: object) -> bool:
        if isinstance(other, LazyTokens):
            other = other._all()
        return self._all() == other

    __hash__ = None  # type: ignore[assignment]


@dataclass(frozen=True)
class AddedToken:
    """A token that is found in text before anything else is done to it, as Hugging Face's files describe it."""

    text: str
    id: int | None = None
    """None: whatever id its text has, or the next free one."""
    special: bool = False
    """A mark for the model, which is left out of answers, rather than text."""
    normalized: bool = True
    """Looked for in normalized text rather than in the text as it came."""
    single_word: bool = False
    lstrip: bool = False
    """Takes the white space before it along …"""
    rstrip: bool = False
    """… or behind it."""


@dataclass(frozen=True)
class TokenizerSource:
    """What a checkpoint says about its tokenizer, uninterpreted. `text.build_tokenizer` builds from it."""

    kind: str
    """`gpt2` (byte-level BPE), `llama` (SentencePiece-style BPE with byte fallback) …, as GGUF names them; or of
    which file in a Hugging Face folder it is made: `tokenizer.json`, `tokenizer.model`, `vocab.json`, `tiktoken`,
    `tekken.json`."""
    pre: str = ""
    """GGUF pre-tokenizer name: smollm, llama-bpe, qwen2 …"""
    tokens: Sequence[str] = field(default_factory=list)
    """By id; empty texts for rows of the embedding that no token has."""
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
    remove_extra_whitespaces: bool = False
    rstrip: tuple[int, ...] = ()
    """Special tokens that take the white space behind them along."""
    like_sentencepiece: bool = False
    """User-defined tokens are words among others, as SentencePiece has them: spaces are tidied over them, and none is
    put behind them. (Otherwise text begins anew after each, as llama.cpp has it.)"""
    prefix_once: bool = False
    """The space that `add_space_prefix` means stands at the start only, not after control tokens, too."""
    charsmap: bytes = b""
    """SentencePiece's compiled normalization rules (`precompiled_charsmap`); empty: text stays as it is."""
    normalizer: str = ""
    """`nfc`, or empty: text stays as it is."""
    files: Mapping[str, Path] = field(default_factory=dict)
    """A folder's tokenizer files, by name. `checkpoints.read_bytes` reads them."""
    infill_token_ids: Mapping[str, int] = field(default_factory=dict)
    """Tokens around the parts of a text to be filled in, where the file names them: `prefix`, `suffix`, `middle`."""
    added_tokens: tuple[AddedToken, ...] = ()
    """A folder's tokens of `tokenizer_config.json` and its kin, which come on top of the files' own."""
    special_tokens: Mapping[str, str] = field(default_factory=dict)
    """Texts of tokens by role, as chat templates know them: `bos_token`, `eos_token`, `pad_token` …"""


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
    """The default one."""
    eos_token_ids: tuple[int, ...]
    """All tokens that end an answer: eos, eot, and the control tokens by which chat formats end a turn."""
    fingerprint: str
    """Hex digest of metadata, tensor table and a sample of every tensor: part of `system_fingerprint`."""
    metadata: Mapping[str, Any] = field(default_factory=dict)
    named_templates: Mapping[str, str] = field(default_factory=dict)
    """Further chat templates by name: `tool_use`, `rag` …"""
    model_type: str = ""
    """What the files call the family: config.json's `model_type`, `general.architecture` of a GGUF file."""
    quantization: str = ""
    """How it is stored, by the name that `quantization_config.quant_method` has for it (`awq`, `gptq` …), or `gguf`;
    empty: a folder in full precision."""
    pooling: str | None = None
    """How embeddings are pooled: `last`, `mean` or `cls`; None: the checkpoint does not say."""

    @property
    def nbytes(self) -> int:
        return sum(tensor.nbytes for tensor in self.tensors.values())
