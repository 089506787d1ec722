"""Mistral's tekken.json, against mistral_common: Mistral's own vocabulary, and its conversations of each version."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_tokenizer import TEXTS

from tokentrail.checkpoints import read_folder_tokenizer
from tokentrail.checkpoints.hf_tokenizer import read_chat_templates
from tokentrail.protocol import ModelFileError
from tokentrail.text import ChatTemplate, Tokenizer, build_tokenizer
from tokentrail.text.infill import Infill
from tokentrail.text.pretokenizers import PRE_TOKENIZERS
from tokentrail.text.tool_calls import choose_format

(PATTERN,) = PRE_TOKENIZERS["tekken"].patterns
SIZE = 21_000
"""Of 131,072: the vocabulary's beginning is a vocabulary, and read in a fraction of the time."""
UNNAMED = 20
"""Control tokens of files that name none."""
MORE = {"v11": ["[ARGS]", "[CALL_ID]"], "v13": ["[ARGS]", "[CALL_ID]", "[THINK]", "[/THINK]"]}


def opened(folder: Path, size: int = SIZE) -> Tokenizer:
    source = read_folder_tokenizer(folder, vocab_size=size)
    return build_tokenizer(source, vocab_size=size, origin=str(folder))


@pytest.fixture(scope="module")
def published() -> Any:
    """Most of a file of Mistral's, which `mistral-common` brings along."""
    common = pytest.importorskip("mistral_common")
    path = Path(common.__file__).parent / "data" / "tekken_240911.json"
    file = json.loads(path.read_text(encoding="utf-8"))
    file["config"]["default_vocab_size"] = SIZE
    file["vocab"] = file["vocab"][: SIZE - 500]  # of which the last 500 are left out, too
    return file


