"""The whole house on a real socket: unmodified `openai` client, real model, real engine process."""

from __future__ import annotations

import asyncio
import json
import os
import random
import re
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import openai
import pytest
from real_server import KV_BYTES_PER_TOKEN, RealServer, launch, wait_until_idle

from tokentrail.engine.config import EngineConfig
from tokentrail.server.config import ServerConfig

pytestmark = pytest.mark.timeout(300)

QUESTION: Any = [
    {"role": "system", "content": "You are a helpful assistant."},
    {"role": "user", "content": "What is the capital of France?"},
]
WORDS = [
    "river",
    "stone",
    "light",
    "morning",
    "garden",
    "paper",
    "window",
    "music",
    "winter",
    "bread",
    "silver",
    "mountain",
    "letter",
    "ocean",
    "forest",
    "city",
    "bridge",
    "train",
    "story",
    "number",
    "house",
    "friend",
    "water",
    "night",
    "summer",
    "road",
    "glass",
    "candle",
    "market",
    "island",
]


@pytest.fixture(scope="module")
def server() -> Iterator[RealServer]:
    """Few blocks: a small part of what 64 requests would like to hold."""
    running = RealServer(
        served_model_names=("Qwen1.5-7B-Chat",),
        api_keys=("token-abc123",),
        engine={"kv_cache_memory": 640 * KV_BYTES_PER_TOKEN, "max_num_seqs": 64, "max_model_len": 512},
    )
    yield running
    status, log = running.end()
    assert status == 0, log
    assert "internal error" not in log


def test_the_script_of_the_readme(server: RealServer) -> None:
    client = openai.OpenAI(api_key="token-abc123", base_url=f"{server.url}/v1")
    options: Any = {"model": "Qwen1.5-7B-Chat", "messages": QUESTION, "max_tokens": 150, "temperature": 0.7}
    whole: Any = client.chat.completions.create(**options, seed=1)
    assert whole.model == "Qwen1.5-7B-Chat"
    assert whole.choices[0].message.content
    usage = whole.usage
    assert usage.prompt_tokens > 20
    assert 0 < usage.completion_tokens <= 150
    assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens
    text = ""
    with client.chat.completions.create(**options, seed=1, stream=True) as stream:
        for chunk in stream:
            text += chunk.choices[0].delta.content or ""
            assert chunk.system_fingerprint == whole.system_fingerprint
    assert text == whole.choices[0].message.content
    for key in ("wrong", "token-abc12"):
        wrong = openai.OpenAI(api_key=key, base_url=f"{server.url}/v1")
        with pytest.raises(openai.AuthenticationError):
            wrong.chat.completions.create(**options)


def test_the_capital_of_france(server: RealServer) -> None:
    answer = server.client().chat.completions.create(
        model=server.model, messages=QUESTION, max_tokens=40, temperature=0
    )
    assert "Paris" in (answer.choices[0].message.content or "")


def test_a_drawn_seed_replays_its_answer(server: RealServer) -> None:
    options: Any = {
        "model": server.model,
        "prompt": "Once upon a time",
        "max_tokens": 24,
        "temperature": 1.3,
        "n": 2,
        "logprobs": 2,
    }
    client = server.client()
    first: Any = client.completions.create(**options)
    second: Any = client.completions.create(**options)
    again: Any = client.completions.create(**options, seed=first.seed)
    assert [c.model_dump() for c in again.choices] == [c.model_dump() for c in first.choices]
    assert [c.text for c in second.choices] != [c.text for c in first.choices]
    assert first.choices[0].text != first.choices[1].text


def test_a_prompt_in_a_list_is_answered_as_if_alone(server: RealServer) -> None:
    client = server.client()
    options: Any = {
        "model": server.model,
        "max_tokens": 12,
        "temperature": 1.0,
        "seed": 5,
        "logprobs": 1,
        "n": 2,
    }
    prompts = ["The river", "A long time ago, in a garden,", "2 + 2 ="]
    together = client.completions.create(prompt=prompts, **options)
    for number, prompt in enumerate(prompts):
        alone = client.completions.create(prompt=prompt, **options)
        for choice, other in zip(alone.choices, together.choices[2 * number : 2 * number + 2], strict=True):
            assert choice.text == other.text
            assert choice.logprobs == other.logprobs


