"""Shared by all tests. Being here, it also puts this folder on the path: `gguf_files` can be imported."""

from __future__ import annotations

from pathlib import Path

import pytest

from tokentrail.checkpoints import Checkpoint, demo_model_path, open_checkpoint
from tokentrail.protocol import ModelFileError


@pytest.fixture(scope="session")
def demo_path() -> Path:
    try:
        return demo_model_path()
    except ModelFileError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def demo_checkpoint(demo_path: Path) -> Checkpoint:
    return open_checkpoint(demo_path)
