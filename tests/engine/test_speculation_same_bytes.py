"""Speculation on and off, on real kernels: tokens and log-probabilities are equal bit for bit."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from engine_harness import RandomLengths
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gguf_files import llama_tensors, write_model
from schedules import Answer, Arrival, arrivals, differences, play
from tokentrail.engine import EngineConfig
from tokentrail.engine.core import EngineCore
from tokentrail.engine.model_runner import ModelRunner
from tokentrail.protocol import GenerateRequest, ModelFileError, SamplingParams

VOCAB = 48
TOKENS = [f"<{i}>" for i in range(VOCAB)]


@dataclass
class Loaded:
    """A model that was loaded once, for many engines: what one leaves in the KV cache is the next one's garbage."""

    config: EngineConfig
    runner: ModelRunner

    @classmethod
    def load(cls, model: Path, **config: Any) -> Loaded:
        settings = EngineConfig(model=str(model), **config)
        return cls(settings, ModelRunner(settings))

    def engine(self, lengths: RandomLengths | None = None) -> EngineCore:
        core = EngineCore(self.config, self.runner)
        if lengths is not None:
            assert core.speculator is not None
            core.speculator.lengths = lengths
        return core

    def alone(self, item: GenerateRequest) -> Answer:
        return play(self.engine(), [Arrival((item,), 0)]).answers[item.id]


# --- random weights --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A model of two layers, and a draft model that knows half of it: its first layer."""
    folder = tmp_path_factory.mktemp("speculation")
    # Weights large enough that attention matters, and outputs differ.
    whole = {name: array * 8 for name, array in llama_tensors(VOCAB, layers=2, tied=False).items()}
    half = {name: array for name, array in whole.items() if not name.startswith("blk.1")}
    target = write_model(
        folder / "target.gguf", tokens=TOKENS, tensors=whole, metadata={"llama.block_count": 2}
    )
    return target, write_model(folder / "draft.gguf", tokens=TOKENS, tensors=half)


SMALL: dict[str, Any] = {
    "max_num_batched_tokens": 40,
    "max_num_seqs": 5,
    "threads": 1,
    "kv_cache_memory": 1 << 20,
}
BLOCK = 16 * 2 * 64
"""Bytes: 16 positions in two layers."""


@pytest.fixture(scope="module")
def plain(files: tuple[Path, Path]) -> dict[str, Loaded]:
    """By type of the KV cache."""
    return {
        dtype: Loaded.load(files[0], **SMALL, enable_prefix_caching=False, kv_cache_dtype=dtype)
        for dtype in ("auto", "int8", "float32")
    }


@pytest.fixture(scope="module")
def speculating(files: tuple[Path, Path]) -> list[Loaded]:
    target, draft = files[0], str(files[1])
    settings: list[dict[str, Any]] = [
        {"speculative_model": "ngram"},
        {"speculative_model": "[ngram]", "kv_cache_memory": 14 * BLOCK, "max_model_len": 96},
        {"speculative_model": draft, "kv_cache_memory": 14 * BLOCK * 3 // 2, "max_model_len": 96},
        {"speculative_model": draft, "threads": 2},
        {"speculative_model": draft, "enforce_eager": True, "enable_prefix_caching": False},
        {"speculative_model": str(target), "block_size": 32, "max_num_batched_tokens": 17},
        {"speculative_model": "ngram", "kv_cache_dtype": "int8"},
        {"speculative_model": draft, "kv_cache_dtype": "float32"},
    ]
    return [Loaded.load(target, **{**SMALL, **changes}) for changes in settings]


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)
@given(
    schedule=arrivals(VOCAB, [[3, 1, 4, 1, 5, 9, 2, 6] * 5, [8, 2, 8] * 14], most=5),
    which=st.integers(0, 7),
    longest=st.integers(1, 8),
    seed=st.none() | st.integers(0, 9),
)
def test_small_models_in_random_schedules(
    *,
    plain: dict[str, Loaded],
    speculating: list[Loaded],
    schedule: list[Arrival],
    which: int,
    longest: int,
    seed: int | None,
) -> None:
    loaded = speculating[which]
    played = play(loaded.engine(RandomLengths(longest, seed)), schedule)
    alone = plain[loaded.config.kv_cache_dtype].alone
    assert not differences(played.answers, {id: alone(item) for id, item in played.requests.items()}), which


@pytest.mark.parametrize("which", range(8))
def test_a_crowd_of_small_models(which: int, plain: dict[str, Loaded], speculating: list[Loaded]) -> None:
    """What random schedules may miss: prefix hits and, with few blocks, preemptions, of drafts right and wrong."""
    schedule = [
        Arrival(
            (
                GenerateRequest(
                    id=str(i),
                    group=str(i),
                    prompt=[3, 1, 4, 1, 5, 9, 2, 6] * 4 + [i],
                    sampling=SamplingParams(
                        temperature=0.5 * (i % 2), seed=i, max_tokens=50, ignore_eos=True, logprobs=2
                    ),
                    arrival=float(i + 1),
                ),
            ),
            steps=2,
        )
        for i in range(6)
    ]
    core = speculating[which].engine(RandomLengths(4))
    played = play(core, schedule)
    alone = plain[speculating[which].config.kv_cache_dtype].alone
    assert not differences(played.answers, {id: alone(item) for id, item in played.requests.items()})
    stats = core.stats()
    assert stats.drafted_tokens > 100
    if which == 5:  # the model drafts for itself: all that is not behind an answer's end
        assert stats.accepted_tokens == stats.drafted_tokens
    else:
        assert 0.02 < stats.accepted_tokens / stats.drafted_tokens < 0.95
    if which != 4:
        assert played.cached_tokens > 0
    if which in (1, 2):
        assert played.preemptions > 0