def test_an_echo_scores_what_was_generated_alike(server: RealServer) -> None:
    """The log-probabilities of a generated text, and of the same text as a prompt."""
    client = server.client()
    options: Any = {
        "model": server.model,
        "logprobs": 2,
        "temperature": 0,
        "extra_body": {"return_token_ids": True},
    }
    made: Any = client.completions.create(prompt="The sun rises in", max_tokens=12, **options).choices[0]
    ids = [*made.prompt_token_ids, *made.token_ids]
    scored: Any = client.completions.create(prompt=ids, echo=True, max_tokens=0, **options).choices[0]
    generated = made.logprobs.token_logprobs
    assert scored.logprobs.token_logprobs[-len(generated) :] == generated
    assert scored.logprobs.top_logprobs[-len(generated) :] == made.logprobs.top_logprobs
    assert scored.text == "The sun rises in" + made.text


def test_the_largest_and_smallest_values_do_not_harm_the_engine(server: RealServer) -> None:
    for extreme in (
        {"top_k": 2**31 - 1},
        {"top_p": 1.2e-38},
        {"min_p": 1},
        {"temperature": 1e-320},
        {"temperature": 1e-40},
        {"repetition_penalty": 1.2e-38},
        {"repetition_penalty": 3.4e38},
        {"seed": 2**63 - 1},
        {"seed": -(2**63)},
        {"priority": 2**63 - 1},
        {"priority": -(2**63)},
        {"logit_bias": {str(id): -100 for id in range(49152)}},
        {"stop_token_ids": list(range(1000))},
    ):
        body = {"model": server.model, "prompt": "Hi", "max_tokens": 2, "temperature": 1, "seed": 1}
        response = server.http.post("/v1/completions", json={**body, **extreme})
        assert response.status_code == 200, extreme
    assert server.metrics()["tokentrail_engine_restarts_total"] == 0


def test_the_journey_of_an_answer(server: RealServer) -> None:
    answer = server.client().chat.completions.create(
        model=server.model, messages=QUESTION, max_tokens=12, temperature=0
    )
    journey = server.http.get(f"/v1/journeys/{answer.id}").json()
    usage = answer.usage
    assert usage is not None
    assert journey["completion_tokens"] == usage.completion_tokens
    assert journey["prompt_tokens"] == usage.prompt_tokens
    (sequence,) = journey["sequences"]
    assert len(sequence["tokens"]) == usage.completion_tokens
    prefill = [step for step in sequence["steps"] if step["kind"] == "prefill"]
    assert prefill[0]["cached_tokens"] == sequence["cached_tokens"]
    assert sequence["cached_tokens"] + sum(step["tokens"] for step in prefill) == usage.prompt_tokens
    times = [event["at"] for event in journey["events"]]
    assert times == sorted(times)
    stages = journey["stages"]
    assert stages["total"] >= stages["prefill"] + stages["decode"] > 0
    assert all(step["seconds"] > 0 and step["batch_sequences"] >= 1 for step in sequence["steps"])


# --- many at once ----------------------------------------------------------------------------------


@dataclass
class Case:
    """One client's request, when it hangs up (None: never), and what it got."""

    body: dict[str, Any]
    hang_up_after: int | None = None
    text: str = ""
    logprobs: list[Any] = field(default_factory=list)
    finish: str | None = None
    events: int = 0

    @property
    def result(self) -> tuple[str, list[Any], str | None]:
        return self.text, self.logprobs, self.finish


def random_body(model: str, rng: random.Random, most_words: int, tokens: tuple[int, int]) -> dict[str, Any]:
    body: dict[str, Any] = {
        "model": model,
        "prompt": " ".join(rng.choice(WORDS) for _ in range(rng.randint(2, most_words))),
        "max_tokens": rng.randint(*tokens),
        "logprobs": rng.choice([0, 3]),
        "seed": rng.getrandbits(40),
        "temperature": rng.choice([0.0, 0.7, 1.2]),
        "extra_body": {"ignore_eos": True},
    }
    if rng.random() < 0.3:
        body |= {"top_p": 0.9, "frequency_penalty": 0.5, "presence_penalty": 0.2}
    return body


