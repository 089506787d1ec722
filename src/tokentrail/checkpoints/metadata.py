"""Typed, range-checked access to a file's metadata: nothing from a file is taken unchecked."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

from tokentrail.checkpoints.errors import CONVERT_AGAIN, file_error, quoted
from tokentrail.protocol import ModelFileError


class Metadata:
    """Reads values by key. A missing or unfit value raises `ModelFileError` naming file, key and value.

    `word` says what keys are called in such files, `within` is the key that these values stand under.
    """

    def __init__(
        self,
        path: Path,
        values: Mapping[str, Any],
        *,
        word: str = "metadata key",
        remedy: str = CONVERT_AGAIN,
        within: str = "",
    ) -> None:
        self.path = path
        self.values = values
        self.remedy = remedy
        self._word = word
        self._within = within

    def __contains__(self, key: str) -> bool:
        return key in self.values

    def fail(self, key: str, expected: str) -> NoReturn:
        raise self._error(key, f"must be {expected}, not {_shown(self.values[key])}")

    def _error(self, key: str, problem: str) -> ModelFileError:
        return file_error(self.path, f"{self._word} {self._within + key!r} {problem}", self.remedy)

    def _find(self, key: str, required: bool) -> Any:
        value = self.values.get(key)
        if value is None and required:
            raise self._error(key, "is missing")
        return value

    def integer(self, key: str, *, low: int, high: int, default: int | None = None) -> int:
        """An integer in [low, high]. Some writers store one value per layer: accepted where all are equal."""
        value = self._find(key, default is None)
        if value is None:
            assert default is not None
            return default
        if isinstance(value, np.ndarray) and value.dtype.kind in "iu" and value.size:
            if not (value == value[0]).all():
                problem = (
                    f"{self._word} {self._within + key!r} differs between layers, which is not supported here"
                )
                raise file_error(self.path, problem, "Use a model whose layers are all alike.")
            value = int(value[0])
        if type(value) is not int or not low <= value <= high:
            self.fail(key, f"an integer from {low} to {high}")
        return value

    def number(
        self, key: str, *, low: float, high: float, open_low: bool = False, default: float | None = None
    ) -> float:
        """A finite number in [low, high], or (low, high] with `open_low`."""
        value = self._find(key, default is None)
        if value is None:
            assert default is not None
            return default
        fits = type(value) in (int, float) and math.isfinite(value) and low <= value <= high
        if not fits or (open_low and value == low):
            self.fail(
                key,
                f"a number {'above' if open_low else 'from'} {low:g} {'up ' if open_low else ''}to {high:g}",
            )
        return float(value)

    def text(self, key: str, default: str | None = None) -> str:
        value = self._find(key, default is None)
        if value is None:
            assert default is not None
            return default
        if not isinstance(value, str):
            self.fail(key, "a string")
        return value

    def boolean(self, key: str) -> bool | None:
        value = self._find(key, False)
        if value is not None and not isinstance(value, bool):
            self.fail(key, "true or false")
        return value

    def flag(self, key: str, default: bool) -> bool:
        value = self.boolean(key)
        return default if value is None else value

    def nested(self, key: str) -> Metadata | None:
        """The object under a key; None where it is missing or null."""
        value = self._find(key, False)
        if value is None:
            return None
        if not isinstance(value, dict):
            self.fail(key, "an object")
        return Metadata(self.path, value, word=self._word, remedy=self.remedy, within=f"{self._within}{key}.")

    def numbers(self, key: str, *, low: float, high: float, length: int | None = None) -> tuple[float, ...]:
        """A list of finite numbers in [low, high] as JSON has it; empty where the key is missing.

        `length`: how many there must be, if there are any.
        """
        value = self._find(key, False)
        if value is None:
            return ()
        if not isinstance(value, list) or not all(
            type(item) in (int, float) and low <= item <= high for item in value
        ):
            self.fail(key, f"a list of numbers from {low:g} to {high:g}")
        if length is not None and len(value) != length:
            self.fail(key, f"a list of {length} numbers")
        return tuple(float(item) for item in value)

    def integers(self, key: str, *, low: int, high: int) -> tuple[int, ...]:
        """A list of integers in [low, high] as JSON has it; empty where the key is missing."""
        value = self._find(key, False)
        if value is None:
            return ()
        if not isinstance(value, list) or not all(
            type(item) is int and low <= item <= high for item in value
        ):
            self.fail(key, f"a list of integers from {low} to {high}")
        return tuple(value)

    def texts(self, key: str, *, required: bool = False) -> list[str]:
        """A list of strings; empty where the key is missing and not required."""
        value = self._find(key, required)
        if value is None:
            return []
        if not isinstance(value, list) or not all(type(item) is str for item in value):
            self.fail(key, "an array of strings")
        return value

    def array(self, key: str, kind: str, length: int) -> npt.NDArray[Any] | None:
        """An array of `length` numbers of kind `f` (float) or `i` (integer), or None where it is missing."""
        value = self._find(key, False)
        if value is None:
            return None
        kinds = "iu" if kind == "i" else "f"
        if not isinstance(value, np.ndarray) or value.dtype.kind not in kinds:
            self.fail(key, f"an array of {'integers' if kind == 'i' else 'floats'}")
        if value.size != length:
            self.fail(key, f"an array of {length} numbers")
        return value


def _shown(value: Any) -> str:
    if isinstance(value, np.ndarray):
        return f"an array of {value.size} {value.dtype.name}"
    if isinstance(value, list):
        return f"an array of {len(value)} items"
    if isinstance(value, dict):
        return f"an object of {len(value)} keys"
    return quoted(value) if isinstance(value, str) else repr(value)
