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
    assert back == {"prompt": TEXT}


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
