"""What a comparison has measured so far: samples by measurement and side, kept in a JSON file between runs."""

from __future__ import annotations

import json
import statistics
from pathlib import Path

Sample = dict[str, float]
"""One turn of one side: metric → value."""


class Results:
    """Of one model; the file may hold those of others, too."""

    def __init__(self, path: Path | None, model: str) -> None:
        self._path = path
        self._all: dict[str, dict[str, dict[str, list[Sample]]]] = {}
        if path is not None and path.exists():
            self._all = json.loads(path.read_text(encoding="utf-8"))
        self._samples = self._all.setdefault(model, {})

    def add(self, measurement: str, side: str, sample: Sample) -> None:
        self._samples.setdefault(measurement, {}).setdefault(side, []).append(sample)
        if self._path is not None:
            self._path.write_text(json.dumps(self._all, indent=1) + "\n", encoding="utf-8")

    def turns(self, measurement: str, side: str) -> int:
        return len(self._samples.get(measurement, {}).get(side, []))

    def values(self, measurement: str, side: str, metric: str) -> list[float]:
        return [sample[metric] for sample in self._samples.get(measurement, {}).get(side, [])]

    def best(self, measurement: str, metric: str, sides: list[str]) -> str | None:
        """Of the sides that were measured, the one that did best in its first turn: they all had that."""
        measured = [side for side in sides if self.turns(measurement, side)]
        return max(measured, key=lambda side: self.values(measurement, side, metric)[0], default=None)


def spread(values: list[float], form: str = ".0f") -> str:
    """Median, and from where to where."""
    if not values:
        return "–"
    middle = f"{statistics.median(values):{form}}"
    return middle if len(values) == 1 else f"{middle} ({min(values):{form}}–{max(values):{form}})"
