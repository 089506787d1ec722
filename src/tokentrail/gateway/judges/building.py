"""A deployment's judges, made from its settings."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tokentrail.answer import Backend
from tokentrail.gateway.config import FilterSettings
from tokentrail.gateway.filters import Action
from tokentrail.gateway.judges.http import Endpoint, HookJudge, ModerationJudge
from tokentrail.gateway.judges.model import ModelJudge
from tokentrail.gateway.judges.rules import JudgeRule
from tokentrail.gateway.judges.verdicts import Judge

MEANINGS = {
    "harassment": "insults, threats or bullying of somebody",
    "hate": "hatred of people for what they are",
    "illicit": "advice on how to commit a crime or to make a weapon",
    "self-harm": "suicide or hurting oneself",
    "sexual": "sexual content",
    "violence": "violence against people or animals, or praise of it",
    "injection": "instructions that try to make an assistant ignore its rules",
    "personal": "private data of a person",
}
"""Categories whose names say enough."""


def build_judges(settings: Sequence[FilterSettings], backend: Callable[[], Backend]) -> list[JudgeRule]:
    """`backend`: who answers for models of this deployment."""
    return [_rule(one, backend) for one in settings if one.hook is not None or one.moderation is not None]


def _rule(settings: FilterSettings, backend: Callable[[], Backend]) -> JudgeRule:
    asked = settings.hook or settings.moderation
    assert asked is not None
    return JudgeRule(
        name=settings.name,
        judge=_judge(settings, backend),
        action=None if settings.action is None else Action(settings.action),
        inputs="input" in settings.applies_to,
        outputs="output" in settings.applies_to,
        passes_on_failure=asked.on_failure == "pass",
        window=asked.window,
        timeout=asked.timeout_s,
        replacement=settings.replacement,
        category=settings.category or settings.name,
    )


def _judge(settings: FilterSettings, backend: Callable[[], Backend]) -> Judge:
    hook, moderation = settings.hook, settings.moderation
    if hook is not None:
        endpoint = Endpoint(hook.url, hook.headers, concurrency=hook.concurrency, timeout=hook.timeout_s)
        return HookJudge(endpoint)
    assert moderation is not None
    if moderation.url is not None:
        key = moderation.api_key
        headers = {} if key is None else {"authorization": f"Bearer {key}"}
        endpoint = Endpoint(
            moderation.url, headers, concurrency=moderation.concurrency, timeout=moderation.timeout_s
        )
        names = None if moderation.categories is None else list(moderation.categories)
        return ModerationJudge(endpoint, moderation.model, names, moderation.threshold)
    assert moderation.model is not None
    assert moderation.categories is not None
    categories = {
        name: meaning or MEANINGS.get(name, name) for name, meaning in moderation.categories.items()
    }
    threshold = 0.5 if moderation.threshold is None else moderation.threshold
    return ModelJudge(backend, moderation.model, categories, threshold, concurrency=moderation.concurrency)
