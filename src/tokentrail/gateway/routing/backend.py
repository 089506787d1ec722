"""The backend before all others: a name that is asked for → the models that may answer → one that does."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import msgspec

from tokentrail.answer import (
    Answer,
    AnswerRequest,
    Backend,
    ChatPrompt,
    EmbeddingRequest,
    Embeddings,
    ModelCard,
    ModelDetails,
    Prompt,
    TargetState,
    TokenText,
)
from tokentrail.gateway.config import Deployment, LocalModel, RemoteModel, RouteSettings
from tokentrail.gateway.config.reading import ConfigError
from tokentrail.gateway.routing.answer import RoutedAnswer
from tokentrail.gateway.routing.budget import RetryBudget
from tokentrail.gateway.routing.classifiers import Classifier, Context, build
from tokentrail.gateway.routing.latency import FirstTokens
from tokentrail.gateway.routing.plans import (
    Choice,
    Group,
    Plan,
    Scenario,
    fallback_groups,
    group_of,
    unavailable,
)
from tokentrail.gateway.routing.rules import Rule
from tokentrail.gateway.routing.targets import Chance, Probing, Target, retryable
from tokentrail.journey import JourneyStore
from tokentrail.protocol import EngineStats, InvalidRequest, ModelNotFound, TokentrailError

log = logging.getLogger(__name__)

Connect = Callable[[RemoteModel], Backend]
"""A remote model of the deployment file → its backend. Raises `InvalidRequest` naming the setting."""


class ClassifierFailed(TokentrailError):
    """The route's classifier failed or took too long, and its policy is to refuse then."""

    status = 503
    type = "server_error"
    code = "classifier_failed"


