"""Agent frameworks against a real server: each forces a tool call or a schema, as its own documentation shows it.

Needs `pip install ".[frameworks]"`, and is skipped without. The demo model is small and
says little that is sensible, so what is asserted is what the server answers for: calls that parse, arguments that fit
their schema, results that reach the model, streams that end.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any, Literal

import pytest
from pydantic import BaseModel, Field
from real_server import RealServer

agents = pytest.importorskip("agents")
instructor = pytest.importorskip("instructor")
langchain_openai = pytest.importorskip("langchain_openai")
openai_like = pytest.importorskip("llama_index.llms.openai_like")
agents.set_tracing_disabled(True)

pytestmark = [pytest.mark.frameworks, pytest.mark.timeout(300)]


class City(BaseModel):
    """A city and what it is known for."""

    name: str = Field(max_length=20)
    country: Literal["France", "China", "Germany"]
    inhabitants: int = Field(ge=1, le=99_999_999)
    sights: list[Literal["tower", "wall", "gate"]] = Field(min_length=1, max_length=2)


QUESTION = "Which city has the tower?"


# --- LangChain ---------------------------------------------------------------------------------------


@pytest.fixture(params=["chat", "responses"])
def langchain(server: RealServer, request: pytest.FixtureRequest) -> Any:
    return langchain_openai.ChatOpenAI(
        model=server.model,
        base_url=f"{server.url}/v1",
        api_key="none",
        temperature=0,
        max_tokens=120,
        use_responses_api=request.param == "responses",
    )


def test_langchain_calls_a_tool_and_gets_its_result(langchain: Any) -> None:
    from langchain_core.messages import HumanMessage, ToolMessage
    from langchain_core.tools import tool

    @tool
    def population(city: Literal["Paris", "Berlin"]) -> int:
        """How many people live in a city."""
        return {"Paris": 2_100_000, "Berlin": 3_700_000}[city]

    bound = langchain.bind_tools([population], tool_choice="population")
    first = bound.invoke([HumanMessage("How many people live in Paris?")])
    (call,) = first.tool_calls
    assert call["name"] == "population"
    result = population.invoke(call)
    assert isinstance(result, ToolMessage)
    last = langchain.invoke([HumanMessage("How many people live in Paris?"), first, result])
    assert last.content
    assert last.usage_metadata["input_tokens"] > first.usage_metadata["input_tokens"] / 2


def test_langchain_streams_the_same_call(langchain: Any) -> None:
    from langchain_core.tools import tool

    @tool
    def population(city: Literal["Paris", "Berlin"]) -> int:
        """How many people live in a city."""
        raise NotImplementedError

    bound = langchain.bind_tools([population], tool_choice="required")
    whole = bound.invoke("How many people live in Paris?")
    joined: Any = None
    for chunk in bound.stream("How many people live in Paris?"):
        joined = chunk if joined is None else joined + chunk
    assert [(c["name"], c["args"]) for c in joined.tool_calls] == [
        (c["name"], c["args"]) for c in whole.tool_calls
    ]


@pytest.mark.parametrize("method", ["json_schema", "function_calling"])
def test_langchain_gets_a_structure(langchain: Any, method: str) -> None:
    city = langchain.with_structured_output(City, method=method).invoke(QUESTION)
    assert isinstance(city, City)


def test_langchain_asynchronously(langchain: Any) -> None:
    async def ask() -> list[Any]:
        return await asyncio.gather(*(langchain.ainvoke(f"Say {word}.") for word in ("yes", "no", "好")))

    assert all(answer.content for answer in asyncio.run(ask()))


def test_langchain_embeds(server: RealServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Token ids, which it sends by default, give the very vectors of the texts."""

    class Encoding:
        """In the place of tiktoken's, which would be downloaded and know other tokens."""

        def encode_ordinary(self, text: str, **options: Any) -> list[int]:
            return server.http.post("/tokenize", json={"prompt": text}).json()["tokens"]

        encode = encode_ordinary

    monkeypatch.setattr("tiktoken.encoding_for_model", lambda name: Encoding())
    options: Any = {"model": server.model, "base_url": f"{server.url}/v1", "api_key": "none"}
    by_tokens = langchain_openai.OpenAIEmbeddings(**options)
    by_text = langchain_openai.OpenAIEmbeddings(**options, check_embedding_ctx_length=False)
    texts = ["Paris is the capital of France.", "The French capital is Paris.", "Bake the bread."]
    vectors = by_text.embed_documents(texts)
    assert sum(a * a for a in vectors[0]) == pytest.approx(1, abs=1e-5)
    assert asyncio.run(by_text.aembed_query(texts[0])) == vectors[0]
    for ours, theirs in zip(vectors, by_tokens.embed_documents(texts), strict=True):
        assert theirs == pytest.approx(ours, abs=1e-6)  # it divides by the length once more


