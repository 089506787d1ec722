"""The ops in NumPy, in float64: the oracle that native kernels are judged by. Clear before fast."""

from tokentrail.ops.reference.backend import ReferenceBackend, ReferenceMatrix
from tokentrail.ops.reference.sampling import sample_row

__all__ = ["ReferenceBackend", "ReferenceMatrix", "sample_row"]
