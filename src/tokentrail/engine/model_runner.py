"""The runner over real models: opens a checkpoint, sizes the KV cache, compiles the model, executes batches."""

from __future__ import annotations

import hashlib
import time
from pathlib import Path
from typing import TYPE_CHECKING

from tokentrail.checkpoints import Checkpoint, LoraAdapter, open_checkpoint, read_lora
from tokentrail.engine.batch import Batch, SampledRows
from tokentrail.engine.capacity import Capacity, plan_capacity
from tokentrail.engine.config import EngineConfig
from tokentrail.engine.loading import Progress
from tokentrail.engine.opening import open_model
from tokentrail.engine.speculation import is_ngram
from tokentrail.models import LoadedModel, load_model
from tokentrail.ops.backend import KV_DTYPES, Executable, Limits
from tokentrail.ops.native import NativeBackend, NativeExecutable, native_digest
from tokentrail.protocol import AdapterInfo, EngineInfo, InvalidRequest, ModelFileError

if TYPE_CHECKING:
    from tokentrail.text.tokenizer import Tokenizer

NUMERICS_VERSION = 3
"""Raised by every change that may alter a bit of any result. Part of `system_fingerprint`, as is a digest of the built
kernels: compilers differ, and a stream must never go on with another build's bits."""
HEAD_MULTIPLE = 16


class ModelRunner:
    """Executes batches on this machine's CPU. A step is two native calls: forward, and sample."""

    def __init__(self, config: EngineConfig, *, progress: Progress | None = None) -> None:
        started = time.perf_counter()
        _check(config)
        checkpoint, loss = open_model(config)
        self._path = checkpoint.path
        _check_model(checkpoint)
        draft = open_draft(config, checkpoint)
        backend = open_backend(config)
        adapters = open_adapters(config, checkpoint)
        plan = plan_capacity(checkpoint, backend, config, draft=draft, adapters=adapters)
        total = checkpoint.nbytes + (0 if draft is None else draft.nbytes)
        part = _part_of(progress, 0, total)
        model = load_model(
            checkpoint,
            backend,
            activation_dtype=config.activation_dtype,
            context=plan.max_model_len,
            adapters=adapters,
            progress=part,
        )
        self.max_logit_rows = plan.max_logit_rows
        limits = Limits(config.max_num_batched_tokens, config.max_num_seqs, plan.max_logit_rows)
        self._executable: NativeExecutable = backend.compile(
            model.program, plan.kv, limits, checkpoint.config.vocab_size, eager=config.enforce_eager
        )
        weight_bytes, kv_bytes = model.weight_bytes, plan.kv.bytes_per_token
        self.draft: _DraftModel | None = None
        if draft is not None and plan.draft_kv is not None:
            part = _part_of(progress, checkpoint.nbytes, total)
            self.draft = _DraftModel(draft, backend, config, plan, limits, part)
            weight_bytes += self.draft.weight_bytes
            kv_bytes += plan.draft_kv.bytes_per_token
        fingerprint = _fingerprint(checkpoint, model, backend.isa, plan.kv.dtype, config.activation_dtype)
        self.info = EngineInfo(
            architecture=checkpoint.config.architecture,
            num_parameters=model.num_parameters,
            max_model_len=plan.max_model_len,
            wanted_model_len=plan.wanted_model_len,
            vocab_size=checkpoint.config.vocab_size,
            block_size=config.block_size,
            num_blocks=plan.kv.blocks,
            kv_bytes_per_token=kv_bytes,
            weight_bytes=weight_bytes,
            eos_token_ids=list(checkpoint.eos_token_ids),
            fingerprint=fingerprint,
            adapters=[
                AdapterInfo(
                    name=adapter.name,
                    path=str(adapter.path),
                    rank=adapter.rank,
                    fingerprint=_digest(fingerprint, adapter.fingerprint),
                )
                for adapter in adapters
            ],
            isa=backend.isa,
            threads=backend.threads,
            max_num_seqs=config.max_num_seqs,
            max_num_batched_tokens=config.max_num_batched_tokens,
            hidden_size=checkpoint.config.hidden_size,
            load_seconds=time.perf_counter() - started,
            file_bytes=checkpoint.nbytes,
            quantization_loss={} if loss is None else loss.by_part(),
        )

    @property
    def executable(self) -> NativeExecutable:
        """The compiled model, for benchmarks that look inside a step."""
        return self._executable

    def execute(self, batch: Batch) -> SampledRows:
        return _execute(self._executable, batch, adapted=True)

    def tokenizer(self) -> Tokenizer:
        """Made anew, from the checkpoint."""
        from tokentrail.text.tokenizer import Tokenizer

        return Tokenizer.from_checkpoint(open_checkpoint(self._path))

    def close(self) -> None:
        """Free weights and cache; the runner cannot be used again. Closing twice is fine."""
        self.draft = None
        self.__dict__.pop("_executable", None)


def _part_of(progress: Progress | None, before: int, total: int) -> Progress | None:
    """Tells `progress` of one file's bytes as a part of `total`, of which `before` are done."""
    return None if progress is None else lambda done, _: progress(before + done, total)


