"""Which cores each of several engine processes computes on."""

from __future__ import annotations

import itertools
import os
from collections.abc import Collection
from pathlib import Path

_TOPOLOGY = Path("/sys/devices/system/cpu")


def own_cores() -> list[int]:
    """Numbers of the CPUs that this process may use."""
    try:
        return sorted(os.sched_getaffinity(0))
    except AttributeError:  # not on macOS
        return list(range(os.cpu_count() or 1))


def divide(cpus: Collection[int], parts: int, topology: Path = _TOPOLOGY) -> list[tuple[int, ...]]:
    """`cpus` in `parts` of about one size, which are neighbours, with the hyperthreads of a core in one part. Where
    there are more parts than cores, some share one.
    """
    cores: dict[object, list[int]] = {}
    for cpu in sorted(cpus):
        cores.setdefault(_core(cpu, topology), []).append(cpu)
    groups = list(cores.values())
    if len(groups) < parts:
        return [tuple(groups[part % len(groups)]) for part in range(parts)]
    bounds = [part * len(groups) // parts for part in range(parts + 1)]
    return [
        tuple(cpu for group in groups[start:end] for cpu in group)
        for start, end in itertools.pairwise(bounds)
    ]


def _core(cpu: int, topology: Path) -> object:
    """What names the physical core behind a CPU; one of unknown topology is a core of its own."""
    try:
        return (topology / f"cpu{cpu}/topology/core_cpus_list").read_text().strip() or cpu
    except OSError:
        return cpu


def parse_cores(text: str) -> tuple[int, ...]:
    """`0-3,8` → (0, 1, 2, 3, 8). Raises ValueError."""
    found: list[int] = []
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        if not (first.isdecimal() and (not dash or last.isdecimal())):
            raise ValueError(f"{text!r} is not a list of cores such as 0-3,8")
        start, end = int(first), int(last or first)
        if not start <= end < 4096:
            raise ValueError(f"{part.strip()!r} are no cores: their numbers rise, up to 4095")
        found += range(start, end + 1)
    if len(set(found)) != len(found):
        raise ValueError(f"{text!r} names a core twice")
    return tuple(found)
