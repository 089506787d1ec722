"""`tekken.json`, Mistral's own tokenizer file: a vocabulary of bytes behind control tokens, and no chat template.

How conversations are written, the version of the file says: `mistral_common` has it in code, we in one template
(chat_templates/mistral.jinja).
"""

from __future__ import annotations

import base64
import binascii
from functools import cached_property
from pathlib import Path

import msgspec

from tokentrail.checkpoints.errors import DOWNLOAD_AGAIN, file_error
from tokentrail.checkpoints.json_file import read_shape

TEKKEN = "tekken.json"
_VERSIONS = {"v3": 3, "v7": 7, "v11": 11, "v13": 13}
"""Those whose conversations the template writes."""
_UNNAMED = [
    "<unk>", "<s>", "</s>", "[INST]", "[/INST]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]", "[TOOL_RESULTS]",
    "[/TOOL_RESULTS]", "[TOOL_CALLS]", "[IMG]", "<pad>", "[IMG_BREAK]", "[IMG_END]", "[PREFIX]", "[MIDDLE]", "[SUFFIX]",
    "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]", "[TOOL_CONTENT]",
]  # fmt: skip
"""The control tokens of files that name none (up to v7)."""
_MOST_SPECIAL = 100_000
_TEMPLATE = Path(__file__).with_name("chat_templates") / "mistral.jinja"


class _Config(msgspec.Struct):
    pattern: str
    default_vocab_size: int
    default_num_special_tokens: int
    version: str


class _Token(msgspec.Struct):
    rank: int
    token_bytes: str


class _Special(msgspec.Struct):
    rank: int
    token_str: str


class _File(msgspec.Struct):
    config: _Config
    vocab: list[_Token]
    special_tokens: list[_Special] | None = None


class _Head(msgspec.Struct):
    config: _Config
    special_tokens: list[_Special] | None = None


class Tekken(msgspec.Struct, dict=True):
    """The file's tokens; those of the vocabulary have their rank plus the number of control tokens for an id."""

    pattern: str
    special: list[str]
    """By id."""
    ranks: dict[bytes, int]

    @cached_property
    def texts(self) -> list[str]:
        """By id, bytes that are no UTF-8 replaced."""
        ordered = sorted(self.ranks, key=self.ranks.__getitem__)
        return [*self.special, *(token.decode("utf-8", "replace") for token in ordered)]


def read_tekken(path: Path) -> Tekken:
    """Raises `ModelFileError`."""
    file = read_shape(path, _File)
    special = _special(path, file.config, file.special_tokens)
    count = file.config.default_vocab_size - len(special)
    ranks: dict[bytes, int] = {}
    for token in file.vocab:
        if token.rank >= count:
            continue  # trained, and left out
        try:
            ranks[base64.b64decode(token.token_bytes, validate=True)] = token.rank
        except (ValueError, binascii.Error):
            raise file_error(
                path, f"its token {token.token_bytes!r:.80} is not in Base64", DOWNLOAD_AGAIN
            ) from None
    if count < 1 or sorted(ranks.values()) != list(range(count)):
        problem = f"the ranks of its vocabulary are not 0 to {count - 1}, which its configuration asks for"
        raise file_error(path, problem, DOWNLOAD_AGAIN)
    return Tekken(file.config.pattern, special, ranks)


def _special(path: Path, config: _Config, named: list[_Special] | None) -> list[str]:
    """Control tokens by id, filled up as `mistral_common` does."""
    count = config.default_num_special_tokens
    tokens = dict(enumerate(_UNNAMED)) if named is None else {token.rank: token.token_str for token in named}
    if not 0 < count <= _MOST_SPECIAL or sorted(tokens) != list(range(min(len(tokens), count))):
        problem = f"the ranks of its {len(tokens)} control tokens are not 0 to {len(tokens) - 1} of {count}"
        raise file_error(path, problem, DOWNLOAD_AGAIN)
    return [tokens.get(id, f"<SPECIAL_{id}>") for id in range(count)]


def tekken_roles(path: Path) -> dict[str, str]:
    """Texts of the tokens that begin and end texts, by role. Raises `ModelFileError`."""
    head = read_shape(path, _Head)
    known = set(_special(path, head.config, head.special_tokens))
    roles = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"}
    return {role: text for role, text in roles.items() if text in known}


def tekken_template(path: Path) -> str | None:
    """The chat template for the file's version, or None where that is not known. Raises `ModelFileError`."""
    head = read_shape(path, _Head)
    version = _VERSIONS.get(head.config.version)
    if version is None:
        return None
    settings = f"{{%- set version = {version} %}}"
    # By its marks, whoever reads the template sees how the model writes calls, and whether it thinks.
    if version >= 11:
        settings += '{%- set args = "[ARGS]" %}'
    if version >= 13 and "[THINK]" in _special(path, head.config, head.special_tokens):
        settings += '{%- set think = ("[THINK]", "[/THINK]") %}'
    return settings + _TEMPLATE.read_text(encoding="utf-8")