class _DraftModel:
    """See `engine.batch.DraftRunner`. Shares threads with the model that it drafts for."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        backend: NativeBackend,
        config: EngineConfig,
        plan: Capacity,
        limits: Limits,
        progress: Progress | None,
    ) -> None:
        assert plan.draft_kv is not None
        model = load_model(
            checkpoint,
            backend,
            activation_dtype=config.activation_dtype,
            context=plan.max_model_len,
            progress=progress,
        )
        self.weight_bytes = model.weight_bytes
        self.max_model_len = checkpoint.config.max_position
        self.max_num_batched_tokens = config.max_num_batched_tokens
        self._executable = backend.compile(
            model.program, plan.draft_kv, limits, checkpoint.config.vocab_size, eager=config.enforce_eager
        )

    def execute(self, batch: Batch) -> SampledRows:
        return _execute(self._executable, batch, adapted=False)  # it drafts for all alike


def _execute(executable: Executable, batch: Batch, *, adapted: bool) -> SampledRows:
    started = time.perf_counter()
    logits = executable.forward(
        batch.tokens,
        batch.positions,
        batch.row_starts,
        batch.block_tables,
        batch.logit_rows,
        batch.adapters if adapted else None,
        states=batch.state_rows is not None,
    )
    states = None if batch.state_rows is None else executable.states(len(batch.tokens))[batch.state_rows]
    # Before sampling, which may write over them.
    told = {row: logits[row].astype("<f4").tobytes() for row in batch.revealed} if batch.revealed else None
    if batch.masks_ready is not None:
        batch.masks_ready()
    forwarded, wall = time.perf_counter(), time.time()
    width = batch.top_width
    tokens, logprobs, top_tokens, top_logprobs = executable.sample(logits, width, **vars(batch.sampling))
    return SampledRows(
        tokens=tokens,
        logprobs=logprobs,
        top_tokens=top_tokens if width else None,
        top_logprobs=top_logprobs if width else None,
        states=states,
        logits=told,
        forward_seconds=forwarded - started,
        sample_seconds=time.perf_counter() - forwarded,
        forwarded_at=wall,
    )


def open_adapters(config: EngineConfig, checkpoint: Checkpoint) -> list[LoraAdapter]:
    """The low-rank adapters that the configuration names, each checked against the model."""
    return [read_lora(name, Path(path), checkpoint) for name, path in config.lora.items()]


def open_draft(config: EngineConfig, checkpoint: Checkpoint) -> Checkpoint | None:
    """The draft model that the configuration names, if it names one: it must split texts as the model does."""
    if config.speculative_model is None or is_ngram(config.speculative_model):
        return None
    draft = open_checkpoint(config.speculative_model)
    _check_model(draft)
    ours, its = checkpoint.tokenizer.tokens, draft.tokenizer.tokens
    if ours != its:
        if len(ours) != len(its):
            difference = f"it has {len(its)} tokens, {checkpoint.path.name} has {len(ours)}"
        else:
            at = next(i for i, token in enumerate(ours) if token != its[i])
            difference = f"token {at} is {its[at]!r}, in {checkpoint.path.name} it is {ours[at]!r}"
        raise ModelFileError(
            f"{draft.path}: cannot draft for this model, since its tokenizer is another one: {difference}. "
            "Give --speculative-model a smaller model of the same family, or ngram."
        )
    return draft


def _check(config: EngineConfig) -> None:
    """Refuse settings that this backend does not have, naming the flag and what it takes."""
    choices = {
        "block_size": (16, 32, 64, 128, 256),
        "kv_cache_dtype": ("auto", *KV_DTYPES),
        "activation_dtype": ("auto", "float32"),
        "dtype": ("auto", "half", "float16", "bfloat16", "float", "float32"),
    }
    for name, allowed in choices.items():
        value = getattr(config, name)
        if value not in allowed:
            flag = "--" + name.replace("_", "-")
            raise InvalidRequest(
                f"{flag} must be one of {', '.join(map(str, allowed))}, not {value!r}.", param=name
            )
    for name in ("max_num_seqs", "max_num_batched_tokens", "kv_cache_memory", "num_speculative_tokens"):
        value = getattr(config, name)
        if value is not None and value < 1:
            flag = "--" + name.replace("_", "-")
            raise InvalidRequest(f"{flag} must be at least 1, not {value}.", param=name)
    if not 0 < config.memory_utilization <= 1:
        raise InvalidRequest(
            f"--gpu-memory-utilization must be above 0 and at most 1, not {config.memory_utilization!r}.",
            param="memory_utilization",
        )


def open_backend(config: EngineConfig) -> NativeBackend:
    try:
        return NativeBackend(config.threads)
    except ValueError as error:  # the number of threads, or TOKENTRAIL_ISA
        raise InvalidRequest(f"The engine cannot start: {error}.") from error


def _check_model(checkpoint: Checkpoint) -> None:
    """What these kernels cannot run, though the file is sound."""
    if checkpoint.config.head_dim % HEAD_MULTIPLE:
        raise ModelFileError(
            f"{checkpoint.path}: attention heads of {checkpoint.config.head_dim} values cannot be run; "
            f"the kernels take multiples of {HEAD_MULTIPLE}. Use another model."
        )


def _fingerprint(
    checkpoint: Checkpoint, model: LoadedModel, isa: str, kv_dtype: str, activation_dtype: str
) -> str:
    rope = repr(model.rope)  # some kinds depend on the longest context served
    numerics = (str(NUMERICS_VERSION), native_digest(), isa, rope)
    parts = (checkpoint.fingerprint, *numerics, kv_dtype, activation_dtype)
    return _digest(*parts)


def _digest(*parts: str) -> str:
    return "tt-" + hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]
