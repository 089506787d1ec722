"""The words that rooms exchange: requests, deltas, finishes, errors and trail events.

Plain `msgspec` structs that know nothing of HTTP, models or kernels. Everything above may import this
room; it imports nothing of ours.
"""

from tokentrail.protocol.errors import (
    CapacityError,
    ContextLengthExceeded,
    DeadlineExceeded,
    EngineDead,
    InvalidRequest,
    ModelFileError,
    Overloaded,
    TokentrailError,
    UpstreamError,
)
from tokentrail.protocol.events import ScheduledSequence, StepRecord
from tokentrail.protocol.messages import (
    Abort,
    AdapterInfo,
    Delta,
    EngineInfo,
    EngineMessage,
    EngineStats,
    Finish,
    FinishReason,
    GenerateRequest,
    Loading,
    Pooling,
    Ready,
    Rejected,
    RequestMessage,
    Shutdown,
    StartupFailed,
    StepOutput,
    TokenAlternatives,
)
from tokentrail.protocol.sampling import DEFAULTED, SamplingDefaults, SamplingParams, StructuredOutputsParams

__all__ = [
    "DEFAULTED",
    "Abort",
    "AdapterInfo",
    "CapacityError",
    "ContextLengthExceeded",
    "DeadlineExceeded",
    "Delta",
    "EngineDead",
    "EngineInfo",
    "EngineMessage",
    "EngineStats",
    "Finish",
    "FinishReason",
    "GenerateRequest",
    "InvalidRequest",
    "Loading",
    "ModelFileError",
    "Overloaded",
    "Pooling",
    "Ready",
    "Rejected",
    "RequestMessage",
    "SamplingDefaults",
    "SamplingParams",
    "ScheduledSequence",
    "Shutdown",
    "StartupFailed",
    "StepOutput",
    "StepRecord",
    "StructuredOutputsParams",
    "TokenAlternatives",
    "TokentrailError",
    "UpstreamError",
]
