"""How a token is drawn, as it is told: against the engine's own answers."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import pytest
from real_server import RealServer
from scripted_server import MODEL, ScriptedServer

PROMPT = "The capital of France is"
MESSAGES = [{"role": "user", "content": "Name a color."}]
CASES: list[dict[str, Any]] = [
    {"temperature": 0},
    {"temperature": 1.3, "seed": 5},
    {"temperature": 0.8, "top_k": 4, "seed": 6},
    {"temperature": 1.0, "top_p": 0.7, "seed": 7},
    {"temperature": 1.5, "min_p": 0.05, "top_k": 30, "top_p": 0.95, "seed": 8},
    {
        "temperature": 1.1,
        "repetition_penalty": 1.4,
        "frequency_penalty": 0.5,
        "presence_penalty": 0.3,
        "seed": 9,
    },
]


@pytest.fixture(scope="module")
def filtered(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealServer]:
    config = tmp_path_factory.mktemp("filtered") / "deploy.yaml"
    config.write_text("filters:\n  - {name: city, words: [paris], action: mask}\n", encoding="utf-8")
    running = RealServer(engine={"max_model_len": 512, "kv_cache_memory": 16 << 20}, deployment=str(config))
    yield running
    code, log = running.end()
    assert code == 0, log


def test_filters_let_steps_be_learned_from_but_not_what_they_forbid(filtered: RealServer) -> None:
    told = step(filtered, prompt="One, two, three,", temperature=0)
    assert told["drawn"]["text"] == " four"
    body = {"model": filtered.model, "prompt": "The capital of France is", "temperature": 0}
    refused = filtered.http.post("/v1/learn/step", json=body)
    assert refused.status_code == 400
    assert "paris" not in refused.text.lower()


def step(server: RealServer, **body: Any) -> dict[str, Any]:
    response = server.http.post("/v1/learn/step", json={"model": server.model, **body})
    assert response.status_code == 200, response.text
    return response.json()


@pytest.mark.parametrize("settings", CASES, ids="-".join)
def test_steps_draw_what_the_answer_has(demo_server: RealServer, settings: dict[str, Any]) -> None:
    """Token by token the very answer, with penalties that count what it has said; and each number is what the
    stages say.
    """
    whole = demo_server.http.post(
        "/v1/completions",
        json={
            "model": demo_server.model, "prompt": PROMPT, "max_tokens": 5, "logprobs": 5, "ignore_eos": True,
            "return_token_ids": True, **settings,
        },
    ).json()["choices"][0]  # fmt: skip
    tokens: list[int] = []
    for number in range(5):
        told = step(demo_server, prompt=PROMPT, tokens=tokens, **settings)
        drawn, candidates, kept = told["drawn"], told["candidates"], told["kept"]
        assert drawn["id"] == whole["token_ids"][number]
        assert drawn["logprob"] == pytest.approx(whole["logprobs"]["token_logprobs"][number], abs=1e-4)
        assert told["position"] == told["prompt_tokens"] + number
        assert {name: told["settings"][name] for name in settings if name != "seed"} == {
            name: value for name, value in settings.items() if name != "seed"
        }
        by_id = {one["id"]: one for one in candidates}
        best = sorted(candidates, key=lambda one: -one["logit"])[:5]
        top = sorted(whole["logprobs"]["top_logprobs"][number].values(), reverse=True)[:5]
        assert [math.log(one["probabilities"]["logits"]) for one in best] == pytest.approx(top, abs=1e-4)
        assert kept["vocabulary"] >= kept["min_p"] >= kept["top_k"] >= kept["top_p"] >= 1
        assert kept["top_k"] <= (settings.get("top_k") or kept["vocabulary"])
        final = by_id[drawn["id"]]["probabilities"]["top_p"]
        assert final > 0
        if drawn["number"] is None:
            assert settings["temperature"] == 0
            assert final == 1
        else:
            low, high = drawn["interval"]
            assert low <= drawn["number"] < high or drawn["number"] == pytest.approx(low, abs=1e-5)
            assert high - low == pytest.approx(final, abs=1e-9)
        if "repetition_penalty" not in settings:
            assert all(one["adjusted"] == one["logit"] for one in candidates)
        tokens.append(drawn["id"])
    if "repetition_penalty" in settings:
        assert any(one["adjusted"] != one["logit"] for one in candidates)


def test_a_conversation_and_the_seed_that_is_drawn(demo_server: RealServer) -> None:
    told = step(demo_server, messages=MESSAGES, top=3)
    again = step(demo_server, messages=MESSAGES, top=3, seed=told["seed"])
    assert again["drawn"] == told["drawn"]
    assert 3 <= len(told["candidates"]) <= 4
    body = {"model": demo_server.model, "messages": MESSAGES, "max_tokens": 1, "seed": told["seed"]}
    chat = demo_server.http.post("/v1/chat/completions", json={**body, "return_token_ids": True}).json()
    assert chat["choices"][0]["token_ids"] == [told["drawn"]["id"]]
    assert demo_server.http.get(f"/v1/journeys/{told['id']}").json()["endpoint"] == "/v1/learn/step"


@pytest.mark.parametrize(
    ("wrong", "param"),
    [
        ({}, "prompt"),
        ({"prompt": "a", "messages": MESSAGES}, "prompt"),
        ({"prompt": "a", "tokens": [-1]}, "tokens"),
        ({"prompt": "a", "tokens": [10**6]}, "tokens"),
        ({"prompt": "a", "temperature": 3}, "temperature"),
        ({"prompt": "a", "top": 0}, "top"),
        ({"prompt": "a", "tokens": [5] * 5000}, None),
    ],
)
def test_mistakes(demo_server: RealServer, wrong: dict[str, Any], param: str | None) -> None:
    response = demo_server.http.post("/v1/learn/step", json={"model": demo_server.model, **wrong})
    assert response.status_code == 400, response.text
    assert param is None or response.json()["error"]["param"] == param


def test_an_engine_that_tells_no_logits(server: ScriptedServer) -> None:
    assert server.post("/v1/learn/step", {"model": MODEL, "prompt": "a"}).status_code == 400
    assert server.post("/v1/learn/step", {"model": "x", "prompt": "a"}).status_code == 404


def test_memory(demo_server: RealServer) -> None:
    told = demo_server.http.get("/v1/learn/memory").json()
    assert told["model"] == demo_server.model
    assert told["parameters"] == pytest.approx(134.5e6, rel=0.01)
    assert (
        told["kv_bytes_per_token"]["bfloat16"] == 2 * told["layers"] * told["kv_heads"] * told["head_dim"] * 2
    )
    sizes = [one["bytes"] for one in told["formats"]]
    assert sizes == sorted(sizes, reverse=True)
    assert 0 < told["weights"] < sizes[0]
    assert 0 < told["usable"] <= told["free"]
    assert demo_server.http.get("/v1/learn/memory?model=x").status_code == 404
