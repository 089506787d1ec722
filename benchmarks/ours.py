"""Our side of a comparison: the whole engine, scheduler and sampling included, through its Python API."""

from __future__ import annotations

import random
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from processes import tokentrail

from tokentrail.engine import EngineConfig, LocalEngine
from tokentrail.protocol import GenerateRequest, SamplingParams


@dataclass(frozen=True)
class Tokentrail:
    """A measurement loads the model, warms up, runs once, and closes it. All rates are tokens per second."""

    model: Path
    threads: int

    def prefill(self, prompt: int) -> float:
        """One prompt, up to and including its first token."""
        ends = self._run(1, prompt, 1, warm_prompt=prompt)
        return prompt / ends[-1]

    def decode(self, generate: int) -> float:
        """One answer from an empty context."""
        ends = self._run(1, 1, generate, warm_prompt=1)
        return generate / ends[-1]

    def batched(self, batch: int, prompt: int, generate: int) -> tuple[float, float]:
        """Prefill of `batch` prompts in one step; decode of as many answers behind them."""
        ends = self._run(batch, prompt, generate + 1, warm_prompt=prompt if batch == 1 else 16)
        if len(ends) != generate + 1:
            sys.exit(f"{len(ends)} steps instead of {generate + 1}: too little memory for batch {batch}.")
        return batch * prompt / ends[0], batch * generate / (ends[-1] - ends[0])

    def server_command(self, port: int, *, clients: int) -> list[str]:
        return tokentrail(
            "serve", "--model", self.model, "--threads", self.threads, "--port", port,
            "--max-num-seqs", clients, "--no-log-requests",
        )  # fmt: skip

    def _run(self, batch: int, prompt: int, generate: int, *, warm_prompt: int) -> list[float]:
        """Seconds after the start at which each step ended; all prompts go into the first one."""
        config = EngineConfig(
            model=str(self.model),
            threads=self.threads,
            enable_prefix_caching=False,
            max_num_seqs=batch,
            max_num_batched_tokens=max(batch * prompt, 16),
            max_model_len=prompt + generate + 1,
        )
        engine = LocalEngine(config)
        try:
            vocabulary = engine.info.vocab_size
            for _ in engine.generate(
                fixed_requests("warm", batch, warm_prompt, min(generate, 8), vocabulary)
            ):
                pass
            requests = fixed_requests("run", batch, prompt, generate, vocabulary)
            start = time.perf_counter()
            return [time.perf_counter() - start for _ in engine.generate(requests)]
        finally:
            engine.close()


def fixed_requests(
    name: str, count: int, prompt: int, generate: int, vocabulary: int
) -> list[GenerateRequest]:
    rng = random.Random(name)
    fixed: dict[str, Any] = {"temperature": 0.0, "ignore_eos": True, "seed": 0}
    return [
        GenerateRequest(
            id=f"{name}-{index}",
            group=f"{name}-{index}",
            prompt=[rng.randrange(300, vocabulary) for _ in range(prompt)],
            sampling=SamplingParams(max_tokens=generate, **fixed),
            arrival=time.time(),
        )
        for index in range(count)
    ]
