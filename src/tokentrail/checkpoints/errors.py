"""One way to say that a model file cannot be used: file, problem, remedy, in one line."""

from __future__ import annotations

from pathlib import Path

from tokentrail.protocol import ModelFileError

DOWNLOAD_AGAIN = "The file is damaged or incomplete: download it again."
CONVERT_AGAIN = "Convert the model again with a current convert_hf_to_gguf.py of llama.cpp."


def file_error(path: Path, problem: str, remedy: str) -> ModelFileError:
    """Build the error; the caller raises it, so that control flow stays visible where the check is."""
    return ModelFileError(f"{path}: {problem}. {remedy}")


def quoted(text: str, limit: int = 80) -> str:
    """Text from a file, safe to print: control characters escaped, long text cut."""
    return repr(text) if len(text) <= limit else f"{text[:limit]!r}…"
