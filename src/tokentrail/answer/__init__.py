"""One request's way through: prompt → template → tokens → engine → text, behind the `Backend` protocol.

The server, the command line and `LLM` all answer through here. A backend takes an `AnswerRequest`, checks and
admits it, and gives back an `Answer`: a stream of `Chunk`s which, joined, are the whole answer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tokentrail.answer.backend import Answer, Backend, collect
from tokentrail.answer.embedding import EmbeddingRequest, Embeddings
from tokentrail.answer.estimate import estimated
from tokentrail.answer.identity import Handling, Identity, TargetState
from tokentrail.answer.types import (
    AnswerRequest,
    CallPiece,
    ChatOptions,
    ChatPrompt,
    Choice,
    Chunk,
    InfillPrompt,
    LineEnds,
    ModelCard,
    ModelDetails,
    Prompt,
    TextPrompt,
    Timing,
    TokenLogprob,
    TokensPrompt,
    TokenText,
    Usage,
)

if TYPE_CHECKING:
    from tokentrail.answer.llm import LLM
    from tokentrail.answer.local import LocalBackend

__all__ = [
    "LLM",
    "Answer",
    "AnswerRequest",
    "Backend",
    "CallPiece",
    "ChatOptions",
    "ChatPrompt",
    "Choice",
    "Chunk",
    "EmbeddingRequest",
    "Embeddings",
    "Handling",
    "Identity",
    "InfillPrompt",
    "LineEnds",
    "LocalBackend",
    "ModelCard",
    "ModelDetails",
    "Prompt",
    "TargetState",
    "TextPrompt",
    "Timing",
    "TokenLogprob",
    "TokenText",
    "TokensPrompt",
    "Usage",
    "collect",
    "estimated",
]


def __getattr__(name: str) -> object:
    if name == "LLM":
        from tokentrail.answer.llm import LLM

        return LLM
    if name == "LocalBackend":
        from tokentrail.answer.local import LocalBackend

        return LocalBackend
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