def test_another_tokenizer_is_refused(files: tuple[Path, Path], tmp_path: Path) -> None:
    other = write_model(tmp_path / "other.gguf", tokens=[*TOKENS[:5], "x", *TOKENS[6:]])
    longer = write_model(tmp_path / "longer.gguf", tokens=[*TOKENS, "y"])
    for path, words in (
        (other, "token 5 is 'x', in target.gguf it is '<5>'"),
        (longer, "it has 49 tokens, target.gguf has 48"),
    ):
        with pytest.raises(ModelFileError) as caught:
            Loaded.load(files[0], **SMALL, speculative_model=str(path))
        assert str(caught.value).startswith(f"{path}: cannot draft for this model")
        assert words in str(caught.value)
        assert "ngram" in str(caught.value)
    with pytest.raises(ModelFileError, match=r"nothing\.gguf"):
        Loaded.load(files[0], **SMALL, speculative_model="nothing.gguf")


def test_the_draft_model_is_part_of_the_plan(files: tuple[Path, Path]) -> None:
    memory = {**SMALL, "kv_cache_memory": 12 * BLOCK, "max_model_len": 64}
    alone = Loaded.load(files[0], **memory).runner.info
    both = Loaded.load(files[0], **memory, speculative_model=str(files[1])).runner.info
    assert both.kv_bytes_per_token == alone.kv_bytes_per_token * 3 // 2, "a layer more to two"
    assert (alone.num_blocks, both.num_blocks) == (12, 8)
    assert both.weight_bytes > alone.weight_bytes
    assert both.fingerprint == alone.fingerprint, "no byte of an answer depends on it"


# --- the demo model --------------------------------------------------------------------------------------

TEXT = (
    "The ship left the harbour at nine in the morning, and the captain wrote into the log: wind from the west, "
    "sea calm, all well on board. At noon the wind had turned."
)
DEMO: dict[str, Any] = {"max_model_len": 512, "max_num_seqs": 8, "kv_cache_memory": 96 << 20}


@pytest.fixture(scope="module")
def demo_requests(demo_path: Path) -> list[GenerateRequest]:
    from tokentrail.answer.parts import load_text_parts

    tokenizer = load_text_parts(str(demo_path)).tokenizer
    prompts = [
        f"{TEXT}\n\nThe same text once more:\n\n",
        "def add(a, b):\n    return a + b\n\n\ndef sub(a, b):\n    return a -",
    ]
    parameters = [
        SamplingParams(temperature=0, max_tokens=48, logprobs=2, ignore_eos=True),
        SamplingParams(temperature=0.7, seed=11, max_tokens=32, logprobs=0),
        SamplingParams(temperature=1.0, seed=12, top_p=0.9, frequency_penalty=0.4, max_tokens=24),
    ]
    return [
        GenerateRequest(
            id=f"{p}-{s}", group=f"{p}-{s}", prompt=tokenizer.encode(prompt), sampling=sampling, choice=p % 2
        )
        for p, prompt in enumerate(prompts)
        for s, sampling in enumerate(parameters)
    ]


@pytest.fixture(scope="module")
def demo_answers(demo_path: Path, demo_requests: list[GenerateRequest]) -> dict[str, Answer]:
    loaded = Loaded.load(demo_path, **DEMO)
    return {item.id: loaded.alone(item) for item in demo_requests}


@pytest.mark.parametrize("drafter", ["ngram", "itself"])
def test_the_demo_model(
    drafter: str, demo_path: Path, demo_requests: list[GenerateRequest], demo_answers: dict[str, Answer]
) -> None:
    model = "ngram" if drafter == "ngram" else str(demo_path)
    core = Loaded.load(demo_path, **DEMO, speculative_model=model).engine(RandomLengths(5))
    played = play(core, [Arrival((item,), 2) for item in demo_requests])
    assert not differences(played.answers, demo_answers)
    stats = core.stats()
    if drafter == "itself":  # what is cut off at an end is not accepted, though right
        assert stats.accepted_tokens > 0.95 * stats.drafted_tokens > 100
    else:
        assert 0.1 * stats.drafted_tokens < stats.accepted_tokens < stats.drafted_tokens


def test_left_to_itself_it_drafts_where_text_repeats(
    demo_path: Path, demo_requests: list[GenerateRequest], demo_answers: dict[str, Answer]
) -> None:
    core = Loaded.load(demo_path, **DEMO, speculative_model="ngram").engine()
    item = demo_requests[0]
    played = play(core, [Arrival((item,), 0)])
    assert not differences(played.answers, {item.id: demo_answers[item.id]})
    assert core.stats().steps < 0.8 * len(played.answers[item.id].tokens)