async def run(client: openai.AsyncOpenAI, case: Case, stream: bool = True) -> Case:
    if not stream:
        choice = (await client.completions.create(**case.body)).choices[0]
        assert choice.logprobs is not None
        case.text, case.finish = choice.text, choice.finish_reason
        case.logprobs = [choice.logprobs.token_logprobs, choice.logprobs.top_logprobs]
        return case
    token_logprobs: list[Any] = []
    top: list[Any] = []
    async with await client.completions.create(**case.body, stream=True) as stream_:
        async for chunk in stream_:
            choice = chunk.choices[0]
            case.text += choice.text
            case.events += 1
            if choice.logprobs is not None:
                token_logprobs += choice.logprobs.token_logprobs or []
                top += choice.logprobs.top_logprobs or []
            case.finish = choice.finish_reason or case.finish
            if case.hang_up_after is not None and case.events >= case.hang_up_after:
                return case
    case.logprobs = [token_logprobs, top]
    return case


async def test_64_clients_a_third_hanging_up_and_too_few_blocks(server: RealServer) -> None:
    rng = random.Random(64)
    cases = []
    for number in range(64):
        # One block at first, three or four at the end: far more than there is for those that run at once.
        body = random_body(server.model, rng, 8, (28, 44))
        body["extra_body"]["priority"] = rng.choice([0, 0, -1])
        hangs_up = number % 3 == 2
        cases.append(Case(body, hang_up_after=rng.randint(1, 5) if hangs_up else None))
    before = server.metrics()
    async with server.async_client() as client:

        async def late(case: Case) -> Case:
            await asyncio.sleep(rng.random() * 0.05)
            return await run(client, case)

        await asyncio.gather(*[late(case) for case in cases])
        after = wait_until_idle(server)
        assert after["tokentrail_num_preemptions_total"] > before["tokentrail_num_preemptions_total"]
        assert after["tokentrail_kv_cache_blocks_used"] == 0
        aborted = 'tokentrail_requests_total{outcome="abort"}'
        assert after[aborted] - before[aborted] == sum(c.hang_up_after is not None for c in cases)
        # Each that stayed, once more: every third alone, the others in little company. With its text and
        # log-probabilities to the last bit.
        stayed = [case for case in cases if case.hang_up_after is None]
        alone = stayed[::3]
        others = [case for number, case in enumerate(stayed) if number % 3]
        for group in ([case] for case in alone), (others[at : at + 7] for at in range(0, len(others), 7)):
            for number, together in enumerate(group):
                again = [run(client, Case(case.body), stream=bool(number % 2)) for case in together]
                for case, repeated in zip(together, await asyncio.gather(*again), strict=True):
                    assert repeated.result == case.result
                    assert case.finish == "length"
                    assert len(case.logprobs[0]) == case.body["max_tokens"]
    assert wait_until_idle(server)["tokentrail_kv_cache_blocks_used"] == 0


def test_a_client_that_hangs_up_frees_its_blocks_at_once(server: RealServer) -> None:
    for stream in (True, False):
        host, port = server.url.removeprefix("http://").split(":")
        body = json.dumps(
            {"model": server.model, "prompt": "Once", "max_tokens": 500, "stream": stream, "ignore_eos": True}
        ).encode()
        with socket.create_connection((host, int(port))) as connection:
            connection.sendall(
                b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
                b"Authorization: Bearer token-abc123\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)
            )
            made = server.metrics()["tokentrail_generation_tokens_total"]
            while server.metrics()["tokentrail_generation_tokens_total"] < made + 5:
                time.sleep(0.01)
            before = server.metrics()
            assert before["tokentrail_kv_cache_blocks_used"] > 0
        after = wait_until_idle(server, 3)
        assert after["tokentrail_kv_cache_blocks_used"] == 0
        # A step for the news to arrive, and what was made between the looks at the metrics.
        assert after["tokentrail_engine_steps_total"] - before["tokentrail_engine_steps_total"] < 20


