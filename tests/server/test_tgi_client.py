"""Text Generation Inference's own client, `text-generation`, unmodified. (It demands an old huggingface-hub but works
with a new one: `pip install --no-deps text-generation aiohttp`.)
"""

from __future__ import annotations

import pytest
from scripted_server import TEXT, ScriptedServer

text_generation = pytest.importorskip("text_generation")


def test_whole_and_streamed(server: ScriptedServer) -> None:
    client = text_generation.Client(server.url)
    answer = client.generate("Hi", max_new_tokens=200, decoder_input_details=True, top_n_tokens=2)
    assert answer.generated_text == TEXT
    assert [token.id for token in answer.details.tokens] == server.tokens
    assert answer.details.finish_reason.value == "eos_token"
    streamed = list(client.generate_stream("Hi", max_new_tokens=200))
    assert "".join(part.token.text for part in streamed if not part.token.special) == TEXT
    assert streamed[-1].generated_text == TEXT
    assert streamed[-1].details.generated_tokens == len(server.tokens)


async def test_async(server: ScriptedServer) -> None:
    client = text_generation.AsyncClient(server.url)
    assert (await client.generate("Hi", max_new_tokens=200)).generated_text == TEXT
    text = ""
    async for part in client.generate_stream("Hi", max_new_tokens=200):
        text += part.token.text
    assert text == TEXT


def test_errors(server: ScriptedServer) -> None:
    from text_generation.errors import ValidationError

    with pytest.raises(ValidationError, match="maximum context length"):
        text_generation.Client(server.url).generate("Hi", max_new_tokens=100_000)
