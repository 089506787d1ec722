"""Routes: what a public model name stands for, and when one model steps in for another."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import Field, field_validator, model_validator

from tokentrail.gateway.config.base import Settings
from tokentrail.gateway.config.models import LocalModel, ModelName, RemoteModel

Problem: TypeAlias = tuple[tuple[int | str, ...], str]
"""Where in the file, and what is wrong there."""

ScenarioName = Annotated[str, Field(min_length=1, max_length=64, pattern=r"^[\w.-]+$")]


class WeightedTarget(Settings):
    """A model, and its share of the requests."""

    model: str
    weight: float = Field(default=1.0, gt=0, le=1_000_000)


def _targets(value: Any) -> Any:
    """A name alone is a target, too."""
    if not isinstance(value, list):
        return value
    return [{"model": one} if isinstance(one, str) else one for one in value]


class RuleSettings(Settings):
    """A rule on requests: all that it names must be so."""

    pattern: str | None = Field(
        default=None,
        max_length=10_000,
        description="A regular expression in RE2's syntax, looked for in the last message.",
    )
    ignore_case: bool = Field(default=True, description="For `pattern`.")
    tools: bool | None = Field(default=None, description="Whether the request offers tools.")
    min_chars: int | None = Field(default=None, ge=0, description="Characters of the prompt at least.")
    max_chars: int | None = Field(default=None, ge=0, description="Characters of the prompt at most.")
    language: list[Literal["ar", "el", "en", "he", "hi", "ja", "ko", "ru", "th", "zh"]] | None = Field(
        default=None,
        min_length=1,
        description="Of the last message, as far as its script tells; en is all that is written in Latin letters.",
    )
    headers: dict[str, str] = Field(
        default={}, max_length=20, description="Headers of the HTTP request, and their values."
    )

    @field_validator("language", mode="before")
    @classmethod
    def _one_too(cls, value: Any) -> Any:
        return [value] if isinstance(value, str) else value

    @model_validator(mode="after")
    def _says_something(self) -> RuleSettings:
        if not self.model_fields_set - {"ignore_case"}:
            raise ValueError("a rule must name something, such as pattern or tools")
        return self


class ScenarioSettings(Settings):
    """A kind of request that has targets of its own: asked for as ROUTE:NAME, or found by rules or the classifier."""

    name: ScenarioName
    targets: list[WeightedTarget] = Field(min_length=1, max_length=1000)
    rules: list[RuleSettings] = Field(default=[], max_length=1000, description="One of which must be so.")
    examples: list[str] = Field(
        default=[], max_length=100_000, description="Requests of this kind, from which the classifier learns."
    )

    _short = field_validator("targets", mode="before")(_targets)


class ClassifierSettings(Settings):
    """Who tells scenarios apart where neither the name nor a rule does."""

    use: str = Field(
        default="examples",
        max_length=512,
        description="`examples` (words and characters, learned from each scenario's examples), `model` (one is asked) "
        "or package.module:callable, as `gateway.routing.classifiers.Factory` describes it.",
    )
    model: str | None = Field(default=None, description="For `model`: which one.")
    timeout_s: float = Field(default=0.5, gt=0, le=60)
    on_failure: Literal["default", "refuse"] = Field(
        default="default",
        description="When it fails or takes too long: the route's own targets, or an error.",
    )
    min_confidence: float = Field(
        default=0.6, ge=0, le=1, description="For `examples`: below it, it is the route's own targets."
    )
    options: dict[str, Any] = Field(default={}, description="Handed to a callable as they are.")


class RouteSettings(Settings):
    """A name that clients ask for, and the models that answer."""

    name: ModelName
    targets: list[WeightedTarget] = Field(min_length=1, max_length=1000)
    scenarios: list[ScenarioSettings] = Field(default=[], max_length=100)
    classifier: ClassifierSettings | None = None
    fallback: list[str] = Field(
        default=[],
        max_length=100,
        description="Models, or routes with their targets and fallbacks, that answer in this order when all targets "
        "are down or full.",
    )
    sticky: str | None = Field(
        default=None,
        max_length=128,
        description="Requests of one key, tenant or user (as they name it), or with one value of `header:NAME`, "
        "go to the same target and the same replica while that is well.",
        pattern=r"^(key|tenant|user|header:[A-Za-z0-9-]+)$",
    )
    hedge_after_s: float | Literal["p95"] | None = Field(
        default=None,
        description="Without a first piece of the answer after so many seconds, a second target is asked too, and the "
        "first to answer wins. p95: the time within which 95 of 100 answers began lately.",
    )
    attempts: int = Field(
        default=3, ge=1, le=20, description="Targets asked for one request at most, one after the other."
    )

    _short = field_validator("targets", mode="before")(_targets)

    @field_validator("hedge_after_s")
    @classmethod
    def _positive(cls, value: Any) -> Any:
        if isinstance(value, float) and not 0 < value <= 3600:
            raise ValueError(f"must be above 0 and at most 3600 seconds, or p95, not {value:g}")
        return value


class HealthSettings(Settings):
    """When a target is taken out of service, and how it comes back."""

    probe_every_s: float = Field(
        default=5.0, gt=0, le=3600, description="Seconds between probes of a remote upstream."
    )
    probe_timeout_s: float = Field(default=3.0, gt=0, le=600)
    probe_failures: int = Field(
        default=2, ge=1, le=100, description="Failed probes in a row that eject a target."
    )
    failures: int = Field(
        default=3, ge=1, le=1000, description="Failed requests in a row that eject a target."
    )
    failure_share: float = Field(
        default=0.5,
        gt=0,
        le=1,
        description="Share of failed requests that ejects it, too, once there are `share_of` of them.",
    )
    share_of: int = Field(
        default=20, ge=1, le=100_000, description="The latest requests that the share is taken of."
    )
    eject_s: float = Field(
        default=5.0,
        gt=0,
        le=3600,
        description="Seconds of the first ejection; each further one lasts twice as long.",
    )
    eject_most_s: float = Field(default=300.0, gt=0, le=86400)
    jitter: float = Field(default=0.2, ge=0, le=1, description="Part of these times that is left to chance.")
    trials: int = Field(
        default=1, ge=1, le=100, description="Requests at once that try a target whose time is over."
    )
    successes: int = Field(default=2, ge=1, le=100, description="Trials in a row that must succeed.")
    slow_start_s: float = Field(
        default=10.0,
        ge=0,
        le=3600,
        description="Seconds in which a target that is back gets its full share again.",
    )
    retry_share: float = Field(
        default=0.2,
        ge=0,
        le=10,
        description="Second attempts and hedges, as a part of the requests, at most …",
    )
    retry_per_s: float = Field(default=5.0, ge=0, le=10_000, description="… beside so many a second.")


def problems(
    models: Sequence[LocalModel | RemoteModel], routes: Sequence[RouteSettings]
) -> Iterator[Problem]:
    """What is wrong between models and routes, where each for itself is right."""
    known: dict[str, str] = {}
    for at, model in enumerate(models):
        if model.name in known:
            yield ("models", at, "name"), f"two models are called {model.name!r}; names must differ"
        known[model.name] = "model"
    for at, route in enumerate(routes):
        if route.name in known:
            yield (
                ("routes", at, "name"),
                f"{route.name!r} is already the name of a {known[route.name]}; names must differ",
            )
        known.setdefault(route.name, "route")
        scenarios: set[str] = set()
        for number, scenario in enumerate(route.scenarios):
            if scenario.name in scenarios:
                yield (
                    ("routes", at, "scenarios", number, "name"),
                    f"two scenarios are called {scenario.name!r}; names must differ",
                )
            scenarios.add(scenario.name)
    if routes and not models:
        yield ("routes",), "there are no `models:` that could answer"
        return
    names = {model.name for model in models}
    for at, route in enumerate(routes):
        yield from _route_problems(("routes", at), route, names, known)
    yield from _cycles(routes)


def _route_problems(
    where: tuple[int | str, ...], route: RouteSettings, models: set[str], known: dict[str, str]
) -> Iterator[Problem]:
    places = [((*where, "targets"), route.targets)]
    places += [
        ((*where, "scenarios", at, "targets"), scenario.targets)
        for at, scenario in enumerate(route.scenarios)
    ]
    for place, targets in places:
        seen: set[str] = set()
        for number, target in enumerate(targets):
            if target.model not in models:
                what = "is a route: name its models, or make it a fallback" if target.model in known else None
                what = what or f"there is no such model; there are {', '.join(sorted(models))}"
                yield (*place, number, "model"), f"{target.model!r}: {what}"
            if target.model in seen:
                yield (*place, number, "model"), f"{target.model!r} is a target twice; give it one weight"
            seen.add(target.model)
    for number, name in enumerate(route.fallback):
        if name not in known:
            yield (*where, "fallback", number), f"{name!r}: there is no such model or route"
    classifier = route.classifier
    if classifier is None:
        return
    place = (*where, "classifier")
    if not route.scenarios:
        yield place, "there are no scenarios to tell apart"
    if (classifier.model is not None) != (classifier.use == "model"):
        yield place, "`model` names whom `use: model` asks; give both or none"
    elif classifier.model is not None and classifier.model not in models:
        yield (*place, "model"), f"{classifier.model!r}: there is no such model"
    if classifier.use == "examples":
        for at, scenario in enumerate(route.scenarios):
            if not scenario.examples:
                yield (
                    (*where, "scenarios", at),
                    "has no examples, from which the classifier learns (`use: examples`)",
                )
    elif classifier.use != "model" and ":" not in classifier.use:
        yield (*place, "use"), f"{classifier.use!r} is none of examples, model or package.module:callable"


def _cycles(routes: Sequence[RouteSettings]) -> Iterator[Problem]:
    by_name = {route.name: (at, route) for at, route in enumerate(routes)}
    done: set[str] = set()

    def walk(name: str, path: tuple[str, ...]) -> Iterator[Problem]:
        if name in done:
            return
        at, route = by_name[name]
        for number, other in enumerate(route.fallback):
            if other not in by_name:
                continue
            if other in (*path, name):
                loop = [*path, name][[*path, name].index(other) :]
                yield (
                    ("routes", at, "fallback", number),
                    f"goes in a circle: {' → '.join([*loop, other])}",
                )
            else:
                yield from walk(other, (*path, name))
        done.add(name)

    for name in by_name:
        yield from walk(name, ())
