"""Rules that ask others: hooks and moderation APIs over real HTTP, and a model of the deployment."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
from hook_server import Answer, HookServer
from scripted_server import MODEL, TEXT, MakeServer, ScriptedServer

from tokentrail.gateway.config import ConfigError, parse

CALLS: Any = [{"role": "user", "content": "Tell me of zebras"}]
WHOLE = TEXT


@pytest.fixture
def hook() -> Iterator[Callable[[Answer], HookServer]]:
    made: list[HookServer] = []

    def make(answer: Answer) -> HookServer:
        made.append(HookServer(answer))
        return made[-1]

    yield make
    for one in made:
        one.close()


def deploy(folder: Path, text: str) -> str:
    file = folder / "deploy.yaml"
    file.write_text(text, encoding="utf-8")
    return str(file)


def serve(make_server: MakeServer, folder: Path, url: str, more: str = "", rule: str = "") -> ScriptedServer:
    text = f"filters: [{{name: policy, hook: {{url: '{url}'{more}}}{rule}}}]"
    return make_server(deployment=deploy(folder, text), api_keys=("a",))


def chat(server: ScriptedServer, **options: Any) -> Any:
    return server.client("a").chat.completions.create(model=MODEL, messages=CALLS, **options)


def streamed(server: ScriptedServer, **options: Any) -> tuple[str, list[str]]:
    text, reasons = "", []
    for chunk in chat(server, stream=True, **options):
        for choice in chunk.choices:
            text += choice.delta.content or ""
            if choice.finish_reason:
                reasons.append(choice.finish_reason)
    return text, reasons


def allow(_: Any) -> Any:
    return {"verdict": "allow"}


def only(direction: str, verdict: Any) -> Answer:
    return lambda asked: verdict if asked["direction"] == direction else {"verdict": "allow"}


def test_a_hook_reads_prompts_and_answers(
    hook: Callable[[Answer], HookServer], make_server: MakeServer, tmp_path: Path
) -> None:
    judge = hook(allow)
    server = serve(make_server, tmp_path, judge.url, ", headers: {x-key: k}")
    assert chat(server).choices[0].message.content == WHOLE
    assert streamed(server) == (WHOLE, ["stop"])
    assert [one["direction"] for one in judge.asked] == ["input", "output"] * 2
    assert "zebras" in judge.asked[0]["text"]
    assert judge.asked[1]["text"] == WHOLE
    assert judge.asked[0]["rule"] == "policy"
    assert judge.asked[0]["model"] == MODEL
    assert len(judge.asked[0]["tenant"]) == 32
    assert judge.headers[0]["x-key"] == "k"


def test_what_a_hook_blocks_does_not_pass(
    hook: Callable[[Answer], HookServer], make_server: MakeServer, tmp_path: Path
) -> None:
    judge = hook(only("input", {"verdict": "block"}))
    server = serve(make_server, tmp_path, judge.url)
    with pytest.raises(openai.BadRequestError, match="policy") as refused:
        chat(server)
    assert refused.value.code == "content_filter"
    assert not server.engine.requests
    judge.answer = only("output", {"verdict": "block"})
    answer = chat(server).choices[0]
    assert (answer.message.content or "", answer.finish_reason) == ("", "content_filter")
    assert streamed(server) == ("", ["content_filter"])
    assert [choice.finish_reason for choice in chat(server, n=2).choices] == ["content_filter"] * 2
    assert server.metric('tokentrail_filter_matches_total{action="block",rule="policy",side="output"}') == 4


def test_what_a_hook_masks_is_masked(
    hook: Callable[[Answer], HookServer], make_server: MakeServer, tmp_path: Path
) -> None:
    def mask(asked: dict[str, Any]) -> Any:
        at = asked["text"].find("zebras" if asked["direction"] == "input" else "fox 🦊")
        return {"verdict": "mask", "spans": [{"start": at, "end": at + 5, "replacement": "…"}]}

    judge = hook(mask)
    server = serve(make_server, tmp_path, judge.url)
    shown = WHOLE.replace("fox 🦊", "…")
    assert chat(server).choices[0].message.content == shown
    assert streamed(server) == (shown, ["stop"])
    prompt = server.state.backend.detokenize(server.engine.requests[0].prompt)  # type: ignore[union-attr]
    assert "Tell me of …s" in prompt
    logprobs = chat(server, logprobs=True).choices[0].logprobs
    assert "fox" not in "".join(entry.token for entry in logprobs.content)
    # Without spans, all of it.
    judge.answer = only("output", {"verdict": "mask"})
    assert chat(server).choices[0].message.content == "*" * len(WHOLE)


def test_windows_are_shown_as_they_are_judged(
    hook: Callable[[Answer], HookServer], make_server: MakeServer, tmp_path: Path
) -> None:
    judge = hook(lambda asked: {"verdict": "block" if "lazy" in asked["text"] else "allow"})
    server = serve(make_server, tmp_path, judge.url, ", window: 10", ", applies_to: [output]")
    text, reasons = streamed(server)
    assert reasons == ["content_filter"]
    assert WHOLE.startswith(text)
    assert 10 <= len(text) < WHOLE.index("lazy") + 4
    judge.answer = allow
    judge.asked.clear()
    assert streamed(server) == (WHOLE, ["stop"])
    assert len(judge.asked) >= 2
    # A window is judged with what came before it.
    texts = [one["text"] for one in judge.asked]
    assert all(WHOLE.startswith(text) for text in texts)
    assert sorted(texts, key=len) == texts


@pytest.mark.parametrize(
    "answer",
    [
        500,
        302,
        b"",
        b"{",
        b"[]",
        b'{"verdict": "maybe"}',
        b'{"verdict": "mask", "spans": "all"}',
        b"\xff" * 9,
    ],
)
def test_no_verdict_is_a_refusal_or_passes_as_the_rule_says(
    hook: Callable[[Answer], HookServer], make_server: MakeServer, tmp_path: Path, answer: Any
) -> None:
    judge = hook(lambda _: answer)
    server = serve(make_server, tmp_path, judge.url)
    with pytest.raises(openai.InternalServerError) as refused:
        chat(server)
    assert (refused.value.status_code, refused.value.code) == (503, "filter_unavailable")
    deploy(tmp_path, f"filters: [{{name: policy, hook: {{url: '{judge.url}', on_failure: pass}}}}]")
    assert server.state.gateway is not None
    server.state.gateway.reload()
    assert chat(server).choices[0].message.content == WHOLE
    assert server.metric('tokentrail_filter_failures_total{rule="policy"}') == 3


def test_a_slow_hook_holds_up_nobody_else(
    hook: Callable[[Answer], HookServer], make_server: MakeServer, tmp_path: Path
) -> None:
    judge = hook(allow)
    text = f"""filters:
      - {{name: policy, hook: {{url: '{judge.url}', timeout_s: 0.3}}, applies_to: [output]}}
    """
    server = make_server(deployment=deploy(tmp_path, text))
    judge.hold.clear()
    failed: list[Exception] = []

    def ask() -> None:
        try:
            chat(server)
        except openai.InternalServerError as error:
            failed.append(error)

    thread = threading.Thread(target=ask)
    thread.start()
    assert server.get("/health").status_code == 200
    thread.join()
    assert len(failed) == 1
    judge.hold.set()
    judge.answer = lambda _: 500
    with pytest.raises(openai.InternalServerError):
        chat(server, stream=True)


def test_a_hook_is_asked_a_bounded_number_of_times_at_once(
    hook: Callable[[Answer], HookServer], make_server: MakeServer, tmp_path: Path
) -> None:
    judge = hook(allow)
    server = serve(make_server, tmp_path, judge.url, ", concurrency: 2", ", applies_to: [input]")
    threads = [threading.Thread(target=chat, args=(server,)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(judge.asked) == 8
    assert judge.most_at_once <= 2


def test_a_rule_may_only_tell(
    hook: Callable[[Answer], HookServer], make_server: MakeServer, tmp_path: Path
) -> None:
    judge = hook(lambda _: {"verdict": "block"})
    server = serve(make_server, tmp_path, judge.url, "", ", action: flag")
    raw = server.client("a").chat.completions.with_raw_response.create(model=MODEL, messages=CALLS)
    assert raw.headers["x-tokentrail-flagged"] == "policy, policy"
    assert raw.parse().choices[0].message.content == WHOLE


def test_local_rules_come_first(
    hook: Callable[[Answer], HookServer], make_server: MakeServer, tmp_path: Path
) -> None:
    judge = hook(allow)
    text = f"""filters:
      - {{name: policy, hook: {{url: '{judge.url}'}}}}
      - {{name: animals, words: [zebras], action: mask}}
    """
    server = make_server(deployment=deploy(tmp_path, text))
    assert chat(server).choices[0].message.content == WHOLE
    assert "zebras" not in judge.asked[0]["text"]
    server.client().embeddings.create(model=MODEL, input=["of zebras"])
    assert judge.asked[-1]["text"] == "of ******"
    ids = server.state.backend.tokenize  # type: ignore[union-attr]
    from tokentrail.answer import TextPrompt

    server.client().completions.create(model=MODEL, prompt=ids(TextPrompt("some ids")))
    assert "some ids" in judge.asked[-2]["text"]


def test_an_api_for_moderations_judges(
    hook: Callable[[Answer], HookServer], make_server: MakeServer, tmp_path: Path
) -> None:
    def result(asked: dict[str, Any]) -> Any:
        score = 0.7 if "zebras" in asked["input"] else 0.1
        one = {
            "flagged": score > 0.5,
            "categories": {"violence": score > 0.5},
            "category_scores": {"violence": score},
        }
        return {"id": "m", "results": [one]}

    judge = hook(result)

    def server(more: str) -> ScriptedServer:
        moderation = f"{{url: '{judge.url}/v1/moderations', model: omni, api_key: k{more}}}"
        text = f"filters: [{{name: harm, moderation: {moderation}, action: block}}]"
        return make_server(deployment=deploy(tmp_path, text))

    first = server("")
    with pytest.raises(openai.BadRequestError, match="harm"):
        chat(first)
    assert judge.asked[0]["model"] == "omni"
    assert judge.headers[0]["authorization"] == "Bearer k"
    made = first.client().moderations.create(input="of zebras").results[0]
    assert (made.flagged, made.categories.violence, made.category_scores.violence) == (True, True, 0.7)
    assert not first.client().moderations.create(input="of mice").results[0].flagged
    assert chat(server(", threshold: 0.8")).choices[0].message.content == WHOLE
    assert chat(server(", categories: [hate]")).choices[0].message.content == WHOLE


@pytest.mark.parametrize(("letter", "passes"), [("A", True), ("C", False)])
def test_a_model_of_the_deployment_judges(
    make_server: MakeServer, tmp_path: Path, letter: str, passes: bool
) -> None:
    text = f"""filters:
      - name: harm
        moderation: {{model: {MODEL}, categories: [hate, violence], threshold: 0.3}}
        action: block
        applies_to: [input]
    """
    server = make_server(deployment=deploy(tmp_path, text))
    (token,) = server._parts.tokenizer.encode(letter)
    said = server.tokens

    def script(request: Any) -> list[int]:
        return [token, 2] if request.grammar else said

    server.engine.script = script
    if passes:
        assert chat(server).choices[0].message.content == WHOLE
    else:
        with pytest.raises(openai.BadRequestError, match="harm"):
            chat(server)
    prompt = server._parts.tokenizer.decode(server.engine.requests[0].prompt, skip_special_tokens=False)
    assert "zebras" in prompt
    assert "C: violence against people" in prompt


def test_what_a_judge_uses_stands_in_the_ledger_under_its_own_name(
    make_server: MakeServer, tmp_path: Path
) -> None:
    text = f"""filters:
      - name: harm
        moderation: {{model: {MODEL}, categories: [hate, violence], threshold: 0.3}}
        action: block
        applies_to: [input]
