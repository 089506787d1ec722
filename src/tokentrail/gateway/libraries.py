"""Libraries of the extra `gateway`, which is not installed with the rest."""

from __future__ import annotations

import importlib
from typing import Any

from tokentrail.protocol import TokentrailError


def library(name: str) -> Any:
    """A library's module. Raises a `TokentrailError` that says how to install it."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError:
        raise TokentrailError(
            f"A deployment file needs {name}, which is not installed: pip install 'tokentrail[gateway]'."
        ) from None
