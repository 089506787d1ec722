"""`qwen.tiktoken` and its kin: a token in Base64 and its rank on each line, lower ranks merged first."""

from __future__ import annotations

import base64
import binascii
import re
from pathlib import Path

from tokentrail.checkpoints.errors import DOWNLOAD_AGAIN, file_error
from tokentrail.checkpoints.json_file import MAX_TOKENIZER_BYTES, read_bytes

_LINE = re.compile(rb"[A-Za-z0-9+/]+={0,2} [0-9]{1,9}\r?\n")


def looks_like_tiktoken(path: Path) -> bool:
    """Whether a `tokenizer.model` is such a file rather than SentencePiece's."""
    try:
        with path.open("rb") as file:
            return _LINE.match(file.read(4096)) is not None
    except OSError:
        return False


def read_ranks(path: Path) -> dict[bytes, int]:
    """Token → rank, which is its id. Raises `ModelFileError`."""
    ranks: dict[bytes, int] = {}
    for number, line in enumerate(read_bytes(path, MAX_TOKENIZER_BYTES).splitlines(), 1):
        if not line:
            continue
        try:
            token, rank = line.split()
            ranks[base64.b64decode(token, validate=True)] = int(rank)
        except (ValueError, binascii.Error):
            raise file_error(
                path, f"line {number} is not a token in Base64 and its rank", DOWNLOAD_AGAIN
            ) from None
    if not ranks:
        raise file_error(path, "has no tokens", DOWNLOAD_AGAIN)
    if sorted(ranks.values()) != list(range(len(ranks))):
        raise file_error(
            path, f"the ranks of its {len(ranks)} tokens are not 0 to {len(ranks) - 1}", DOWNLOAD_AGAIN
        )
    return ranks


def special_tokens_of(path: Path) -> list[tuple[str, int]]:
    """Special tokens that such a file implies: Qwen's own code adds them behind the ranks (tokenization_qwen.py)."""
    if path.name != "qwen.tiktoken":
        return []
    start = len(read_ranks(path))
    texts = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", *(f"<|extra_{number}|>" for number in range(205))]
    return [(text, start + index) for index, text in enumerate(texts)]
