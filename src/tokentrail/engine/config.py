"""The engine's settings, as the CLI and `LLM` pass them on. Names and meanings follow vLLM's flags."""

from __future__ import annotations

import msgspec

STORED_QUANTIZATIONS = {
    "gguf": ("gguf",),
    "awq": ("awq",),
    "awq_marlin": ("awq",),
    "gptq": ("gptq",),
    "gptq_marlin": ("gptq",),
    "compressed-tensors": ("compressed-tensors",),
    "fp8": ("fp8", "fbgemm_fp8"),
    "fbgemm_fp8": ("fbgemm_fp8",),
    "mxfp4": ("mxfp4",),
}
"""vLLM's words for what a checkpoint brings itself, and what it then says of itself (`Checkpoint.quantization`). They
change nothing here."""


class EngineConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Everything an engine process needs to start."""

    model: str | None = None
    """Path of a GGUF file or of a Hugging Face model's folder; None: the demo model of the `demo` extra."""
    name: str | None = None
    """What the model was asked for by, if not by its path: its name on a hub."""
    max_model_len: int | None = None
    """Context length; None: the model's, or less where memory does not allow it."""
    max_num_seqs: int = 64
    """Sequences that run in one step at most."""
    max_num_batched_tokens: int = 512
    """Token budget of one step."""
    max_waiting: int = 1024
    """Requests that wait at most; more are refused with 429."""
    block_size: int = 16
    """Positions in one KV block: 16, 32, 64, 128 or 256."""
    kv_cache_memory: int | None = None
    """Bytes for the KV cache; None: sized from free memory and `gpu_memory_utilization`."""
    kv_cache_dtype: str = "auto"
    """auto (bfloat16), bfloat16, int8 (with a scale per token and head) or float32."""
    activation_dtype: str = "auto"
    """auto (int8 groups before quantized weights) or float32 (exact comparisons)."""
    dtype: str = "auto"
    quantization: str | None = None
    """int8 or int4: quantize a full-precision model while it is loaded. None or one of `STORED_QUANTIZATIONS`: run it
    as it is stored."""
    memory_utilization: float = 0.9
    enable_prefix_caching: bool = True
    enforce_eager: bool = False
    threads: int | None = None
    """None: see `ops.native.default_threads`."""
    cores: tuple[int, ...] = ()
    """Numbers of the CPUs that the engine process is pinned to; none: those that the parent may use."""
    seed: int = 0
    tensor_parallel_size: int = 1
    step_timeout: float | None = 300.0
    """Seconds after which an engine process that has work, but finishes no step, is killed and started again. None: it
    is waited for."""
    lora: dict[str, str] = {}
    """Low-rank adapters by the name that requests ask for them with: paths of PEFT folders."""
    speculative_model: str | None = None
    """Who drafts tokens that a step then verifies: `ngram` (what followed the same words earlier in the text), or the
    path of a smaller model with the same tokenizer. None: nobody. Changes no byte of any answer.
    """
    num_speculative_tokens: int = 8
    """Tokens drafted for a sequence in one step at most. How many really are adapts to what is accepted, and to what
    it costs.
    """
