"""Making the runner of an engine: the seam where other hardware, and the tests, step in."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable
from typing import cast

from tokentrail.engine.batch import Runner
from tokentrail.engine.config import EngineConfig

DEFAULT_RUNNER = "tokentrail.engine.model_runner:ModelRunner"
RUNNER_VARIABLE = "TOKENTRAIL_RUNNER"


Progress = Callable[[int, int], None]
"""Told what is done so far and in all, in bytes of the model's file."""


def create_runner(
    config: EngineConfig, path: str | None = None, *, progress: Progress | None = None
) -> Runner:
    """Call `module:callable` with the configuration and `progress=`; None: `$TOKENTRAIL_RUNNER`, or the runner of
    this package.

    Raises what the runner raises when it cannot start (`ModelFileError`, `CapacityError` …).
    """
    path = path or os.environ.get(RUNNER_VARIABLE) or DEFAULT_RUNNER
    module, separator, name = path.partition(":")
    if not separator:
        raise ValueError(f"{RUNNER_VARIABLE} must be module:callable, not {path!r}.")
    return cast(Runner, getattr(importlib.import_module(module), name)(config, progress=progress))