# --- LlamaIndex --------------------------------------------------------------------------------------


@pytest.fixture
def llama_index(server: RealServer) -> Any:
    return openai_like.OpenAILike(
        model=server.model,
        api_base=f"{server.url}/v1",
        api_key="none",
        is_chat_model=True,
        is_function_calling_model=True,
        context_window=2048,
        temperature=0.0,
        max_tokens=120,
    )


def test_llama_index_calls_a_tool(llama_index: Any) -> None:
    from llama_index.core.tools import FunctionTool

    def add(a: int, b: int) -> int:
        """Add two numbers."""
        return a + b

    tool = FunctionTool.from_defaults(add)
    response = llama_index.chat_with_tools([tool], user_msg="What is 2 + 3?", tool_required=True)
    calls = llama_index.get_tool_calls_from_response(response)
    assert {call.tool_name for call in calls} == {"add"}
    assert all(set(call.tool_kwargs) <= {"a", "b"} for call in calls)


def test_llama_index_streams_the_whole_text(llama_index: Any) -> None:
    from llama_index.core.llms import ChatMessage

    messages = [ChatMessage(role="user", content="What is 2 + 3?")]
    whole = llama_index.chat(messages).message.content
    assert "".join(part.delta for part in llama_index.stream_chat(messages)) == whole


def test_llama_index_gets_a_structure(llama_index: Any) -> None:
    from llama_index.core.llms import ChatMessage

    answer = llama_index.as_structured_llm(City).chat([ChatMessage(role="user", content=QUESTION)])
    assert isinstance(answer.raw, City)


# --- OpenAI's Agents SDK -----------------------------------------------------------------------------


MODELS = pytest.mark.parametrize("kind", ["OpenAIChatCompletionsModel", "OpenAIResponsesModel"])


@MODELS
def test_agents_sdk_runs_a_tool_to_the_end(server: RealServer, kind: str) -> None:
    asked: list[str] = []

    @agents.function_tool
    def weather(city: Literal["Paris", "Berlin"]) -> str:
        """The weather in a city."""
        asked.append(city)
        return "Sunny, 21 °C."

    model = getattr(agents, kind)(model=server.model, openai_client=server.async_client())
    agent = agents.Agent(
        name="Weather",
        instructions="Tell the weather.",
        model=model,
        tools=[weather],
        # Set back to auto after the first call, so that the run ends with a text.
        model_settings=agents.ModelSettings(tool_choice="required", temperature=0, max_tokens=120),
    )

    async def both() -> tuple[Any, Any, set[str]]:
        # One loop: the client keeps its connections open.
        whole = await agents.Runner.run(agent, "How is the weather in Paris?", max_turns=4)
        run = agents.Runner.run_streamed(agent, "How is the weather in Paris?", max_turns=4)
        kinds = {one.type async for one in run.stream_events()}
        return whole.final_output, run.final_output, kinds

    whole, streamed, kinds = asyncio.run(both())
    assert asked
    assert whole
    assert streamed == whole
    assert "raw_response_event" in kinds


@MODELS
def test_agents_sdk_gets_a_structure(server: RealServer, kind: str) -> None:
    model = getattr(agents, kind)(model=server.model, openai_client=server.async_client())
    agent = agents.Agent(
        name="City",
        instructions="Name a city.",
        model=model,
        output_type=City,
        model_settings=agents.ModelSettings(temperature=0, max_tokens=200),
    )
    assert isinstance(agents.Runner.run_sync(agent, QUESTION).final_output, City)


# --- instructor --------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["TOOLS", "JSON_SCHEMA"])
def test_instructor_gets_a_structure(server: RealServer, mode: str) -> None:
    client = instructor.from_openai(server.client(), mode=instructor.Mode[mode])
    city = client.chat.completions.create(
        model=server.model,
        response_model=City,
        messages=[{"role": "user", "content": QUESTION}],
        max_retries=0,
        max_tokens=200,
        temperature=0,
    )
    assert isinstance(city, City)


def test_instructor_streams_parts_of_a_structure(server: RealServer) -> None:
    client = instructor.from_openai(server.client(), mode=instructor.Mode.TOOLS)
    *_, last = client.chat.completions.create_partial(
        model=server.model,
        response_model=City,
        messages=[{"role": "user", "content": QUESTION}],
        max_tokens=200,
        temperature=0,
    )
    City.model_validate_json(json.dumps(last.model_dump()))