class RoutingBackend:
    """See `answer.backend.Backend`. On one event loop."""

    def __init__(
        self,
        deployment: Deployment,
        local: Mapping[str, Backend],
        journeys: JourneyStore,
        *,
        connect: Connect,
        own_use: Callable[[Backend, str], Backend] = lambda backend, name: backend,
        let_go: Callable[[Backend], Awaitable[None]] | None = None,
        clock: Callable[[], float] = time.monotonic,
        chance: Chance | None = None,
    ) -> None:
        """`local`: backends of the models that run here, by their names. `own_use`: what stands before a backend that
        is asked for the gateway's own sake, under some name. `let_go`: ends a model that runs here; None: all of them
        run as long as the server. Raises `ConfigError`.
        """
        self._own_use = own_use
        self.let_go = let_go
        self.journeys = journeys
        self.chance: Chance = random.Random() if chance is None else chance
        self.kept: Callable[[AnswerRequest], Awaitable[Answer | None]] | None = None
        """Who may have the answer to the same question of earlier, when nobody can answer it now."""
        self._local = dict(local)
        self._connect = connect
        self._clock = clock
        self._targets: dict[str, Target] = {}
        self._remote: dict[str, RemoteModel] = {}
        self._plans: dict[str, Plan] = {}
        self._first_tokens: dict[str, FirstTokens] = {}
        self._created = int(time.time())
        self._started = False
        self._retired: list[Target] = []
        self.settings = deployment
        health = deployment.health
        self.budget = RetryBudget(health.retry_share, health.retry_per_s, clock)
        self.apply(deployment)

    # --- what the file says -----------------------------------------------------------------------------------

    def apply(self, deployment: Deployment, started: Mapping[str, Backend] | None = None) -> None:
        """Have routes, weights, targets and health settings as this file has them. Answers that have begun go on where
        they are; a target that is no longer named is closed when they have ended. Nothing is applied if there is a
        mistake: raises `ConfigError`. `started`: models that run on this machine since now, in the place of those of
        the same name, if any.
        """
        before, local = self._local, {**self._local, **(started or {})}
        missing = [
            f"{deployment.where('models', at)}: models[{at}]: {model.name!r} runs on this machine and is new: it is "
            "there after a restart."
            for at, model in enumerate(deployment.models)
            if isinstance(model, LocalModel) and model.name not in local
        ]
        if missing:
            raise ConfigError("\n".join(missing))
        self._local = local
        targets: dict[str, Target] = {}
        fresh: list[Target] = []
        try:
            for at, model in enumerate(deployment.models):
                target = self._known_target(model)
                if target is None:
                    target = self._new_target(deployment, at, model)
                    fresh.append(target)
                targets[model.name] = target
            plans = self._plan_all(deployment, targets)
        except BaseException:
            self._local = before
            for target in fresh:
                if target.remote:
                    target.retire()
            raise
        for model in deployment.models:
            targets[model.name].max_concurrent = model.max_concurrent
        self._settle(deployment, targets, plans)

    def _settle(self, deployment: Deployment, targets: dict[str, Target], plans: dict[str, Plan]) -> None:
        kept = set(targets.values())
        gone = [target for target in self._targets.values() if target not in kept]
        self._targets, self._plans, self.settings = targets, plans, deployment
        self._remote = {model.name: model for model in deployment.models if isinstance(model, RemoteModel)}
        self._first_tokens = {name: plan.first_tokens for name, plan in plans.items()}
        health = deployment.health
        self.budget.share, self.budget.per_second = health.retry_share, health.retry_per_s
        for target in targets.values():
            target.circuit.settings = health
            if self._started:
                target.start()
        for target in gone:
            target.retire()
            if self.let_go is not None and self._local.get(target.name) is target.backend:
                del self._local[target.name]
        self._retired = [target for target in (*self._retired, *gone) if target.active]

    def _known_target(self, model: LocalModel | RemoteModel) -> Target | None:
        """The one that there is already for what is the same in all that matters to it."""
        target = self._targets.get(model.name)
        if target is None or target.remote != isinstance(model, RemoteModel):
            return None
        if isinstance(model, RemoteModel):
            return target if self._remote[model.name].target() == model.target() else None
        return target if self._local[model.name] is target.backend else None

    def _new_target(self, deployment: Deployment, at: int, model: LocalModel | RemoteModel) -> Target:
        remote = isinstance(model, RemoteModel)
        if isinstance(model, RemoteModel):
            try:
                backend = self._connect(model)
            except InvalidRequest as error:
                where = deployment.where("models", at, *([error.param] if error.param else []))
                raise ConfigError(f"{where}: models[{at}]: {error.message}") from None
        else:
            backend = self._local[model.name]
        let_go: Callable[[], Awaitable[None]] | None = None
        if isinstance(backend, Probing):
            let_go = backend.aclose
        elif (stop := self.let_go) is not None:
            let_go = partial(stop, backend)
        return Target(
            model.name,
            backend,
            deployment.health,
            remote=remote,
            max_concurrent=model.max_concurrent,
            let_go=let_go,
            clock=self._clock,
            chance=self.chance,
        )

    def _plan_all(self, deployment: Deployment, targets: Mapping[str, Target]) -> dict[str, Plan]:
        plans: dict[str, Plan] = {}
        for model in deployment.models:
            if model.hidden:
                continue
            target = targets[model.name]
            plans[model.name] = Plan(model.name, Group([Choice(target, model.name, 1.0)]))
            for card in target.backend.models():  # its adapters
                if card.id != model.name:
                    plans[card.id] = Plan(card.id, Group([Choice(target, card.id, 1.0)]))
        routes = {route.name: route for route in deployment.routes}
        for at, route in enumerate(deployment.routes):
            for plan in self._plans_of(deployment, at, route, routes, targets):
                plans[plan.name] = plan
        return plans

    def _plans_of(
        self,
        deployment: Deployment,
        at: int,
        route: RouteSettings,
        routes: Mapping[str, RouteSettings],
        targets: Mapping[str, Target],
    ) -> Iterator[Plan]:
        """Of a route, and of each of its scenarios by its own name."""
        main = group_of(route.targets, targets)
        fallback = fallback_groups(route.fallback, routes, targets)
        scenarios: list[Scenario] = []
        for number, one in enumerate(route.scenarios):
            rules: list[Rule] = []
            for line, settings in enumerate(one.rules):
                try:
                    rules.append(Rule(settings))
                except InvalidRequest as error:
                    where = ("routes", at, "scenarios", number, "rules", line, "pattern")
                    raise ConfigError(f"{deployment.where(*where)}: pattern {error.message}") from None
            scenarios.append(Scenario(one.name, group_of(one.targets, targets), rules))
        classifier: Classifier | None = None
        if route.classifier is not None:
            asked = None if route.classifier.model is None else targets[route.classifier.model]
            context = Context(
                examples={one.name: one.examples for one in route.scenarios},
                options=route.classifier.options,
                min_confidence=route.classifier.min_confidence,
                backend=None if asked is None else self._own_use(asked.backend, f"classifier:{route.name}"),
                model=route.classifier.model or "",
            )
            try:
                classifier = build(route.classifier, context)
            except InvalidRequest as error:
                place = deployment.where("routes", at, "classifier")
                raise ConfigError(f"{place}: routes[{at}].classifier: {error.message}.") from None
        yield Plan(
            route.name,
            main,
            fallback=fallback,
            settings=route,
            scenarios=scenarios,
            classifier=classifier,
            first_tokens=self._first_tokens.get(route.name),
        )
        for scenario in scenarios:
            name = f"{route.name}:{scenario.name}"
            # When a scenario's own targets are down, the route's are nearest.
            nearest = Group(main.choices, degraded=True)
            yield Plan(
                name,
                scenario.group,
                fallback=[nearest, *fallback],
                settings=route,
                first_tokens=self._first_tokens.get(name),
            )

    # --- life -------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Probe remote targets from now on."""
        self._started = True
        for target in self._targets.values():
            target.start()

    async def stop(self) -> None:
        """No more probes. What has begun goes on."""
        self._started = False
        for target in self._targets.values():
            await target.stop()

    async def aclose(self) -> None:
        """All answers have ended: let go of remote targets."""
        await self.stop()
        for target in self._targets.values():
            if target.remote:
                target.retire()
        await asyncio.sleep(0)

    def targets(self) -> list[TargetState]:
        """How all targets are doing, those too that end because no route names them any more."""
        self._retired = [target for target in self._retired if target.active]
        return [target.describe() for target in (*self._targets.values(), *self._retired)]

    async def kept_answer(self, request: AnswerRequest) -> Answer | None:
        return None if self.kept is None else await self.kept(request)

    # --- what there is ----------------------------------------------------------------------------------------

    @property
    def ready(self) -> bool:
        return any(target.backend.ready and target.circuit.allows for target in self._targets.values())

    @property
    def stats(self) -> EngineStats:
        parts = [target.backend.stats for target in self._targets.values() if not target.remote]
        fields = EngineStats.__struct_fields__
        return EngineStats(**{name: sum(getattr(part, name) for part in parts) for name in fields})

    def models(self) -> list[ModelCard]:
        """Routes first, with their scenarios behind them; then models that are not hidden, with their adapters."""
        routes = [plan for plan in self._plans.values() if plan.settings is not None]
        direct = [plan for plan in self._plans.values() if plan.settings is None]
        return [self._card(plan) for plan in (*routes, *direct)]

    def _card(self, plan: Plan) -> ModelCard:
        cards = [_card_of(choice) for choice in plan.main.choices]
        if plan.settings is None:
            return msgspec.structs.replace(cards[0], id=plan.name)
        lengths = [card.max_model_len for card in cards if card.max_model_len]
        return ModelCard(
            id=plan.name,
            created=self._created,
            max_model_len=min(lengths, default=0),
            root=cards[0].root,
            parent=None if plan.name == plan.settings.name else plan.settings.name,
        )

    def details(self, id: str) -> ModelDetails:
        choice = self._plan(id).main.choices[0]
        return choice.target.backend.details(choice.model)

    def for_model(self, id: str) -> Backend:
        return self._plan(id).main.choices[0].target.backend

    def _any(self) -> Backend:
        """Who is asked about texts when nobody says of which model: the first that clients see."""
        plan = next(iter(self._plans.values()), None)
        if plan is None:
            return next(iter(self._targets.values())).backend
        return plan.main.choices[0].target.backend

    def render(self, prompt: ChatPrompt) -> str:
        return self._any().render(prompt)

    def tokenize(
        self, prompt: Prompt, add_special_tokens: bool = True, parse_special: bool = True
    ) -> list[int]:
        return self._any().tokenize(prompt, add_special_tokens, parse_special)

    def detokenize(self, ids: Sequence[int]) -> str:
        return self._any().detokenize(ids)

    def token_texts(self, ids: Sequence[int]) -> list[TokenText]:
        return self._any().token_texts(ids)

    def tokenizer_info(self) -> dict[str, Any]:
        return self._any().tokenizer_info()

    # --- requests ---------------------------------------------------------------------------------------------

    async def open(self, request: AnswerRequest) -> Answer:
        plan = self._plan(request.model)
        self.budget.request()
        main = plan.main
        if plan.settings is not None:
            request.handling.route = plan.name
            scenario = await self._scenario(plan, request)
            if scenario is not None:
                plan = self._plans[f"{plan.name}:{scenario.name}"]
                request.handling.route = plan.name
                main = plan.main
        answer = RoutedAnswer(self, plan, main, request)
        await answer.begin()
        return answer

    async def embed(self, request: EmbeddingRequest) -> Embeddings:
        plan = self._plan(request.model)
        self.budget.request()
        handling = request.handling
        handling.route = plan.name if plan.settings is not None else ""
        session = plan.session(request)
        tried: list[Target] = []
        error: Exception | None = None
        groups = plan.groups(plan.main)
        for group in groups:
            while len(tried) < plan.attempts or not tried:
                choice = group.pick(self.chance, session, tried) or group.waiting(tried)
                if choice is None or (tried and not self.budget.take()):
                    break
                tried.append(choice.target)
                handling.attempts += 1
                handling.target, handling.degraded = choice.target.name, group.degraded
                attempt = choice.target.begin()
                try:
                    made = await choice.target.backend.embed(
                        msgspec.structs.replace(
                            request,
                            id=request.id if len(tried) == 1 else f"{request.id}.{len(tried)}",
                            model=choice.model,
                        )
                    )
                    attempt.succeeded()
                    made.id, made.model = request.id, request.model
                    return made
                except Exception as problem:
                    attempt.failed(problem)
                    if not retryable(problem):
                        raise
                    error = problem
                finally:
                    attempt.left()
        raise error or unavailable(plan.name, groups)

    def _plan(self, name: str) -> Plan:
        plan = self._plans.get(name)
        if plan is None:
            raise ModelNotFound(name)
        return plan

    async def _scenario(self, plan: Plan, request: AnswerRequest) -> Scenario | None:
        for scenario in plan.scenarios:
            if scenario.matches(request):
                return scenario
        settings = plan.settings
        if plan.classifier is None or settings is None or settings.classifier is None:
            return None
        try:
            name = await asyncio.wait_for(plan.classifier(request), settings.classifier.timeout_s)
        except Exception as error:
            what = (
                f"took more than {settings.classifier.timeout_s:g} s"
                if isinstance(error, asyncio.TimeoutError)
                else f"failed: {type(error).__name__}"
            )
            log.warning("the classifier of route %s %s", plan.name, what)
            if settings.classifier.on_failure == "refuse":
                raise ClassifierFailed(
                    f"The classifier of {plan.name} {what}. Ask for a scenario by its name, such as "
                    f"{plan.name}:{plan.scenarios[0].name}."
                ) from None
            return None
        return next((one for one in plan.scenarios if one.name == name), None)


def check_routes(deployment: Deployment) -> None:
    """What can be known of routes before there are engines and upstreams. Raises `ConfigError`."""
    if not deployment.models:
        return
    nobody: Any = _Nobody()
    local = {model.name: nobody for model in deployment.models if isinstance(model, LocalModel)}

    def connect(model: RemoteModel) -> Backend:
        from tokentrail.answer.remote.backend import RemoteBackend

        return RemoteBackend(model.target())

    RoutingBackend(deployment, local, JourneyStore(0), connect=connect)


class _Nobody:
    """In the place of a backend that is not asked."""

    def models(self) -> list[ModelCard]:
        return []


def _card_of(choice: Choice) -> ModelCard:
    cards = choice.target.backend.models()
    return next((card for card in cards if card.id == choice.model), cards[0])
