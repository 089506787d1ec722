"""Who is asked, and what happens when that one fails: with backends that do as they are told."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from tokentrail.answer import (
    AnswerRequest,
    ChatOptions,
    ChatPrompt,
    Chunk,
    EmbeddingRequest,
    Embeddings,
    Identity,
    ModelCard,
    TextPrompt,
    Timing,
    Usage,
    collect,
)
from tokentrail.gateway.config import ConfigError, parse
from tokentrail.gateway.routing import RoutingBackend
from tokentrail.gateway.routing.plans import NoTarget
from tokentrail.journey import JourneyStore
from tokentrail.protocol import (
    ContextLengthExceeded,
    DeadlineExceeded,
    EngineDead,
    EngineStats,
    InvalidRequest,
    Overloaded,
    SamplingParams,
    UpstreamError,
)

Step = str | Exception | asyncio.Event


class FakeAnswer:
    """Says its words one by one; waits where there is an event, fails where there is an error."""

    def __init__(self, backend: FakeBackend, request: AnswerRequest, steps: list[Step]) -> None:
        self.id, self.model, self.created = request.id, request.model, 0
        self.seed, self.fingerprint = 1, backend.name
        self.prompt_token_ids: list[list[int]] = [[1]]
        self.usage, self.timing = Usage(prompt_tokens=1), Timing(0.0)
        self.sampling, self.num_choices = request.sampling, 1
        self.headers: dict[str, str] = {}
        self._backend = backend
        self._steps = steps
        self._take: Callable[[Chunk], bool] | None = None
        self._chunks = self._run()
        self._journey = backend.journeys.begin(
            request.id, endpoint="", model=request.model, request_id=request.request_id
        )

    def __aiter__(self) -> AsyncIterator[list[Chunk]]:
        return self._chunks

    def divert(self, take: Callable[[Chunk], bool]) -> None:
        self._take = take

    async def _run(self) -> AsyncIterator[list[Chunk]]:
        for number, step in enumerate(self._steps):
            if isinstance(step, asyncio.Event):
                await step.wait()
            elif isinstance(step, Exception):
                raise step
            else:
                self.usage.completion_tokens += 1
                last = number == len(self._steps) - 1
                chunk = Chunk(0, step, token_ids=[7], finish_reason="stop" if last else None)
                if self._take is None or not self._take(chunk):
                    yield [chunk]
        self._backend.finished += 1

    async def aclose(self) -> None:
        await self._chunks.aclose()  # type: ignore[attr-defined]
        self._backend.closed.append(self.id)
        self._journey.end("stop")

    def sent(self, seconds: float) -> None:
        self._backend.sent += seconds


class FakeBackend:
    def __init__(self, name: str, journeys: JourneyStore) -> None:
        self.name = name
        self.journeys = journeys
        self.ready = True
        self.stats = EngineStats(running=1)
        self.script: list[Step] = [name]
        self.refusal: Exception | None = None
        self.asked: list[AnswerRequest] = []
        self.closed: list[str] = []
        self.finished = 0
        self.sent = 0.0
        self.room = 100
        self.probes: list[Any] = []
        self.gone = False

    def models(self) -> list[ModelCard]:
        return [ModelCard(id=self.name, created=0, max_model_len=self.room, root=self.name)]

    def tokenize(self, prompt: Any, add_special_tokens: bool = True, parse_special: bool = True) -> list[int]:
        return [len(self.name)]

    async def open(self, request: AnswerRequest) -> FakeAnswer:
        self.asked.append(request)
        if self.refusal is not None:
            raise self.refusal
        return FakeAnswer(self, request, list(self.script))

    async def embed(self, request: EmbeddingRequest) -> Embeddings:
        if self.refusal is not None:
            raise self.refusal
        return Embeddings(
            id=request.id, model=request.model, created=0, vectors=[self.name.encode()], usage=Usage()
        )

    async def probe(self) -> Any:
        return self.probes.pop(0)

    async def aclose(self) -> None:
        self.gone = True


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


class House:
    """A routing backend over models a, b and c, which are remote, and what is done to them."""

    def __init__(self, more: str, models: str = "abc", **options: Any) -> None:
        self.clock = Clock()
        self.journeys = JourneyStore()
        self.fakes: dict[str, FakeBackend] = {}
        self.more = more
        self.models = models
        self.backend = RoutingBackend(
            parse(self.text(more)),
            {},
            self.journeys,
            connect=lambda model: self.fake(model.name),
            clock=self.clock,
            chance=random.Random(7),
            **options,
        )
        self.count = 0

    def text(self, more: str) -> str:
        listed = "".join(f"  - {{name: {name}, url: 'http://{name}'}}\n" for name in self.models)
        return f"models:\n{listed}{more}"

    def fake(self, name: str) -> Any:
        self.fakes[name] = FakeBackend(name, self.journeys)
        return self.fakes[name]

    def request(self, model: str = "r", text: str = "Hi", **fields: Any) -> AnswerRequest:
        self.count += 1
        return AnswerRequest(
            id=f"id{self.count}",
            prompts=[ChatPrompt(messages=[{"role": "user", "content": text}])],
            sampling=SamplingParams(),
            model=model,
            endpoint="test",
            **fields,
        )

    async def ask(self, model: str = "r", text: str = "Hi", **fields: Any) -> str:
        request = self.request(model, text, **fields)
        (choice,) = await collect(await self.backend.open(request))
        self.handling = request.handling
        return choice.text

    def state(self, name: str) -> str:
        return next(target.state for target in self.backend.targets() if target.name == name)

    def idle(self) -> bool:
        return all(not target.active for target in self.backend.targets())


def route(more: str = "", targets: str = "[a, b]") -> str:
    return f"routes:\n  - name: r\n    targets: {targets}\n{more}"


async def test_weights_and_names() -> None:
    house = House(route(targets="[{model: a, weight: 3}, b]"))
    got = Counter([await house.ask() for _ in range(400)])
    assert 250 < got["a"] < 350
    assert got["a"] + got["b"] == 400
    assert await house.ask("c") == "c"
    assert house.handling.route == ""
    assert [card.id for card in house.backend.models()] == ["r", "a", "b", "c"]
    answer = await house.backend.open(house.request())
    await collect(answer)
    assert answer.model == "r"
    assert answer.headers["x-tokentrail-served-by"] == answer.fingerprint
    with pytest.raises(InvalidRequest, match="does not exist"):
        await house.ask("z")
    assert house.idle()


async def test_another_target_is_asked_while_nothing_has_come() -> None:
    house = House(route())
    for failing, other in (("a", "b"), ("b", "a")):
        for error in (EngineDead("dead"), UpstreamError("cut"), Overloaded("full"), ValueError("a bug")):
            house.clock.now += 100
            house.fakes[failing].script = [error]
            assert await house.ask() == other
            house.fakes[failing].script = [failing]
            house.fakes[failing].refusal = error
            assert await house.ask() == other
            house.fakes[failing].refusal = None
    assert house.idle()
    # Once something has been sent, what goes wrong is told; of what is sent as a whole nothing has.
    house.clock.now += 100
    house.fakes["a"].script = ["begun", UpstreamError("cut", sent=True)]
    asked = len(house.fakes["a"].asked)
    while len(house.fakes["a"].asked) == asked:
        assert await house.ask() == "b"
    house.fakes["b"].script = house.fakes["a"].script
    with pytest.raises(UpstreamError, match="cut"):
        await house.ask(streamed=True)
    assert house.idle()


async def test_who_is_wrong_is_told_so_at_once() -> None:
    house = House(route())
    for error in (InvalidRequest("no"), DeadlineExceeded("late")):
        for fake in house.fakes.values():
            fake.script = [error]
        for _ in range(5):
            with pytest.raises(type(error)):
                await house.ask()
    assert {house.state(name) for name in "ab"} == {"closed"}
    assert len(house.fakes["a"].asked) + len(house.fakes["b"].asked) == 10


async def test_a_longer_context_may_take_what_a_short_one_refuses() -> None:
    house = House(route("    fallback: [c]\n", targets="[a]"))
    house.fakes["a"].refusal = ContextLengthExceeded("too long")
    house.fakes["c"].room = 1000
    assert await house.ask() == "c"
    house.fakes["c"].room = 100
    with pytest.raises(ContextLengthExceeded):
        await house.ask()


async def test_failing_targets_are_ejected_and_fallbacks_step_in() -> None:
    house = House(
        "health: {jitter: 0, failures: 3, eject_s: 5, successes: 1, slow_start_s: 0}\n"
        + route("    fallback: [s, c]\n")
        + "  - {name: s, targets: [d], fallback: [e]}\n",
        models="abcde",
    )
    for name in "ab":
        house.fakes[name].script = [EngineDead("dead")]
    for _ in range(4):
        assert await house.ask() == "d"
        assert house.handling.degraded
        assert house.handling.attempts <= 3
    assert house.state("a") == house.state("b") == "open"
    asked = len(house.fakes["a"].asked)
    answer = await house.backend.open(house.request())
    await collect(answer)
    assert answer.headers == {"x-tokentrail-served-by": "d", "x-tokentrail-degraded": "true"}
    assert len(house.fakes["a"].asked) == asked
    house.fakes["d"].ready = house.fakes["e"].ready = False
    assert await house.ask() == "c"
    for name in "ab":
        house.fakes[name].script = [name]
    house.clock.now += 5
    assert await house.ask() in "ab"
    assert not house.handling.degraded
    assert house.idle()


async def test_when_nobody_is_left_it_says_so_with_a_time() -> None:
    house = House("health: {jitter: 0, failures: 1, eject_s: 5}\n" + route())
    for name in "ab":
        house.fakes[name].script = [EngineDead("dead")]
    with pytest.raises(EngineDead):
        await house.ask()
    with pytest.raises(NoTarget, match="for r can be asked") as none:
        await house.ask()
    assert none.value.retry_after == 5.0
    assert not house.backend.ready or house.state("c") == "closed"

    async def kept(request: AnswerRequest) -> Any:
        return FakeAnswer(house.fakes["c"], request, ["kept"])

    house.backend.kept = kept
    answer = await house.backend.open(house.request())
    (choice,) = await collect(answer)
    assert choice.text == "kept"
    assert answer.headers["x-tokentrail-degraded"] == "true"


async def test_limits_of_a_target_and_queues_that_are_full() -> None:
    house = House(route("    fallback: [c]\n", targets="[a]"))
    house.backend.apply(parse(house.text(house.more).replace("{name: a,", "{name: a, max_concurrent: 1,")))
    gate = asyncio.Event()
    house.fakes["a"].script = [gate, "a"]
    first = asyncio.ensure_future(house.ask())
    await asyncio.sleep(0)
    assert house.state("a") == "full"
    assert await house.ask() == "c"
    house.fakes["c"].script = [Overloaded("full", retry_after=7)]
    with pytest.raises(Overloaded):
        await house.ask()
    with pytest.raises(Overloaded, match="All that answer for r are full"):
        await house.ask()
    assert house.state("c") == "full"
    gate.set()
    assert await first == "a"
    assert await house.ask() == "a"
    house.clock.now += 7
    assert house.state("c") == "closed"


async def test_an_outage_does_not_multiply_the_load() -> None:
    house = House(
        "health: {retry_share: 0.1, retry_per_s: 0, failures: 1000, failure_share: 1, share_of: 100000}\n"
        + route()
    )
    for name in "ab":
        house.fakes[name].script = [EngineDead("dead")]
    for _ in range(300):
        with pytest.raises(EngineDead):
            await house.ask()
    asked = len(house.fakes["a"].asked) + len(house.fakes["b"].asked)
    assert 300 < asked <= 300 + 10 + 30


async def test_a_hedge_wins_and_the_loser_is_ended() -> None:
    house = House(route("    hedge_after_s: 0.001\n"))
    never = asyncio.Event()
    for slow, quick in (("a", "b"), ("b", "a")):
        house.fakes[slow].script = [never, slow]
        house.fakes[quick].script = [quick, "!"]
        for _ in range(6):
            request = house.request()
            answer = await house.backend.open(request)
            (choice,) = await collect(answer)
            assert choice.text == f"{quick}!"
            assert answer.fingerprint == quick
            assert answer.usage.completion_tokens == 2
            assert answer.id == request.id
            found = house.journeys.find(request.id)
            assert found is not None
            assert (found.target, found.route) == (quick, "r")
            assert found.attempts == request.handling.attempts
        assert len(house.fakes[slow].closed) == len(house.fakes[slow].asked)
        house.fakes[slow].script = [slow]
    assert house.idle()
    states = {target.name: target for target in house.backend.targets()}
    assert states["a"].hedges + states["b"].hedges >= 2
    assert {states["a"].state, states["b"].state} == {"closed"}


async def test_a_hedge_that_fails_does_not_harm_the_first() -> None:
    house = House(route("    hedge_after_s: 0.001\n"))
    for first in "ab":
        other = "b" if first == "a" else "a"
        gate = asyncio.Event()
        house.fakes[first].script = [gate, first]
        house.fakes[other].script = [EngineDead("dead")]
        waiting = asyncio.ensure_future(house.ask())
        while not house.fakes[other].asked or not house.fakes[first].asked:
            await asyncio.sleep(0)
        gate.set()
        assert await waiting == first
        house.fakes[first].asked.clear()
        house.fakes[other].asked.clear()
    assert house.idle()


async def test_a_client_that_leaves_ends_all() -> None:
    house = House(route("    hedge_after_s: 0.001\n"))
    for name in "ab":
        house.fakes[name].script = [asyncio.Event(), name]
    waiting = asyncio.ensure_future(house.ask())
    while not house.fakes["a"].asked or not house.fakes["b"].asked:
        await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert house.idle()
    assert house.fakes["a"].closed
    assert house.fakes["b"].closed
    # One that is opened and never read, too.
    answer = await house.backend.open(house.request())
    assert not house.idle()
    await answer.aclose()
    assert house.idle()
    assert {house.state(name) for name in "ab"} == {"closed"}


async def test_pieces_go_the_short_way_once_it_is_settled_who_answers() -> None:
    house = House(route(targets="[a]"))
    house.fakes["a"].script = ["one", "two", "three"]
    answer = await house.backend.open(house.request(streamed=True))
    taken: list[str] = []

    def take(chunk: Chunk) -> bool:
        taken.append(chunk.text)
        return chunk.finish_reason is None

    seen: list[str] = []
    async for batch in answer:
        seen += [chunk.text for chunk in batch]
        answer.divert(take)
    assert (seen, taken) == (["one", "three"], ["two", "three"])
    answer.sent(0.5)
    assert house.fakes["a"].sent == 0.5


async def test_sessions_stay_where_they_are() -> None:
    house = House(
        route("    sticky: header:x-session\n", targets="[a, b, c]"),
    )
    homes = {k: {await house.ask(headers={"x-session": str(k)}) for _ in range(5)} for k in range(30)}
    assert all(len(home) == 1 for home in homes.values())
    assert len(set.union(*homes.values())) == 3
    house.fakes["a"].ready = False
    for k, home in homes.items():
        now = await house.ask(headers={"x-session": str(k)})
        assert now == next(iter(home)) or home == {"a"}
    assert len({await house.ask() for _ in range(40)}) == 2
    keyed = House(route("    sticky: key\n", targets="[a, b, c]"))
    identity = Identity(tenant="t", key="k")
    assert len({await keyed.ask(identity=identity) for _ in range(20)}) == 1
    assert keyed.fakes["a"].asked + keyed.fakes["b"].asked + keyed.fakes["c"].asked
    assert all(request.session == "t\0k" for fake in keyed.fakes.values() for request in fake.asked)


SCENARIOS = """    scenarios:
      - name: code
        targets: [b]
        rules:
          - {pattern: 'def |\\bpython\\b'}
          - {tools: true}
        examples: ['write a function that sorts a list', 'why does this loop crash', '写一个排序函数']
      - name: long
        targets: [c]
        rules: [{min_chars: 1000, language: [zh, en]}, {headers: {X-Kind: long}}]
        examples: ['tell a story about a dragon and a princess', 'write a poem about the sea', '写一首关于大海的诗']