@pytest.fixture(scope="module")
def folder(published: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tekken")
    (path / "tekken.json").write_text(json.dumps(published))
    return path


@pytest.fixture(scope="module")
def both(folder: Path) -> tuple[Tokenizer, Any]:
    from mistral_common.tokens.tokenizers.tekken import Tekkenizer

    return opened(folder), Tekkenizer.from_file(folder / "tekken.json")


@pytest.mark.parametrize("text", TEXTS)
def test_the_same_ids(text: str, both: tuple[Tokenizer, Any]) -> None:
    ours, theirs = both
    ids = theirs.encode(text, bos=True, eos=False)
    assert ours.encode(text, parse_special=False) == ids
    assert ours.decode(ids) == theirs.decode(ids)


@settings(max_examples=300, deadline=None)
@given(
    text=st.text(
        st.one_of(st.sampled_from("aAbehÉßǅ世界한👩‍é.\n\r/0123\t'’[] "), st.characters(codec="utf-8")),
        max_size=40,
    )
)
def test_random_texts(text: str, both: tuple[Tokenizer, Any]) -> None:
    ours, theirs = both
    assert ours.encode(text, add_special_tokens=False, parse_special=False) == theirs.encode(
        text, bos=False, eos=False
    )


def test_control_tokens(both: tuple[Tokenizer, Any], folder: Path) -> None:
    ours, theirs = both
    assert ours.vocab_size == theirs.n_words == SIZE
    for id in (0, 1, 2, 9, 19, UNNAMED, 999):
        assert ours.id_to_token(id) == theirs.id_to_piece(id)
        assert ours.is_special(id)
    assert not ours.is_special(1000)
    assert (ours.bos_token_id, ours.eos_token_ids) == (theirs.bos_id, (theirs.eos_id,))
    assert ours.encode("[INST]é[/INST]") == [1, 3, *theirs.encode("é", bos=False, eos=False), 4]
    infill = Infill.of(ours, read_folder_tokenizer(folder, vocab_size=SIZE))
    assert infill is not None
    assert infill.encode("def f(", "return", ours) == [
        1,
        theirs.get_special_token("[SUFFIX]"),
        *theirs.encode("return", bos=False, eos=False),
        theirs.get_special_token("[PREFIX]"),
        *theirs.encode("def f(", bos=False, eos=False),
    ]


# --- conversations --------------------------------------------------------------------------------------------

PARAMETERS = {"type": "object", "properties": {"a": {"type": "string", "description": "ñ"}}}
TOOLS = [
    {"type": "function", "function": {"name": name, "description": "Looks <é>", "parameters": PARAMETERS}}
    for name in ("look", "see")
]


def call(id: str, arguments: str = '{"a": "é"}') -> dict[str, Any]:
    return {"id": id, "type": "function", "function": {"name": "look", "arguments": arguments}}


def result(id: str, content: str) -> dict[str, Any]:
    return {"role": "tool", "name": "look", "tool_call_id": id, "content": content}


def said(role: str, content: str) -> dict[str, Any]:
    return {"role": role, "content": content}


CALLED: list[Any] = [
    said("user", "Hi"),
    {**said("assistant", ""), "tool_calls": [call("abcdefghi"), call("abcdefghj", "{}")]},
    result("abcdefghi", "Found: 世界"),
    result("abcdefghj", '{"n": [1, "ü"]}'),
]
CONVERSATIONS: dict[str, tuple[list[Any], list[Any]]] = {
    "one": ([said("user", "Hi ")], []),
    "several": ([said("user", "Hi"), said("assistant", " Yo\n"), said("user", "More\n")], []),
    "system": (
        [said("system", "Be\nbrief."), said("user", "Hi"), said("assistant", "Yo"), said("user", "More")],
        [],
    ),
    "users in a row": ([said("user", "Hi"), said("user", "More")], []),
    "systems in a row": ([said("system", "A"), said("system", "B"), said("user", "Hi")], []),
    "tools": ([said("system", "S"), said("user", "Hi")], TOOLS),
    "tools later": (
        [said("user", "Hi"), said("assistant", "Yo"), said("user", "A"), said("user", "B")],
        TOOLS,
    ),
    "called": (CALLED, TOOLS),
    "called before": ([*CALLED, said("assistant", "So."), said("user", "Again")], TOOLS),
}


@pytest.mark.parametrize("version", ["v3", "v7", "v11", "v13"])
def test_the_same_conversations(published: Any, tmp_path: Path, version: str) -> None:
    from mistral_common.protocol.instruct.request import ChatCompletionRequest
    from mistral_common.tokens.tokenizers.mistral import MistralTokenizer
    from mistral_common.tokens.tokenizers.tekken import Tekkenizer

    names = [
        str(getattr(token["token_str"], "value", token["token_str"]))
        for token in Tekkenizer.DEPRECATED_SPECIAL_TOKENS
    ]
    names += MORE.get(version, [])
    special = [{"rank": rank, "token_str": text, "is_control": True} for rank, text in enumerate(names)]
    file = {"config": {**published["config"], "version": version}, "vocab": published["vocab"]}
    (tmp_path / "tekken.json").write_text(json.dumps({**file, "special_tokens": special}))
    ours, theirs = opened(tmp_path), MistralTokenizer.from_file(str(tmp_path / "tekken.json"))
    (source,) = read_chat_templates(tmp_path).values()
    roles = read_folder_tokenizer(tmp_path, vocab_size=SIZE).special_tokens
    template = ChatTemplate(source, special_tokens=roles)
    for name, (messages, tools) in CONVERSATIONS.items():
        expected = theirs.encode_chat_completion(
            ChatCompletionRequest(messages=messages, tools=tools or None)
        )
        text = template.render(messages, tools=tools or None)
        assert ours.encode(text, add_special_tokens=False) == expected.tokens, name
    assert ("[THINK]" in source) == (version == "v13")
    assert template.takes_tools
    calls = choose_format(source)
    assert calls is not None
    assert calls.name == ("mistral" if version in ("v3", "v7") else "mistral_v11")


def test_versions_that_are_not_known_have_no_template(tmp_path: Path) -> None:
    write(tmp_path, version="v99")
    assert read_chat_templates(tmp_path) == {}
    (tmp_path / "chat_template.jinja").write_text("{{ messages }}")
    write(tmp_path)
    assert read_chat_templates(tmp_path) == {"default": "{{ messages }}"}


# --- other files ----------------------------------------------------------------------------------------------


def write(folder: Path, **changes: Any) -> None:
    """A file of bytes and one pair. `changes`: of the configuration, or `vocab` and `special_tokens`."""
    tokens = [*(bytes([byte]) for byte in range(256)), b"ab"]
    file: dict[str, Any] = {
        "config": {
            "pattern": PATTERN,
            "default_vocab_size": 287,
            "default_num_special_tokens": 30,
            "version": "v7",
        },
        "vocab": [
            {"rank": rank, "token_bytes": base64.b64encode(token).decode(), "token_str": None}
            for rank, token in enumerate(tokens)
        ],
    }
    for name, value in changes.items():
        (file["config"] if name in (*file["config"], "pattern") else file)[name] = value
    (folder / "tekken.json").write_text(json.dumps(file))


def test_a_small_file(tmp_path: Path) -> None:
    write(tmp_path)
    tokenizer = opened(tmp_path, 300)
    assert tokenizer.encode("ab é<SPECIAL_29>") == [1, 286, 62, 225, 199, 29]
    assert tokenizer.vocab_size == 300
    assert read_folder_tokenizer(tmp_path, vocab_size=300).tokens[286] == "ab"
    # Where there is a tokenizer.json, it counts.
    (tmp_path / "tokenizer.json").write_text("{}")
    assert read_folder_tokenizer(tmp_path, vocab_size=300).kind == "tokenizer.json"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"pattern": "(a+)+b"}, "a pattern that is not known"),
        ({"default_vocab_size": 400}, "the ranks of its vocabulary are not 0 to 369"),
        ({"default_vocab_size": 30}, "the ranks of its vocabulary"),
        ({"default_num_special_tokens": 0}, "control tokens"),
        ({"default_num_special_tokens": 10**9}, "control tokens"),
        ({"special_tokens": [{"rank": 1, "token_str": "<s>"}]}, "the ranks of its 1 control tokens"),
        ({"special_tokens": [{"rank": 0, "token_str": "a"}]}, "there twice"),
        ({"vocab": [{"rank": 0, "token_bytes": "?"}]}, "is not in Base64"),
        ({"vocab": [{"rank": "x", "token_bytes": "YQ=="}]}, "is not the JSON it should be"),
        ({"version": 7}, "is not the JSON it should be"),
    ],
)
def test_damaged_files(tmp_path: Path, changes: dict[str, Any], words: str) -> None:
    write(tmp_path, **changes)
    with pytest.raises(ModelFileError) as caught:
        opened(tmp_path, 300)
    message = str(caught.value)
    assert words in message
    assert str(tmp_path) in message
    assert len(message) < 500
