"""Promise 1, from request to answer: real kernels under random schedules give each request the bits it gets alone.

Batches of any mix, prompts in chunks, prefixes from the cache, preemption, aborted neighbours, 1 to 4 threads, recorded
and eager, with speculation and without. On every instruction set for a small model in which every weight format occurs,
and on the best one for the demo model. The parts have such tests of their own: tests/ops (kernels), tests/models (whole
forward passes), and test_engine_core.py (the engine over a model that is easily computed by hand).
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from random_models import checkpoint_of, random_weights, small_config
from schedules import Answer, Arrival, arrivals, differences, engine_settings, play, shared_prefixes
from tokentrail.checkpoints import Checkpoint
from tokentrail.engine import opening
from tokentrail.engine.config import EngineConfig
from tokentrail.engine.core import EngineCore
from tokentrail.engine.model_runner import ModelRunner
from tokentrail.ops.backend import KV_DTYPES, KvLayout
from tokentrail.ops.native import available_isas
from tokentrail.protocol import GenerateRequest, SamplingParams

ISAS = available_isas()
VOCAB = 96
FORMATS = {
    "embed": "Q8_0",
    "q": "Q4_0",
    "k": "Q8_0",
    "v": "Q4_1",
    "o": "F16",
    "gate": "Q4_0",
    "up": "Q4_1",
    "down": "F32",
}
CONTEXT = 512


@dataclass
class Machine:
    """One model on one instruction set, and what it answers to requests that run alone."""

    checkpoint: Checkpoint
    isa: str
    kv_dtype: str = "bfloat16"
    _alone: dict[bytes, Answer] = field(default_factory=dict)

    def start(self, *, positions: int, **changes: Any) -> EngineCore:
        """An engine whose KV cache holds so many positions, and whose context is as long, up to `CONTEXT`."""
        plain = {"block_size": 16, "max_num_seqs": 8, "max_num_batched_tokens": CONTEXT, "threads": 1}
        values = {**plain, **changes}
        positions = positions // values["block_size"] * values["block_size"]
        model = self.checkpoint.config
        kv = KvLayout(self.kv_dtype, model.num_layers, 1, 1, model.num_kv_heads, model.head_dim)
        config = EngineConfig(
            model="in memory",
            max_model_len=min(positions, CONTEXT),
            kv_cache_memory=positions * kv.bytes_per_token,
            kv_cache_dtype=self.kv_dtype,
            **values,
        )
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("TOKENTRAIL_ISA", self.isa)
            patch.setattr(opening, "open_checkpoint", lambda path: self.checkpoint)
            core = EngineCore(config, ModelRunner(config))
        assert core.runner.info.isa == self.isa
        most = CONTEXT * values["max_num_seqs"]  # the cache is no larger than its sequences can fill
        assert core.pool.num_blocks * values["block_size"] == min(positions, most)
        return core

    @cached_property
    def _quiet(self) -> EngineCore:
        return self.start(positions=CONTEXT, enable_prefix_caching=False)

    def alone(self, item: GenerateRequest) -> Answer:
        """One thread, recorded, the prompt in one step, nobody beside it, nothing cached."""
        key = msgspec.msgpack.encode((item.prompt, item.sampling, item.choice))
        if key not in self._alone:
            played = play(self._quiet, [Arrival((item,), 0)])
            self._alone[key] = played.answers[item.id]
        return self._alone[key]

    def check(self, schedule: list[Arrival], **shape: Any) -> tuple[int, int]:
        """Play a schedule; (cached tokens, preemptions) that it brought."""
        with contextlib.closing(self.start(**shape)) as core:
            limit = core.runner.info.max_model_len
            played = play(core, schedule)
        expected = {}
        for id, item in played.requests.items():
            # A context as short as the cache ends answers that would go on alone.
            most = min(item.sampling.max_tokens or limit, limit - len(item.prompt))
            cut = msgspec.structs.replace(
                item,
                sampling=item.sampling.replace(
                    max_tokens=most, min_tokens=min(item.sampling.min_tokens, most)
                ),
            )
            expected[id] = self.alone(cut)
        assert not differences(played.answers, expected), shape
        return played.cached_tokens, played.preemptions


def _random_checkpoint() -> Checkpoint:
    config = small_config(
        num_layers=3, num_heads=6, num_kv_heads=2, hidden_size=96, vocab_size=VOCAB, max_position=CONTEXT
    )
    return checkpoint_of(
        config, random_weights(config, seed=3), lambda name: FORMATS.get(name.split(".")[-1], "BF16")
    )


_MACHINES: dict[tuple[str, str], Machine] = {}


def random_machine(isa: str, kv_dtype: str = "bfloat16") -> Machine:
    if (isa, kv_dtype) not in _MACHINES:
        _MACHINES[isa, kv_dtype] = Machine(_random_checkpoint(), isa, kv_dtype)
    return _MACHINES[isa, kv_dtype]


@pytest.fixture(scope="module")
def demo_machine(demo_checkpoint: Checkpoint) -> Machine:
    return Machine(demo_checkpoint, ISAS[0])


PREFIXES = shared_prefixes(VOCAB, length=300)
"""Longer than one segment of attention, 256 positions."""
THREADS = st.integers(1, 4)


SCHEDULES = settings(
    deadline=None,
    # A mixed step's size follows measured times (engine/pacing.py), so a smaller example may fail to fail.
    phases=[Phase.explicit, Phase.reuse, Phase.generate],
    suppress_health_check=[
        HealthCheck.too_slow,
        HealthCheck.data_too_large,
        HealthCheck.function_scoped_fixture,
    ],
)


@pytest.mark.parametrize("isa", ISAS)
@settings(SCHEDULES, max_examples=12)
@given(
    schedule=arrivals(VOCAB, PREFIXES, most=5, longest=10),
    shape=engine_settings([16, 32, 256], positions=(96, 900), tokens=200),
    threads=THREADS,
    eager=st.booleans(),
    kv_dtype=st.sampled_from(KV_DTYPES),
    draft=st.sampled_from([None, "ngram"]),
)
def test_random_schedules(
    *,
    isa: str,
    schedule: list[Arrival],
    shape: dict[str, Any],
    threads: int,
    eager: bool,
    kv_dtype: str,
    draft: str | None,
) -> None:
    machine = random_machine(isa, kv_dtype)
    machine.check(schedule, threads=threads, enforce_eager=eager, speculative_model=draft, **shape)


@settings(SCHEDULES, max_examples=4)
@given(
    schedule=arrivals(49_152, shared_prefixes(49_152, length=64), most=4, longest=6),
    shape=engine_settings([16, 32], positions=(96, 400), tokens=100),
    threads=THREADS,
    eager=st.booleans(),
)
def test_random_schedules_of_the_demo_model(
    *, demo_machine: Machine, schedule: list[Arrival], shape: dict[str, Any], threads: int, eager: bool
) -> None:
    demo_machine.check(schedule, threads=threads, enforce_eager=eager, **shape)


def crowd(vocab: int, count: int, prompt: int, answer: int) -> list[Arrival]:
    """Requests with a common beginning that come one a step, greedy and drawn in turn."""
    prefix = shared_prefixes(vocab, length=prompt)[0]
    return [
        Arrival(
            (
                GenerateRequest(
                    id=str(i),
                    group=str(i),
                    prompt=[*prefix, i, i + 1],
                    sampling=SamplingParams(
                        max_tokens=answer, temperature=0.9 * (i % 2), seed=i, ignore_eos=True, logprobs=2
                    ),
                    arrival=float(i + 1),
                ),
            ),
            steps=2,
        )
        for i in range(count)
    ]


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize(
    ("threads", "eager", "kv_dtype"),
    [
        (1, False, "bfloat16"),
        (2, True, "bfloat16"),
        (3, False, "int8"),
        (4, False, "bfloat16"),
        (2, False, "float32"),
    ],
)
def test_a_crowd_that_meets_everything(isa: str, threads: int, eager: bool, kv_dtype: str) -> None:
    """What random schedules may miss is in this one for certain: cached prefixes, chunks and preemptions."""
    machine = random_machine(isa, kv_dtype)
    meet_everything(machine, answer=24, positions=208, threads=threads, enforce_eager=eager)


def test_a_crowd_of_the_demo_model(demo_machine: Machine) -> None:
    meet_everything(demo_machine, answer=24, positions=208, threads=2)


def meet_everything(machine: Machine, *, answer: int, **shape: Any) -> None:
    schedule = crowd(machine.checkpoint.config.vocab_size, 6, 40, answer)
    cached, preemptions = machine.check(schedule, max_num_batched_tokens=20, **shape)
    assert cached >= 32
    assert preemptions > 0


def test_one_bit_is_noticed() -> None:
    """The comparison itself: the lowest bit of one logit in every batch of two and more is turned."""
    machine = random_machine(ISAS[0])
    schedule = crowd(VOCAB, 3, 20, 8)
    with contextlib.closing(machine.start(positions=CONTEXT)) as core:
        forward = core.runner._executable.forward  # type: ignore[attr-defined]

        def turned(*step: Any, **options: Any) -> Any:
            logits = forward(*step, **options)
            if len(logits) > 1:
                logits.view(np.uint32)[-1, np.argmax(logits[-1])] ^= 1
            return logits

        core.runner._executable.forward = turned  # type: ignore[attr-defined]
        played = play(core, schedule)
    expected = {id: machine.alone(item) for id, item in played.requests.items()}
    assert differences(played.answers, expected)


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="needs sched_setaffinity")
@pytest.mark.parametrize("isa", ISAS)
def test_a_disturbed_core_changes_nothing(isa: str) -> None:
    """Tiles are taken by whichever thread is free. A busy process on one core shifts who computes what."""
    core = min(os.sched_getaffinity(0))
    code = f"import os; os.sched_setaffinity(0, {{{core}}}); print(flush=True)\nwhile True: pass"
    busy = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    try:
        assert busy.stdout is not None
        busy.stdout.readline()
        for threads in (2, 4):
            random_machine(isa).check(crowd(VOCAB, 6, 120, 16), positions=1024, threads=threads)
    finally:
        busy.send_signal(signal.SIGKILL)
        busy.stdout.close()  # type: ignore[union-attr]
        _, _, used = os.wait4(busy.pid, 0)
        busy.returncode = -signal.SIGKILL
    assert used.ru_utime > 0.02, "the disturbance did not run"
