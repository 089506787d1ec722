"""Tokentrail: an inference engine, an OpenAI-compatible server, and a trail of every answer.

>>> from tokentrail import LLM, SamplingParams
>>> LLM().generate("The capital of France is", SamplingParams(temperature=0, max_tokens=8))[0].outputs[0].text
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tokentrail.answer import LLM
    from tokentrail.protocol import SamplingParams, StructuredOutputsParams

__version__ = "0.1.0"

__all__ = ["LLM", "SamplingParams", "StructuredOutputsParams", "__version__"]


def __getattr__(name: str) -> object:
    # On first use: the command line and the engine process import this package, and need neither.
    if name == "LLM":
        from tokentrail.answer import LLM

        return LLM
    if name in ("SamplingParams", "StructuredOutputsParams"):
        from tokentrail import protocol

        return getattr(protocol, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
