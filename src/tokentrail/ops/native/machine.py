"""What this machine can do at best: the two roofs under which every kernel stands."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

from tokentrail.ops.native import _native
from tokentrail.ops.native.backend import available_isas
from tokentrail.ops.native.resources import default_threads

LEAST_BUFFER = 256 << 20
PEAKS = {
    "int4": _native.Peak.INT4,
    "int8": _native.Peak.INT8,
    "bf16": _native.Peak.BF16,
    "f32": _native.Peak.F32,
}
"""Kinds of products: int8 activations with weights below 128, or of 8 bits; pairs of bfloat16; float32."""
PEAK_OF_LAYOUT = {
    **dict.fromkeys(("Q8_0", "G8", "IQ4_NL", "IQ4_XS"), "int8"),
    "BF16": "bf16",
    "F16": "f32",
    "F32": "f32",
}
PEAK_OF_KV = {"bfloat16": "bf16", "float32": "f32", "int8": "int8"}


def peak_of_layout(layout: str) -> str:
    """The kind of product that bounds a packed layout: in most, weights stay below 128."""
    return PEAK_OF_LAYOUT.get(layout, "int4")


@dataclass(frozen=True)
class Machine:
    """Rates of all threads together."""

    bandwidth: float
    """Bytes read a second."""
    macs: dict[str, float]
    """Multiply–accumulates a second, by the kind of product (see `PEAKS`)."""

    def least(self, nbytes: float, macs: dict[str, float]) -> tuple[float, str]:
        """Seconds that reading so many bytes and so many multiply–accumulates take at best, and what sets them:
        "memory" or a kind of product.
        """
        memory = nbytes / self.bandwidth
        compute = {peak: count / self.macs[peak] for peak, count in macs.items()}
        if memory >= sum(compute.values()):
            return memory, "memory"
        return sum(compute.values()), max(compute, key=lambda peak: compute[peak])


class MachineProbe:
    """Measures `threads` threads together. They stay, since the system needs a while to give new ones a core each."""

    def __init__(self, threads: int | None = None, *, isa: str | None = None) -> None:
        self.threads = default_threads() if threads is None else threads
        self.isa = isa or os.environ.get("TOKENTRAIL_ISA") or available_isas()[0]
        self._pool = _native.ThreadPool(self.threads)

    def bandwidth(self, repetitions: int = 1) -> float:
        """Bytes read a second: the best of several access patterns and repetitions, each a tenth of a second long,
        over a buffer of eight times the largest cache (256 MiB at least)."""
        nbytes = max(LEAST_BUFFER, 8 * largest_cache())
        return float(_native.read_bandwidth(self._pool, self.isa, nbytes, repetitions))

    def macs(self, seconds: float = 0.2) -> dict[str, float]:
        """Multiply–accumulates a second on operands in registers, by the kind of product: the best of short runs."""
        return {
            name: float(_native.mac_rate(self._pool, self.isa, peak, seconds)) for name, peak in PEAKS.items()
        }


def largest_cache() -> int:
    """Bytes of the largest cache of the first core; 0 where the system does not say."""
    units = {"": 1, "K": 1 << 10, "M": 1 << 20}
    sizes = [0]
    for file in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size"):
        match = re.fullmatch(r"(\d+)([KM]?)", file.read_text().strip())
        if match:
            sizes.append(int(match[1]) * units[match[2]])
    return max(sizes)
