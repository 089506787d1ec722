"""The C++ implementation of the ops (sources in `csrc/`): packing, programs, sampling, threads."""

from tokentrail.ops.native.backend import NativeBackend, available_isas, default_threads, native_digest

__all__ = ["NativeBackend", "available_isas", "default_threads", "native_digest"]