ledger: {{}}
prices: {{models: {{'*': {{input: 1000, output: 1000}}}}}}
limits: {{each_tenant: {{tokens_per_day: 100000}}}}
keys:
  listed:
    - {{name: app, tenant: acme, key: sk-app-0123456789abc}}
    - {{name: ops, tenant: ops, key: sk-ops-0123456789abc, admin: true}}
    """
    server = make_server(deployment=deploy(tmp_path, text))
    (letter,) = server._parts.tokenizer.encode("A")
    said = server.tokens
    server.engine.script = lambda request: [letter, 2] if request.grammar else said
    body = {"model": MODEL, "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 5}
    key = {"authorization": "Bearer sk-app-0123456789abc"}
    first = server.post("/v1/chat/completions", body, **key)
    used = first.json()["usage"]["total_tokens"]
    report = "usage?by=tenant&by=key"
    lines = server.get(
        f"/admin/v1/{report}", headers={"authorization": "Bearer sk-ops-0123456789abc"}
    ).json()["data"]
    asked, judged = lines
    assert (asked["tenant"], asked["key"], asked["requests"]) == ("acme", "app", 1)
    assert asked["prompt_tokens"] + asked["output_tokens"] == used
    assert (judged["tenant"], judged["key"]) == ("acme", "filter:harm")
    assert (judged["requests"], judged["output_tokens"]) == (1, 1)
    assert judged["prompt_tokens"] > asked["prompt_tokens"]
    assert float(judged["cost"]) == (judged["prompt_tokens"] + 1) / 1000
    # The tenant did not ask for it: neither its own sums nor its quotas have it.
    assert [line["key"] for line in server.get(f"/v1/{report}", headers=key).json()["data"]] == ["app"]
    again = make_server(deployment=server.config.deployment)
    again.engine.script = server.engine.script
    headers = again.post("/v1/chat/completions", body, **key).headers
    assert headers["x-ratelimit-remaining-tokens-per-day"] == str(100_000 - 2 * used)


@pytest.mark.parametrize(
    ("rule", "what"),
    [
        ("hook: {url: nowhere}", "must be a URL"),
        ("hook: {url: 'http://h'}, action: block, words: [a]", "give one of"),
        ("moderation: {model: m, categories: [a]}", "action must be given"),
        ("moderation: {model: m}, action: block", "give categories"),
        ("moderation: {categories: [a]}, action: block", "give a model of this deployment"),
        ("moderation: {model: m, categories: [a], api_key: k}, action: block", "api_key is for url"),
        ("hook: {url: 'http://h', window: 0}", "greater than or equal to 1"),
    ],
)
def test_settings_that_cannot_be(rule: str, what: str) -> None:
    with pytest.raises(ConfigError, match=what):
        parse(f"filters: [{{name: x, {rule}}}]")
