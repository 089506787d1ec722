"""The C++ implementation of the ops (sources in `csrc/`): packing, programs, sampling, threads; and what the machine
could do at best."""

from tokentrail.ops.native.backend import (
    NativeBackend,
    NativeExecutable,
    available_isas,
    default_threads,
    native_digest,
)
from tokentrail.ops.native.machine import Machine, MachineProbe

__all__ = [
    "Machine",
    "MachineProbe",
    "NativeBackend",
    "NativeExecutable",
    "available_isas",
    "default_threads",
    "measure_bandwidth",
    "measure_machine",
    "measure_macs",
    "native_digest",
]
