"""The C++ implementation of the ops (sources in `csrc/`): packing, quantization, programs, sampling, threads; what the
machine could do at best, and what of it this process may take."""

from tokentrail.ops.native.backend import (
    NativeBackend,
    NativeExecutable,
    available_isas,
    native_digest,
)
from tokentrail.ops.native.machine import Machine, MachineProbe
from tokentrail.ops.native.quantize import WeightQuantizer
from tokentrail.ops.native.resources import available_memory, default_threads, usable_cores

__all__ = [
    "Machine",
    "MachineProbe",
    "NativeBackend",
    "NativeExecutable",
    "WeightQuantizer",
    "available_isas",
    "available_memory",
    "default_threads",
    "native_digest",
    "usable_cores",
]
