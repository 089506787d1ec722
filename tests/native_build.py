"""A pytest plugin (`-p native_build`) that tests another build of the native module than the installed one.

`TOKENTRAIL_NATIVE` names its file. It has to be loaded before anything imports the package.
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
import os
import sys

NAME = "tokentrail.ops.native._native"


def load(path: str) -> None:
    loader = importlib.machinery.ExtensionFileLoader(NAME, path)
    spec = importlib.util.spec_from_file_location(NAME, path, loader=loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    sys.modules[NAME] = module


if path := os.environ.get("TOKENTRAIL_NATIVE"):
    load(path)