@pytest.mark.skipif(sys.platform != "linux", reason="finds the engine process in /proc")
async def test_kill_9_ten_times_under_load(server: RealServer) -> None:
    """Every stream goes on after each death, and ends with the bytes of an undisturbed run."""
    rng = random.Random(9)
    bodies = [random_body(server.model, rng, 20, (90, 110)) for _ in range(8)]
    async with server.async_client() as client:
        undisturbed = await asyncio.gather(*[run(client, Case(body)) for body in bodies])
        before = server.metrics()
        cases = [Case(body) for body in bodies]
        streams = asyncio.gather(*[run(client, case) for case in cases])
        counters = [before]

        def events() -> int:
            return sum(case.events for case in cases)

        async def until(condition: Callable[[], bool]) -> None:
            end = time.monotonic() + 60
            while not condition():
                assert not streams.done(), "the streams ended before all the kills"
                assert time.monotonic() < end, "no progress after a kill"
                await asyncio.sleep(0.005)

        for _ in range(10):
            seen = events()
            await until(lambda seen=seen: events() >= seen + 16)
            pid = server.engine_pid()
            assert pid is not None
            os.kill(pid, signal.SIGKILL)
            await until(lambda pid=pid: server.engine_pid() not in (pid, None))
            counters.append(await asyncio.to_thread(server.metrics))
        await streams
    for case, expected in zip(cases, undisturbed, strict=True):
        assert case.result == expected.result
    after = wait_until_idle(server)
    assert after["tokentrail_engine_restarts_total"] - before["tokentrail_engine_restarts_total"] == 10
    assert after["tokentrail_kv_cache_blocks_used"] == 0
    for name in (name for name in before if name.endswith("_total") and "process" not in name):
        values = [sample.get(name, 0.0) for sample in (*counters, after)]
        assert values == sorted(values), name
    listed = server.http.get("/v1/journeys?limit=8").json()["data"]
    assert all(journey["resumptions"] >= 1 for journey in listed)
    journey = server.http.get(f"/v1/journeys/{listed[0]['id']}").json()
    steps = journey["sequences"][0]["steps"]
    assert {step["kind"] for step in steps} == {"prefill", "decode", "recompute"}
    assert len({step["engine"] for step in steps}) > 1


# --- beginning and end -----------------------------------------------------------------------------


def test_sigterm_lets_a_running_stream_finish(tmp_path: Any) -> None:
    server = RealServer(engine={"kv_cache_memory": 1024 * KV_BYTES_PER_TOKEN, "max_model_len": 512})
    text: list[str] = []
    finish: list[str | None] = []
    begun = threading.Event()

    def ask() -> None:
        with server.client().completions.create(
            model=server.model,
            prompt="Once upon a time",
            max_tokens=60,
            stream=True,
            extra_body={"ignore_eos": True},
        ) as stream:
            for chunk in stream:
                text.append(chunk.choices[0].text)
                finish.append(chunk.choices[0].finish_reason)
                begun.set()

    thread = threading.Thread(target=ask)
    thread.start()
    assert begun.wait(30)
    status, log = server.end(signal.SIGTERM)
    thread.join()
    assert finish[-1] == "length"
    assert status == 0, log
    assert "waiting for 1 answer, up to 30 s; again to end at once" in log


def test_a_second_signal_ends_a_server_that_waits_for_answers() -> None:
    server = RealServer(served_model_names=("one", "two"), api_keys=("secret",))
    assert server.process.stdout is not None
    banner = [server.process.stdout.readline() for _ in range(8)]
    assert "also as   two" in banner[0]
    assert banner[1].strip().endswith(".gguf")
    assert re.search(
        r"loaded    in \d+\.\d\d s: \d+ MiB of tensors, packed into \d+ MiB$", banner[3].rstrip()
    )
    assert "Bearer YOUR_KEY" in banner[-2]
    assert '"temperature": 0' in banner[-1]
    engine = server.engine_pid()
    with server.client().completions.create(
        model="one", prompt="Once", max_tokens=8000, stream=True, extra_body={"ignore_eos": True}
    ) as stream:
        next(iter(stream))
        os.kill(server.process.pid, signal.SIGINT)
        while server.http.get("/health").status_code == 200:
            time.sleep(0.01)
        os.kill(server.process.pid, signal.SIGINT)
        assert server.process.wait(5) == -signal.SIGINT
    end = time.monotonic() + 10
    while Path(f"/proc/{engine}").exists():
        assert time.monotonic() < end, "the engine has outlived its server"
        time.sleep(0.02)


