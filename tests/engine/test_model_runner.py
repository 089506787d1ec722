"""The runner over a real (if tiny) GGUF file: settings, batches good and bad, and what it says of itself."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gguf_files import write_model
from hf_folders import write_folder
from tokentrail.engine.batch import Batch, SampledRows, SamplingRows
from tokentrail.engine.config import EngineConfig
from tokentrail.engine.model_runner import ModelRunner
from tokentrail.engine.opening import open_model
from tokentrail.ops.native import available_isas, default_threads
from tokentrail.protocol import CapacityError, InvalidRequest, ModelFileError

VOCAB = 48


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("runner") / "tiny.gguf"
    return write_model(path, tokens=[f"<{i}>" for i in range(VOCAB)], types=[1] * VOCAB)


def config(model: Path, **changes: Any) -> EngineConfig:
    defaults = {"max_num_batched_tokens": 64, "max_num_seqs": 4, "kv_cache_memory": 1 << 20, "threads": 1}
    return EngineConfig(model=str(model), **{**defaults, **changes})


@pytest.fixture(scope="module")
def runner(model: Path) -> Iterator[ModelRunner]:
    runner = ModelRunner(config(model))
    yield runner
    runner.close()


def i32(values: Any) -> Any:
    return np.array(values, np.int32)


def batch(ids: list[int], *, start: int = 0, logits: list[int] | None = None, **changes: Any) -> Batch:
    """One sequence in the blocks 0, 1, …"""
    logits = [len(ids) - 1] if logits is None else logits
    plain = Batch(
        tokens=i32(ids),
        positions=np.arange(start, start + len(ids), dtype=np.int32),
        row_starts=i32([0, len(ids)]),
        block_tables=np.arange(8, dtype=np.int32)[None],
        logit_rows=i32(logits),
        sampling=SamplingRows.greedy(len(logits)),
    )
    return replace(plain, **changes)


def same(a: SampledRows, b: SampledRows) -> bool:
    return a.tokens.tobytes() == b.tokens.tobytes() and a.logprobs.tobytes() == b.logprobs.tobytes()


# --- what it says of itself ------------------------------------------------------------------------


def test_info(runner: ModelRunner, model: Path) -> None:
    info = runner.info
    assert (info.architecture, info.vocab_size, info.max_model_len) == ("llama", VOCAB, 128)
    assert (info.block_size, info.max_num_seqs, info.max_num_batched_tokens) == (16, 4, 64)
    assert info.kv_bytes_per_token == 2 * 16 * 2
    assert info.num_blocks == 4 * 128 // 16, "no more than the sequences can fill"
    assert 0 < info.weight_bytes < 2 * model.stat().st_size
    assert info.isa in available_isas()
    assert info.threads == 1
    assert info.load_seconds > 0
    assert runner.max_logit_rows >= 4


def test_fingerprints_tell_results_apart(model: Path, tmp_path: Path) -> None:
    def fingerprint(path: Path = model, **changes: Any) -> str:
        return ModelRunner(config(path, **changes)).info.fingerprint

    base = fingerprint()
    assert re.fullmatch(r"tt-[0-9a-f]{16}", base)
    assert fingerprint(threads=2, block_size=64, enforce_eager=True, max_num_seqs=2) == base
    assert fingerprint(kv_cache_dtype="bfloat16") == base
    other = write_model(
        tmp_path / "other.gguf",
        tokens=[f"<{i}>" for i in range(VOCAB)],
        metadata={"llama.rope.freq_base": 5e5},
    )
    different = [
        fingerprint(kv_cache_dtype="float32"),
        fingerprint(kv_cache_dtype="int8"),
        fingerprint(activation_dtype="float32"),
        fingerprint(other),
    ]
    assert len({base, *different}) == 5


@pytest.mark.parametrize("isa", available_isas())
def test_the_instruction_set_can_be_chosen(isa: str, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    best = ModelRunner(config(model))
    monkeypatch.setenv("TOKENTRAIL_ISA", isa)
    chosen = ModelRunner(config(model))
    assert chosen.info.isa == isa
    assert (chosen.info.fingerprint == best.info.fingerprint) is (isa == best.info.isa)
    step = batch([1, 2, 3])
    assert abs(chosen.execute(step).logprobs[0] - best.execute(step).logprobs[0]) < 1e-3


def test_the_best_instruction_set_is_the_default(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOKENTRAIL_ISA", "")
    assert ModelRunner(config(model)).info.isa == available_isas()[0]


def test_threads_default_to_the_cores(model: Path) -> None:
    assert ModelRunner(config(model, threads=None)).info.threads == default_threads()


# --- settings it refuses ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ({"block_size": 17}, "--block-size must be one of 16, 32, 64, 128, 256, not 17."),
        ({"block_size": 512}, "--block-size must be one of"),
        (
            {"kv_cache_dtype": "int4"},
            "--kv-cache-dtype must be one of auto, bfloat16, int8, float32, not 'int4'.",
        ),
        ({"activation_dtype": "bfloat16"}, "--activation-dtype must be one of auto, float32"),
        ({"dtype": "int4"}, "--dtype must be one of"),
        ({"max_num_seqs": 0}, "--max-num-seqs must be at least 1, not 0."),
        ({"max_num_batched_tokens": 0}, "--max-num-batched-tokens must be at least 1, not 0."),
        ({"kv_cache_memory": 0}, "--kv-cache-memory must be at least 1, not 0."),
        ({"memory_utilization": 0.0}, "--gpu-memory-utilization must be above 0 and at most 1, not 0.0."),
        (
            {"memory_utilization": float("nan")},
            "--gpu-memory-utilization must be above 0 and at most 1, not nan.",
        ),
        ({"max_model_len": 129}, "--max-model-len must be from 1 to 128 (the model's context), not 129."),
        ({"threads": 0}, "there can be from 1 to 1024 threads"),
        ({"threads": 100_000}, "there can be from 1 to 1024 threads"),
    ],
    ids=str,
)
def test_settings_out_of_range(setting: dict[str, Any], words: str, model: Path) -> None:
    with pytest.raises(InvalidRequest, match=re.escape(words)) as caught:
        ModelRunner(config(model, **setting))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("dtype", ["auto", "half", "float16", "bfloat16", "float", "float32"])
def test_vllms_dtypes_are_taken(dtype: str, model: Path) -> None:
    assert ModelRunner(config(model, dtype=dtype)).execute(batch([1])).tokens.shape == (1,)


@pytest.mark.parametrize(("kind", "error"), [("int8", (0.003, 0.008)), ("int4", (0.06, 0.1))])
def test_quantization_while_loading(
    kind: str, error: tuple[float, float], model: Path, runner: ModelRunner
) -> None:
    quantized = ModelRunner(config(model, quantization=kind))
    assert quantized.info.weight_bytes < runner.info.weight_bytes / 3
    assert quantized.info.fingerprint != runner.info.fingerprint
    losses = quantized.info.quantization_loss
    assert losses.keys() == {"embedding", "attention", "feed_forward"}  # embeddings are tied
    assert error[0] < losses["attention"] < error[1]
    assert losses["embedding"] < 0.008
    assert "quantized on loading" in quantized.info.loaded
    assert "feed-forward" in quantized.info.loaded
    exact, rounded = (r.execute(batch([3, 5, 7], logits=[2])) for r in (runner, quantized))
    assert abs(exact.logprobs[0] - rounded.logprobs[0]) < 1
    quantized.close()


def test_vllms_words_for_stored_quantizations_change_nothing_where_they_are_true(
    demo_path: Path, tmp_path: Path
) -> None:
    plain, named = (open_model(config(demo_path, quantization=kind))[0] for kind in (None, "gguf"))
    assert plain.fingerprint == named.fingerprint
    with pytest.raises(
        InvalidRequest, match=r"--quantization awq: .* is stored as gguf\. Leave the flag out\."
    ):
        open_model(config(demo_path, quantization="awq"))
    with pytest.raises(InvalidRequest, match=r"is not quantized\. Leave the flag out, or .*: int8 or int4\."):
        open_model(config(write_folder(tmp_path / "full"), quantization="fp8"))


def test_an_unknown_quantization(model: Path) -> None:
    with pytest.raises(InvalidRequest, match=r"--quantization must be one of int8, int4, gguf.*not 'int3'"):
        ModelRunner(config(model, quantization="int3"))


def test_an_unknown_instruction_set(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOKENTRAIL_ISA", "sse9")
    with pytest.raises(InvalidRequest, match=r"'sse9' is not available here; there is: .*portable"):
        ModelRunner(config(model))


def test_too_little_memory(model: Path) -> None:
    with pytest.raises(CapacityError, match=r"tiny\.gguf: a context of 128 tokens needs"):
        ModelRunner(config(model, kv_cache_memory=64 * 32, max_model_len=128))


def test_no_such_file(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match=r"nothing\.gguf"):
        ModelRunner(config(tmp_path / "nothing.gguf"))


def test_heads_that_the_kernels_cannot_run(tmp_path: Path) -> None:
    """Sound files with such heads exist (100 values: OpenLLaMA 3B). One line, not a crash."""
    from gguf_files import llama_tensors

    tensors = llama_tensors(VOCAB)
    random = np.random.default_rng(0)
    for name, shape in {
        "attn_q": (40, 32),
        "attn_k": (20, 32),
        "attn_v": (20, 32),
        "attn_output": (32, 40),
    }.items():
        tensors[f"blk.0.{name}.weight"] = random.standard_normal(shape).astype(np.float32)
    path = write_model(
        tmp_path / "odd.gguf",
        tokens=[f"<{i}>" for i in range(VOCAB)],
        tensors=tensors,
        metadata={
            "llama.attention.key_length": 20,
            "llama.attention.value_length": 20,
            "llama.rope.dimension_count": 20,
        },
    )
    with pytest.raises(ModelFileError, match=r"odd\.gguf: attention heads of 20 values .* multiples of 16"):
        ModelRunner(config(path))


# --- batches ---------------------------------------------------------------------------------------


def test_a_step(runner: ModelRunner) -> None:
    top = SamplingRows.greedy(2, num_top=i32([3, 0]))
    got = runner.execute(batch([5, 6, 7], logits=[0, 2], sampling=top))
    assert got.tokens.shape == got.logprobs.shape == (2,)
    assert ((got.tokens >= 0) & (got.tokens < VOCAB)).all()
    assert got.top_tokens is not None
    assert got.top_logprobs is not None
    assert got.top_tokens.shape == got.top_logprobs.shape == (2, 3)
    assert got.top_tokens[0, 0] == got.tokens[0], "greedy takes the most likely"
    assert got.top_logprobs[0, 0] == got.logprobs[0]
    assert (np.diff(got.top_logprobs[0]) <= 0).all()
    assert got.top_tokens[1].tolist() == [-1, -1, -1]
    assert got.forward_seconds > 0
    assert got.sample_seconds > 0
    assert got.forwarded_at > 1e9


def test_a_step_without_logits(runner: ModelRunner) -> None:
    """A prompt's chunk that is not its last."""
    got = runner.execute(batch([1, 2, 3], logits=[]))
    assert got.tokens.shape == (0,)
    assert got.top_tokens is None


