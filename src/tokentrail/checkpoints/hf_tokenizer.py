"""A Hugging Face folder's tokenizer files and chat templates → `TokenizerSource` and texts.

Read here is only what the small files say: which file the tokenizer is made of, its added tokens, which of them
begin and end a text. The vocabulary, megabytes of JSON, is left for who needs it.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from tokentrail.checkpoints.errors import DOWNLOAD_AGAIN, file_error
from tokentrail.checkpoints.json_file import MAX_TOKENIZER_BYTES, read_json, read_shape, read_text
from tokentrail.checkpoints.model import AddedToken, LazyTokens, TokenizerSource
from tokentrail.checkpoints.sentencepiece import read_sentencepiece
from tokentrail.checkpoints.tekken import TEKKEN, read_tekken, tekken_roles, tekken_template
from tokentrail.checkpoints.tiktoken import looks_like_tiktoken, read_ranks, special_tokens_of

TOKENIZER_JSON, SENTENCEPIECE, BPE_FILES, TIKTOKEN = (
    "tokenizer.json",
    "tokenizer.model",
    "vocab.json",
    "tiktoken",
)
"""Kinds of `TokenizerSource`, in the order in which they are looked for."""
NO_TOKENIZER = "none"
"""A folder without any: a model for who has tokens already. `text.build_tokenizer` refuses it."""
_TIKTOKEN_FILES = ("qwen.tiktoken", "tokenizer.tiktoken", "tiktoken.model")
_ROLES = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")


class _Added(msgspec.Struct):
    """An entry of `added_tokens` in tokenizer.json; in `added_tokens_decoder` the id is the key instead."""

    content: str
    id: int | None = None
    special: bool = False
    normalized: bool = True
    single_word: bool = False
    lstrip: bool = False
    rstrip: bool = False

    def token(self, id: int | None = None) -> AddedToken:
        return AddedToken(
            self.content,
            self.id if id is None else id,
            self.special,
            self.normalized,
            self.single_word,
            self.lstrip,
            self.rstrip,
        )


class _AddedTokens(msgspec.Struct):
    added_tokens: list[_Added] = msgspec.field(default_factory=list)


class _Model(msgspec.Struct):
    vocab: dict[str, int] | list[tuple[str, float]]


class _Vocabulary(msgspec.Struct):
    model: _Model
    added_tokens: list[_Added] = msgspec.field(default_factory=list)


def read_folder_tokenizer(
    folder: Path,
    *,
    vocab_size: int,
    model_type: str = "",
    bos_token_id: int | None = None,
    eos_token_id: int | None = None,
) -> TokenizerSource:
    """What a folder says about its tokenizer.

    `vocab_size`: rows of the embedding. `bos_token_id` and `eos_token_id`: those of config.json, which count where
    the tokenizer's own files name none. Raises `ModelFileError` where files make no sense.
    """
    kind, files = _find(folder)
    settings = _settings(folder)
    if kind == TEKKEN:
        settings = {**tekken_roles(folder / TEKKEN), **settings}
    added = _added_tokens(folder, kind, files, settings)
    tokens = LazyTokens(partial(_read_tokens, kind, files, added, vocab_size))
    roles = {name: text for name, value in settings.items() if (text := _role(name, value)) is not None}
    known = {token.text for token in added}
    added += [
        AddedToken(text, special=True, normalized=False)
        for text in dict.fromkeys([*(roles[name] for name in _ROLES if name in roles), *_further(settings)])
        if text not in known
    ]

    def id_of(role: str, default: int | None) -> int | None:
        text = roles.get(role)
        found = None if text is None else _id_of(text, added, tokens)
        return default if found is None or found >= vocab_size else found

    flags = {
        name: settings.get(name) for name in ("add_bos_token", "add_eos_token", "add_prefix_space", "legacy")
    }
    for name, value in flags.items():
        if value is not None and not isinstance(value, bool):
            problem = f"{name} must be true or false, not {value!r:.80}"
            raise file_error(folder / "tokenizer_config.json", problem, DOWNLOAD_AGAIN)
    pre = _pre_tokenizer(kind, str(settings.get("tokenizer_class", "")), model_type)
    return TokenizerSource(
        kind=kind,
        pre=pre,
        tokens=tokens,
        bos_token_id=id_of("bos_token", bos_token_id),
        eos_token_id=id_of("eos_token", eos_token_id),
        add_bos=flags["add_bos_token"],
        add_eos=flags["add_eos_token"],
        add_space_prefix=flags["add_prefix_space"],
        prefix_once=flags["legacy"] is False,
        normalizer="nfc" if kind in (BPE_FILES, TIKTOKEN) and pre == "qwen2" else "",
        files=files,
        added_tokens=tuple(added),
        special_tokens=roles,
    )


def read_chat_templates(folder: Path) -> dict[str, str]:
    """Chat templates by name; the one for ordinary use is `default`. Files of their own come before settings."""
    found: dict[str, str] = {}
    path = folder / "tokenizer_config.json"
    if path.is_file():
        found = _templates_in(path, read_json(path).get("chat_template"))
    processor = folder / "chat_template.json"
    if not found and processor.is_file():
        found = _templates_in(processor, read_json(processor).get("chat_template"))
    files = {file.stem: file for file in sorted((folder / "additional_chat_templates").glob("*.jinja"))}
    if (folder / "chat_template.jinja").is_file():
        files["default"] = folder / "chat_template.jinja"
    if files:
        found = {name: read_text(file) for name, file in files.items()}
    if (
        not found
        and (folder / TEKKEN).is_file()
        and (template := tekken_template(folder / TEKKEN)) is not None
    ):
        found = {"default": template}
    return found


def _templates_in(path: Path, value: Any) -> dict[str, str]:
    if value is None:
        return {}
    if isinstance(value, str):
        return {"default": value}
    if isinstance(value, dict):
        value = [{"name": name, "template": template} for name, template in value.items()]
    entries = value if isinstance(value, list) else [value]
    found = {}
    for entry in entries:
        name = entry.get("name") if isinstance(entry, dict) else None
        template = entry.get("template") if isinstance(entry, dict) else None
        if not isinstance(name, str) or not isinstance(template, str):
            problem = "chat_template must be a text, or a list of objects with name and template"
            raise file_error(path, problem, "Repair the file, or give a template with --chat-template FILE.")
        found[name] = template
    return found


# --- which files, which settings ----------------------------------------------------------------------------


def _find(folder: Path) -> tuple[str, dict[str, Path]]:
    def existing(*names: str) -> dict[str, Path]:
        return {name: folder / name for name in names if (folder / name).is_file()}

    if files := existing(TOKENIZER_JSON):
        return TOKENIZER_JSON, files
    if files := existing(SENTENCEPIECE):
        tiktoken = looks_like_tiktoken(files[SENTENCEPIECE])
        return (TIKTOKEN if tiktoken else SENTENCEPIECE), files
    if len(files := existing(BPE_FILES, "merges.txt")) == 2:
        return BPE_FILES, files
    if files := existing(*_TIKTOKEN_FILES):
        return TIKTOKEN, dict(list(files.items())[:1])
    if files := existing(TEKKEN):
        return TEKKEN, files
    return NO_TOKENIZER, {}


def _settings(folder: Path) -> dict[str, Any]:
    """tokenizer_config.json, and special_tokens_map.json where the former does not describe added tokens."""
    path, older = folder / "tokenizer_config.json", folder / "special_tokens_map.json"
    settings = read_json(path) if path.is_file() else {}
    if "added_tokens_decoder" not in settings and older.is_file():
        settings = {**settings, **read_json(older)}
    return settings


def _role(name: str, value: Any) -> str | None:
    """The text of a setting such as `eos_token`, which is a string or an object."""
    if not name.endswith("_token"):
        return None
    text = value.get("content") if isinstance(value, dict) else value
    return text if isinstance(text, str) else None


def _further(settings: Mapping[str, Any]) -> list[str]:
    value = settings.get("extra_special_tokens") or settings.get("additional_special_tokens") or []
    entries = list(value.values()) if isinstance(value, dict) else value if isinstance(value, list) else []
    texts = [entry.get("content") if isinstance(entry, dict) else entry for entry in entries]
    return [text for text in texts if isinstance(text, str) and text]


def _added_tokens(
    folder: Path, kind: str, files: Mapping[str, Path], settings: Mapping[str, Any]
) -> list[AddedToken]:
    path = folder / "tokenizer_config.json"
    decoder = settings.get("added_tokens_decoder")
    if decoder:
        try:
            entries = msgspec.convert(decoder, type=dict[int, _Added], strict=False)
        except msgspec.ValidationError as error:
            problem = f"added_tokens_decoder is not what it should be ({error})"
            raise file_error(path, problem, DOWNLOAD_AGAIN) from None
        return [entry.token(id) for id, entry in sorted(entries.items())]
    if kind == TOKENIZER_JSON:
        file = files[TOKENIZER_JSON]
        return [entry.token() for entry in read_shape(file, _AddedTokens).added_tokens]
    if kind == TIKTOKEN:
        return [AddedToken(text, id, True, False) for text, id in special_tokens_of(*files.values())]
    older = folder / "added_tokens.json"
    if older.is_file():
        named = read_shape(older, dict[str, int])
        special = {text for name, value in settings.items() if (text := _role(name, value))} | set(
            _further(settings)
        )
        return [
            AddedToken(text, id, text in special, text not in special)
            for text, id in sorted(named.items(), key=lambda item: item[1])
        ]
    return []


def _pre_tokenizer(kind: str, tokenizer_class: str, model_type: str) -> str:
    """Name of the rule by which words are cut, which only tokenizer.json says itself."""
    if kind == BPE_FILES:
        return "qwen2" if tokenizer_class.startswith("Qwen") or model_type.startswith("qwen") else "gpt-2"
    if kind == TEKKEN:
        return "tekken"
    if kind == TIKTOKEN:
        return "qwen2" if model_type.startswith("qwen") or tokenizer_class.startswith("Q") else "llama-bpe"
    return ""


def read_bpe_files(files: Mapping[str, Path]) -> tuple[dict[str, int], list[str]]:
    """vocab.json and merges.txt: text → id, and merges as `left right`, first ones first. Raises `ModelFileError`."""
    path = files[BPE_FILES]
    ids = read_shape(path, dict[str, int])
    if sorted(ids.values()) != list(range(len(ids))):
        problem = f"the ids of its {len(ids)} tokens are not 0 to {len(ids) - 1}"
        raise file_error(path, problem, DOWNLOAD_AGAIN)
    lines = read_text(files["merges.txt"], MAX_TOKENIZER_BYTES).splitlines()
    return ids, [line for line in lines if line.strip() and not line.startswith("#version")]


# --- the vocabulary -----------------------------------------------------------------------------------------


def _id_of(text: str, added: list[AddedToken], tokens: LazyTokens) -> int | None:
    for token in added:
        if token.text == text and token.id is not None:
            return token.id
    try:
        return tokens.index(text)
    except ValueError:
        return None


def _read_tokens(kind: str, files: Mapping[str, Path], added: list[AddedToken], size: int) -> list[str]:
    """Texts by id, for `size` ids."""
    if kind == NO_TOKENIZER:
        return [""] * size
    path = next(iter(files.values()))
    entries: list[tuple[str, int]]
    if kind == TOKENIZER_JSON:
        vocabulary = read_shape(path, _Vocabulary)
        words = vocabulary.model.vocab
        if isinstance(words, list):
            words = {text: id for id, (text, _) in enumerate(words)}
        entries = list(words.items())
        added = [*(token.token() for token in vocabulary.added_tokens), *added]
    elif kind == SENTENCEPIECE:
        entries = [(text, id) for id, text in enumerate(read_sentencepiece(path).pieces)]
    elif kind == BPE_FILES:
        entries = list(read_shape(path, dict[str, int]).items())
    elif kind == TEKKEN:
        entries = [(text, id) for id, text in enumerate(read_tekken(path).texts)]
    else:
        entries = [(token.decode("latin-1"), id) for token, id in read_ranks(path).items()]
    tokens = [""] * size
    for text, id in [*entries, *((token.text, token.id) for token in added if token.id is not None)]:
        if 0 <= id < size:
            tokens[id] = text
    return tokens
