"""/tokenize, /detokenize and /tokenizer_info, as vLLM's clients use them."""

from __future__ import annotations

from typing import Any

import pytest
from scripted_server import MakeServer, ScriptedServer

TEXT = "Hello 世界 🎉"


def post(server: ScriptedServer, path: str, **body: Any) -> Any:
    return server.post(path, body)


def test_a_text_and_its_tokens(server: ScriptedServer) -> None:
    result = post(server, "/tokenize", model="any", prompt=TEXT, return_token_strs=True).json()
    assert result["count"] == len(result["tokens"]) == len(result["token_strs"])
    assert result["max_model_len"] == 512
    back = post(server, "/detokenize", tokens=result["tokens"]).json()
    assert back == {"prompt": TEXT, "content": TEXT}


def test_a_conversation_is_what_a_request_with_it_would_be(server: ScriptedServer) -> None:
    messages = [{"role": "user", "content": TEXT}]
    tokens = post(server, "/tokenize", messages=messages).json()["tokens"]
    server.chat(messages=messages)
    assert server.engine.requests[-1].prompt == tokens
    text = post(server, "/detokenize", tokens=tokens).json()["prompt"]
    assert text.endswith("<|im_start|>assistant\n")
    without = post(server, "/tokenize", messages=messages, add_generation_prompt=False).json()["tokens"]
    assert len(without) < len(tokens)


def test_special_tokens_are_parsed(server: ScriptedServer) -> None:
    assert post(server, "/tokenize", prompt="<|im_end|>", add_special_tokens=False).json()["tokens"] == [2]


def test_llama_cpps_way(server: ScriptedServer) -> None:
    ids = post(server, "/tokenize", content=TEXT).json()
    assert ids == {"tokens": post(server, "/tokenize", prompt=TEXT).json()["tokens"]}
    pieces = post(server, "/tokenize", content=TEXT, with_pieces=True).json()["tokens"]
    assert [piece["id"] for piece in pieces] == ids["tokens"]
    data = [
        piece["piece"].encode() if isinstance(piece["piece"], str) else bytes(piece["piece"])
        for piece in pieces
    ]
    assert b"".join(data).decode() == TEXT
    assert any(isinstance(piece["piece"], list) for piece in pieces)
    assert post(server, "/tokenize", content="<|im_end|>").json()["tokens"] == [2]
    assert len(post(server, "/tokenize", content="<|im_end|>", parse_special=False).json()["tokens"]) > 1


def test_tgis_way(server: ScriptedServer) -> None:
    tokens = post(server, "/tokenize", inputs=TEXT).json()
    assert [token["id"] for token in tokens] == post(server, "/tokenize", prompt=TEXT).json()["tokens"]
    assert "".join(token["text"] for token in tokens) == TEXT
    assert all(token["text"] == TEXT[token["start"] : token["stop"]] for token in tokens)


def test_tokenizer_info(server: ScriptedServer) -> None:
    info = server.get("/tokenizer_info").json()
    assert info["eos_token"] in ("<|endoftext|>", "<|im_end|>")
    assert "im_start" in info["chat_template"]


@pytest.mark.parametrize(
    ("path", "body", "words"),
    [
        ("/tokenize", {}, "either prompt or messages"),
        ("/tokenize", {"prompt": "a", "messages": []}, "either prompt or messages"),
        ("/tokenize", {"prompt": 3}, "prompt"),
        ("/tokenize", {"content": "a", "inputs": "a"}, "either prompt or messages"),
        ("/detokenize", {"tokens": "3"}, "tokens"),
        ("/detokenize", {"tokens": [3, 99999999]}, "99999999"),
        ("/tokenize", {"prompt": "a" * 200_000}, "maximum context length"),
    ],
)
def test_what_is_wrong_is_named(server: ScriptedServer, path: str, body: dict[str, Any], words: str) -> None:
    response = post(server, path, **body)
    assert response.status_code == 400
    assert words in response.json()["error"]["message"]


def test_keys_are_asked_for(make_server: MakeServer) -> None:
    server = make_server(api_keys=("secret",))
    assert post(server, "/tokenize", prompt="a").status_code == 401