def test_chunks_and_eager_execution_change_nothing(model: Path) -> None:
    ids = np.random.default_rng(0).integers(0, VOCAB, 40).tolist()
    whole = ModelRunner(config(model)).execute(batch(ids))
    for changes in ({}, {"enforce_eager": True}, {"threads": 2}, {"block_size": 32, "enforce_eager": True}):
        other = ModelRunner(config(model, **changes))
        other.execute(batch(ids[:23], logits=[]))
        assert same(other.execute(batch(ids[23:], start=23)), whole), changes


def test_targets_report_prompt_log_probabilities(runner: ModelRunner) -> None:
    ids = [4, 9, 2, 7]
    greedy = runner.execute(
        batch(ids, logits=[0, 1, 2], sampling=SamplingRows.greedy(3, num_top=i32([VOCAB] * 3)))
    )
    got = runner.execute(batch(ids, logits=[0, 1, 2], sampling=SamplingRows.greedy(3, target=i32(ids[1:]))))
    assert got.tokens.tolist() == ids[1:]
    assert greedy.top_tokens is not None
    assert greedy.top_logprobs is not None
    for row, token in enumerate(ids[1:]):
        at = greedy.top_tokens[row].tolist().index(token)
        assert greedy.top_logprobs[row, at] == got.logprobs[row]
    np.testing.assert_allclose(np.exp(greedy.top_logprobs.astype(np.float64)).sum(-1), 1, atol=1e-5)