"""


async def test_scenarios_by_name_and_by_rule() -> None:
    house = House(route(SCENARIOS, targets="[a]"))
    assert await house.ask("r:code") == "b"
    assert house.handling.route == "r:code"
    assert await house.ask(text="Hello") == "a"
    assert await house.ask(text="I love PYTHON.") == "b"
    assert house.handling.route == "r:code"
    tools = ChatOptions(tools=[{"type": "function"}])
    assert await house.ask(chat=tools) == "b"
    assert await house.ask(text="long " * 300) == "c"
    assert await house.ask(text="Длинный " * 300) == "a"
    assert await house.ask(headers={"x-kind": "long"}) == "c"
    assert [card.id for card in house.backend.models()][:3] == ["r", "r:code", "r:long"]
    assert house.backend.models()[1].parent == "r"
    # A scenario without anybody falls back to the route's own.
    house.fakes["b"].ready = False
    assert await house.ask("r:code") == "a"
    assert house.handling.degraded


async def test_classifiers() -> None:
    house = House(route(SCENARIOS + "    classifier: {}\n", targets="[a]"))
    assert await house.ask(text="Please write a function that sorts my numbers") == "b"
    assert await house.ask(text="a poem about the dragon") == "c"
    assert await house.ask(text="帮我写一首诗") == "c"
    assert await house.ask(text="What is the capital of France?") == "a"
    assert await house.ask(text="…") == "a"
    # One's own, by name; it fails, is late, or says what is no scenario.
    own = route(
        SCENARIOS + "    classifier: {use: 'test_routing:own', timeout_s: 0.01, POLICY}\n", targets="[a]"
    )
    for policy in ("default", "refuse"):
        house = House(own.replace("POLICY", f"on_failure: {policy}"))
        assert await house.ask(text="code") == "b"
        assert await house.ask(text="nonsense") == "a"
        for text in ("fail", "wait"):
            if policy == "default":
                assert await house.ask(text=text) == "a"
            else:
                with pytest.raises(Exception, match="classifier of r"):
                    await house.ask(text=text)
    asked = House(route(SCENARIOS + "    classifier: {use: model, model: c}\n", targets="[a]"))
    asked.fakes["c"].script = ["code"]
    assert await asked.ask(text="anything") == "b"
    shown = asked.fakes["c"].asked[0]
    assert shown.sampling.structured_outputs is not None
    assert shown.sampling.structured_outputs.choice == ("code", "long", "other")
    # Whoever counts what the gateway asks itself stands between.
    between: list[str] = []

    def counted(backend: Any, name: str) -> Any:
        between.append(name)
        return backend

    House(route(SCENARIOS + "    classifier: {use: model, model: c}\n", targets="[a]"), own_use=counted)
    assert between == ["classifier:r"]
    for wrong, what in (
        ("{use: 'no_such_module:x'}", "cannot be imported"),
        ("{use: 'test_routing:broken'}", "failed: RuntimeError"),
    ):
        with pytest.raises(ConfigError, match=what) as error:
            House(route(SCENARIOS + f"    classifier: {wrong}\n", targets="[a]"))
        assert str(error.value).startswith("deploy.yaml:19:")
    with pytest.raises(ConfigError, match=r"deploy.yaml:10: pattern is no regular expression"):
        House(
            route(
                "    scenarios: [{name: x, targets: [b],\n      rules: [{tools: true},\n        {pattern: '('}]}]\n"
            )
        )


def own(context: Any) -> Any:
    async def classify(request: AnswerRequest) -> str | None:
        text = request.prompts[0].messages[0]["content"]  # type: ignore[union-attr]
        if text == "wait":
            await asyncio.Event().wait()
        if text == "fail":
            raise ValueError(text)
        return str(text)

    return classify


def broken(context: Any) -> Any:
    raise RuntimeError("no")


async def test_a_new_file_changes_routes_without_disturbing_answers() -> None:
    house = House(route(targets="[a]"))
    gate = asyncio.Event()
    house.fakes["a"].script = ["begun ", gate, "and done"]
    old = house.fakes["a"]
    running = asyncio.ensure_future(house.ask())
    while not old.asked:
        await asyncio.sleep(0)
    circuit = house.backend._targets["b"].circuit
    house.backend.apply(parse(house.text(route(targets="[b]")).replace("http://a", "http://elsewhere")))
    assert await house.ask() == "b"
    assert house.backend._targets["b"].circuit is circuit
    assert not old.gone
    assert [target.name for target in house.backend.targets()].count("a") == 2
    gate.set()
    assert await running == "begun and done"
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert old.gone
    # A file with a mistake changes nothing.
    with pytest.raises(ConfigError, match="new: it is there after a restart"):
        house.backend.apply(parse(house.text("  - {name: z, model: demo}\n" + route(targets="[z]"))))
    assert await house.ask() == "b"
    await house.backend.aclose()
    await asyncio.sleep(0)
    assert all(fake.gone for fake in house.fakes.values())


async def test_probes() -> None:
    from types import SimpleNamespace

    house = House("health: {probe_failures: 2}\n" + route())
    target = house.backend._targets["a"]
    fake = house.fakes["a"]
    fake.probes = [
        SimpleNamespace(ready=False, problem="no route"),
        SimpleNamespace(ready=False, problem="no"),
    ]
    await target.probe(fake)
    await target.probe(fake)
    assert house.state("a") == "open"
    assert target.last_error == "no"
    await target.probe(fake)  # raises: there are no more
    assert "IndexError" in str(target.last_error)
    assert {await house.ask() for _ in range(20)} == {"b"}


async def test_embeddings_and_texts() -> None:
    house = House(route("    fallback: [c]\n"))

    def asked() -> EmbeddingRequest:
        return EmbeddingRequest(id="e", prompts=[TextPrompt("x")], model="r", endpoint="")

    house.fakes["a"].refusal = house.fakes["b"].refusal = EngineDead("dead")
    request = asked()
    made = await house.backend.embed(request)
    assert (made.vectors, made.model, made.id) == ([b"c"], "r", "e")
    assert (request.handling.attempts, request.handling.degraded) == (3, True)
    house.fakes["c"].refusal = InvalidRequest("no embeddings")
    with pytest.raises(InvalidRequest):
        await house.backend.embed(asked())
    assert house.idle()
    assert house.backend.for_model("c").tokenize(TextPrompt("x")) == [1]
    assert house.backend.tokenize(TextPrompt("x")) == [1]