def test_what_keeps_a_server_from_starting_is_said_in_one_line(tmp_path: Any) -> None:
    cases = [(ServerConfig(port=0, engine=EngineConfig(model=str(tmp_path / "none.gguf"))), "none.gguf")]
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"GGUF" + b"\xff" * 100)
    cases.append((ServerConfig(port=0, engine=EngineConfig(model=str(broken))), "broken.gguf"))
    cases.append((ServerConfig(port=0, engine=EngineConfig(kv_cache_memory=1)), "kv-cache-memory"))
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        cases.append((ServerConfig(port=port), f"127.0.0.1:{port}"))
        for config, named in cases:
            process = launch(config)
            out, err = process.communicate(timeout=60)
            assert process.returncode == 1
            assert out == ""
            (line,) = err.strip().splitlines()
            assert line.startswith("error: ")
            assert named in line


def test_sighup_lets_a_running_stream_finish_and_tls_is_checked_first(tmp_path: Any) -> None:
    process = launch(ServerConfig(port=0, ssl_certfile=str(tmp_path / "none.pem")))
    assert process.communicate(timeout=60)[1].startswith("error: --ssl-certfile ")
    server = RealServer(engine={"kv_cache_memory": 1024 * KV_BYTES_PER_TOKEN, "max_model_len": 512})
    with server.client().completions.create(
        model=server.model, prompt="Once", max_tokens=60, stream=True, extra_body={"ignore_eos": True}
    ) as stream:
        chunks = iter(stream)
        next(chunks)
        for _ in range(2):  # the second is no reason to hurry
            os.kill(server.process.pid, signal.SIGHUP)
        assert list(chunks)[-1].choices[0].finish_reason == "length"
    status, log = server.end()
    assert status == 0, log


@pytest.mark.skipif(sys.platform != "linux", reason="finds the engine process in /proc")
def test_what_takes_too_long_frees_everything_even_in_an_engine_that_hangs() -> None:
    server = RealServer(
        request_timeout=2.5,
        engine={
            "kv_cache_memory": 2048 * KV_BYTES_PER_TOKEN,
            "max_num_seqs": 1,
            "max_model_len": 2048,
            "step_timeout": 3.0,
        },
    )
    body = {"model": server.model, "prompt": "Once", "max_tokens": 2000, "ignore_eos": True}

    def ask(stream: bool) -> str:
        response = server.http.post("/v1/completions", json=body | {"stream": stream})
        assert response.status_code == (200 if stream else 504)
        return response.text

    with ThreadPoolExecutor() as pool:  # one of them runs, the others wait
        for text in pool.map(ask, (True, False, True, False)):
            assert '"code":"request_timeout"' in text
    after = wait_until_idle(server)
    assert after["tokentrail_kv_cache_blocks_used"] == after["tokentrail_num_requests_in_flight"] == 0
    assert after['tokentrail_requests_total{outcome="timeout"}'] == 4
    engine = server.engine_pid()
    assert engine is not None
    os.kill(engine, signal.SIGSTOP)
    assert '"code":"request_timeout"' in ask(False)
    end = time.monotonic() + 60
    while server.metrics()["tokentrail_engine_restarts_total"] == 0:
        assert time.monotonic() < end, "the engine was not restarted"
        time.sleep(0.1)
    assert server.http.post("/v1/completions", json=body | {"max_tokens": 3}).status_code == 200
    status, log = server.end()
    assert status == 0, log
    assert "has finished no step for 3 s" in log