GOOD = batch([1, 2, 3], logits=[2])
BAD: dict[str, dict[str, Any]] = {
    "token below 0": {"tokens": i32([1, -1, 3])},
    "token beyond the vocabulary": {"tokens": i32([1, VOCAB, 3])},
    "huge token": {"tokens": i32([1, 2**31 - 1, 3])},
    "negative position": {"positions": i32([-1, 0, 1])},
    "positions with a gap": {"positions": i32([0, 2, 3])},
    "positions that stand still": {"positions": i32([0, 0, 0])},
    "position beyond the table": {"positions": i32([128, 129, 130])},
    "last position of all": {"positions": i32([2**31 - 3, 2**31 - 2, 2**31 - 1])},
    "position that wraps": {"positions": i32([2**31 - 2, 2**31 - 1, -(2**31)])},
    "negative block": {"block_tables": i32([[-1]])},
    "block beyond the cache": {"block_tables": i32([[32]])},
    "no blocks": {"block_tables": np.zeros((1, 0), np.int32)},
    "too many tables": {"block_tables": i32([[0], [1]])},
    "rows that start late": {"row_starts": i32([1, 3])},
    "rows that end early": {"row_starts": i32([0, 2])},
    "rows that end late": {"row_starts": i32([0, 4])},
    "rows far beyond the tokens": {"row_starts": i32([0, 2**30, 3]), "block_tables": i32([[0], [1]])},
    "rows that go back": {"row_starts": i32([0, 3, 1, 3]), "block_tables": i32([[0], [1], [2]])},
    "an empty sequence": {"row_starts": i32([0, 0, 3]), "block_tables": i32([[0], [1]])},
    "no row starts": {"row_starts": i32([])},
    "fewer positions than tokens": {"positions": i32([0, 1])},
    "no tokens": {"tokens": i32([]), "positions": i32([]), "row_starts": i32([0, 0])},
    "logit row below 0": {"logit_rows": i32([-1])},
    "logit row beyond the tokens": {"logit_rows": i32([3])},
    "too many logit rows": {"logit_rows": i32([0] * 65)},
    "too many tokens": {
        "tokens": i32([0] * 65),
        "positions": i32(range(65)),
        "row_starts": i32([0, 65]),
        "block_tables": i32([range(8)]),
    },
    "too many sequences": {
        "tokens": i32([0] * 5),
        "positions": i32([0] * 5),
        "row_starts": i32(range(6)),
        "block_tables": i32([[b] for b in range(5)]),
    },
    "target beyond the vocabulary": {"sampling": SamplingRows.greedy(1, target=i32([VOCAB]))},
    "temperature below 0": {"sampling": SamplingRows.greedy(1, temperature=np.array([-1], np.float32))},
    "temperature that is no number": {
        "sampling": SamplingRows.greedy(1, temperature=np.array([np.nan], np.float32))
    },
    "top_p of 0": {"sampling": SamplingRows.greedy(1, top_p=np.zeros(1, np.float32))},
    "top_p below 0": {"sampling": SamplingRows.greedy(1, top_p=np.array([-3], np.float32))},
    "min_p above 1": {"sampling": SamplingRows.greedy(1, min_p=np.array([1.5], np.float32))},
    "fewer sampling rows than logits": {"logit_rows": i32([1, 2])},
    "penalties without tokens": {"sampling": SamplingRows.greedy(1, output_offsets=i32([0, 1]))},
    "a penalized token beyond the vocabulary": {
        "sampling": SamplingRows.greedy(
            1,
            frequency_penalty=np.zeros(1, np.float32),
            presence_penalty=np.zeros(1, np.float32),
            repetition_penalty=np.ones(1, np.float32),
            prompt_tokens=i32([]),
            prompt_offsets=i32([0, 0]),
            output_tokens=i32([VOCAB]),
            output_offsets=i32([0, 1]),
        )
    },
    "biases without values": {
        "sampling": SamplingRows.greedy(1, bias_tokens=i32([1]), bias_offsets=i32([0, 1]))
    },
    "a biased token below 0": {
        "sampling": SamplingRows.greedy(
            1, bias_tokens=i32([-1]), bias_values=np.ones(1, np.float32), bias_offsets=i32([0, 1])
        )
    },
    "bias offsets that go back": {
        "sampling": SamplingRows.greedy(
            1, bias_tokens=i32([]), bias_values=np.ones(0, np.float32), bias_offsets=i32([1, 0])
        )
    },
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_batch_is_refused_and_the_next_is_fine(name: str, runner: ModelRunner) -> None:
    before = runner.execute(GOOD)
    with pytest.raises(ValueError):
        runner.execute(replace(GOOD, **BAD[name]))
    assert same(runner.execute(GOOD), before)


def test_closing_twice_is_fine(model: Path) -> None:
    runner = ModelRunner(config(model))
    runner.close()
    runner.close()
