from __future__ import annotations

from pathlib import Path

import pytest

from llama_oracle import LlamaCpp
from tokentrail.checkpoints import Checkpoint
from tokentrail.text import Tokenizer


@pytest.fixture(scope="session")
def demo_tokenizer(demo_checkpoint: Checkpoint) -> Tokenizer:
    return Tokenizer.from_checkpoint(demo_checkpoint)


@pytest.fixture(scope="session")
def demo_llama(demo_path: Path) -> LlamaCpp:
    return LlamaCpp(demo_path)
