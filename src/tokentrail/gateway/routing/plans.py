"""What a name that clients ask for stands for: who answers, and who steps in."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from tokentrail.answer import AnswerRequest, EmbeddingRequest
from tokentrail.gateway.config import RouteSettings, WeightedTarget
from tokentrail.gateway.routing.classifiers import Classifier
from tokentrail.gateway.routing.latency import FirstTokens
from tokentrail.gateway.routing.rules import Rule
from tokentrail.gateway.routing.targets import Chance, Target
from tokentrail.protocol import Overloaded, TokentrailError


class Choice(NamedTuple):
    """One target of a group."""

    target: Target
    model: str
    """The name by which the target's backend knows it: of an adapter, the adapter's."""
    weight: float


class Group:
    """Targets that share requests by their weights."""

    def __init__(self, choices: Sequence[Choice], *, degraded: bool = False) -> None:
        self.choices = tuple(choices)
        self.degraded = degraded
        """They are not the route's own."""

    def pick(self, chance: Chance, session: str, tried: Collection[Target]) -> Choice | None:
        """One that can be asked now, and has not been for this request; None: there is none."""
        usable = [
            (choice, choice.weight * choice.target.circuit.share)
            for choice in self.choices
            if choice.target not in tried and choice.target.usable
        ]
        if not usable:
            return None
        if session:
            return max(usable, key=lambda pair: _rendezvous(session, pair[0]))[0]
        if len(usable) == 1:
            return usable[0][0]
        at = chance.random() * sum(weight for _, weight in usable)
        for choice, weight in usable:
            at -= weight
            if at < 0:
                return choice
        return usable[-1][0]

    def waiting(self, tried: Collection[Target]) -> Choice | None:
        """One that a request may wait for."""
        return next(
            (one for one in self.choices if one.target not in tried and one.target.waits),
            None,
        )


def _rendezvous(session: str, choice: Choice) -> float:
    """Weighted rendezvous hashing (Mosko, Schindelhauer): a session has the same target as long as that can be asked,
    and only its sessions move when it cannot. Of the weight of the file: a target that comes back gets its own back.
    """
    digest = hashlib.blake2b(f"{choice.target.name}:{session}".encode(), digest_size=8).digest()
    part = (int.from_bytes(digest, "big") + 1) / (2**64 + 1)
    return -choice.weight / math.log(part)


class Scenario:
    """A kind of request that has targets of its own."""

    def __init__(self, name: str, group: Group, rules: Sequence[Rule]) -> None:
        self.name = name
        self.group = group
        self._rules = rules

    def matches(self, request: AnswerRequest) -> bool:
        return any(rule.matches(request) for rule in self._rules)


class Plan:
    """All of a name."""

    def __init__(
        self,
        name: str,
        main: Group,
        *,
        fallback: Sequence[Group] = (),
        settings: RouteSettings | None = None,
        scenarios: Sequence[Scenario] = (),
        classifier: Classifier | None = None,
        first_tokens: FirstTokens | None = None,
    ) -> None:
        self.name = name
        self.main = main
        self.fallback = tuple(fallback)
        self.settings = settings
        """None: a model that is asked by its own name."""
        self.scenarios = tuple(scenarios)
        self.classifier = classifier
        self.first_tokens = FirstTokens() if first_tokens is None else first_tokens
        self.attempts = 1 if settings is None else settings.attempts

    def groups(self, main: Group) -> list[Group]:
        return [main, *self.fallback]

    def session(self, request: AnswerRequest | EmbeddingRequest) -> str:
        """What requests that stay together have in common; empty: nothing."""
        sticky = None if self.settings is None else self.settings.sticky
        if sticky is None:
            return ""
        if sticky == "key":
            value = request.identity.key or request.tenant
        elif sticky == "tenant":
            value = request.tenant
        elif sticky == "user":
            value = request.user
        else:
            value = request.headers.get(sticky.partition(":")[2].lower(), "")
        return f"{request.tenant}\0{value}" if value else ""

    @property
    def hedge_after(self) -> float | None:
        after = None if self.settings is None else self.settings.hedge_after_s
        return self.first_tokens.p95 if after == "p95" else after


def group_of(
    targets: Sequence[WeightedTarget], known: Mapping[str, Target], *, degraded: bool = False
) -> Group:
    return Group([Choice(known[one.model], one.model, one.weight) for one in targets], degraded=degraded)


def fallback_groups(
    names: Sequence[str], routes: Mapping[str, RouteSettings], known: Mapping[str, Target]
) -> list[Group]:
    """Of models, and of routes with their own fallbacks behind them; each target group once."""
    found: list[Group] = []
    for name in names:
        if name in known:
            found.append(Group([Choice(known[name], name, 1.0)], degraded=True))
        else:
            route = routes[name]
            found.append(group_of(route.targets, known, degraded=True))
            found += fallback_groups(route.fallback, routes, known)
    return found


class NoTarget(TokentrailError):
    """Nobody can be asked: all targets of a name are ejected."""

    status = 503
    type = "server_error"
    code = "no_target"

    def __init__(self, message: str, *, retry_after: float) -> None:
        super().__init__(message)
        self.retry_after = retry_after


def unavailable(name: str, groups: Sequence[Group]) -> TokentrailError:
    """Why no target of `groups` can be asked."""
    targets = {choice.target for group in groups for choice in group.choices}
    if any(target.full and target.circuit.allows for target in targets):
        return Overloaded(f"All that answer for {name} are full. Try again later.")
    soonest = min((target.circuit.opens_in for target in targets), default=1.0)
    return NoTarget(
        f"None of those that answer for {name} can be asked now. Try again later.",
        retry_after=max(1.0, soonest),
    )
