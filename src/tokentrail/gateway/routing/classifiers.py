"""Who tells scenarios apart where neither the name that is asked for nor a rule does.

`Factory` is the entry point for one's own: a deployment file names it as `package.module:callable`.
"""

from __future__ import annotations

import importlib
import math
import re
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, TypeAlias

import msgspec

from tokentrail.answer import AnswerRequest, Backend, ChatOptions, ChatPrompt, collect
from tokentrail.gateway.config import ClassifierSettings
from tokentrail.gateway.routing.question import last_message
from tokentrail.protocol import InvalidRequest, SamplingParams, StructuredOutputsParams

Classifier: TypeAlias = Callable[[AnswerRequest], Awaitable["str | None"]]
"""A request → the name of a scenario, or None: none of them. It may fail, and is not waited for forever."""


class Context(msgspec.Struct, frozen=True, kw_only=True):
    """What a classifier is made of."""

    examples: Mapping[str, Sequence[str]]
    """Of each scenario of the route."""
    options: Mapping[str, Any]
    """As the deployment file has them."""
    min_confidence: float = 0.0
    backend: Backend | None = None
    """Of the model that `use: model` names."""
    model: str = ""


Factory: TypeAlias = Callable[[Context], Classifier]


def build(settings: ClassifierSettings, context: Context) -> Classifier:
    """Raises `InvalidRequest` that says why there is none."""
    if settings.use == "examples":
        return ExampleClassifier(context)
    if settings.use == "model":
        return ModelClassifier(context)
    module, _, name = settings.use.partition(":")
    try:
        factory: Factory = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise InvalidRequest(f"{settings.use!r} cannot be imported: {error}") from None
    try:
        made = factory(context)
    except Exception as error:
        raise InvalidRequest(f"{settings.use!r} failed: {type(error).__name__}: {error}") from None
    if not callable(made):
        raise InvalidRequest(f"{settings.use!r} made {made!r}, which cannot be called")
    return made


_WORD = re.compile(r"[^\W\d_\u3400-\u9fff\u3040-\u30ff]+|[\u3400-\u9fff\u3040-\u30ff]+|[{}()\[\];=<>+*/%^√∑]")
_OTHER = "\0other"
_EVERYDAY = (
    "hello how are you doing today",
    "what is the capital of this country and where does it lie",
    "who was the first person that did this and when was it",
    "tell me about yourself and what you can do for me",
    "please give me some advice about what I should eat or buy",
    "thank you that was very good, can you say a little more about it",
    "what time is it there and how is the weather going to be",
    "你好，今天怎么样",
    "请问这个国家的首都是哪里",
    "谢谢，你能再说一点吗",
    "你可以做什么，请介绍一下你自己",
    "今天天气怎么样，我应该吃什么",
)
"""What belongs to no scenario, in whatever deployment."""


def features(text: str) -> list[str]:
    """Words, Chinese and Japanese characters and pairs of them, and signs."""
    found: list[str] = []
    for word in _WORD.findall(text.lower()):
        if "\u3040" <= word[0] <= "\u9fff":
            found += [*word, *(word[at : at + 2] for at in range(len(word) - 1))]
        else:
            found.append(word)
    return found


class ExampleClassifier:
    """Naive Bayes (multinomial, with Laplace's smoothing) over `features`, learned from the scenarios' examples and
    from everyday requests that are none of them.
    """

    def __init__(self, context: Context) -> None:
        examples = {**context.examples, _OTHER: (*_EVERYDAY, *context.options.get("other", ()))}
        counts = {name: Counter(features("\n".join(texts))) for name, texts in examples.items()}
        known = set().union(*counts.values())
        self._least = context.min_confidence
        self._logs = {
            name: {word: math.log((count[word] + 1) / (count.total() + len(known))) for word in known}
            for name, count in counts.items()
        }
        self._known = known

    def scores(self, text: str) -> dict[str, float]:
        """Probabilities of scenarios; what is missing to 1 is that of none. Words that nobody has are not counted."""
        words = [word for word in features(text) if word in self._known]
        sums = {name: sum(logs[word] for word in words) for name, logs in self._logs.items()}
        # Words of a sentence say much the same: each further one counts less.
        scale = max(1.0, math.sqrt(len(words)))
        most = max(sums.values())
        odds = {name: math.exp((value - most) / scale) for name, value in sums.items()}
        total = sum(odds.values())
        return {name: value / total for name, value in odds.items() if name != _OTHER}

    async def __call__(self, request: AnswerRequest) -> str | None:
        scores = self.scores(last_message(request))
        best = max(scores, key=lambda name: scores[name])
        return best if scores[best] >= self._least else None


_TEXT_SHOWN = 2000


class ModelClassifier:
    """Asks a model, whose answer can be nothing but one of the scenarios' names, or `other`."""

    def __init__(self, context: Context) -> None:
        assert context.backend is not None
        self._backend = context.backend
        self._model = context.model
        self._names = [*context.examples]
        self._examples = context.examples

    async def __call__(self, request: AnswerRequest) -> str | None:
        shown = [
            f"Request: {text[:200]}\nKind: {name}"
            for name, texts in self._examples.items()
            for text in texts[:2]
        ]
        choices = (*self._names, "other")
        message = "\n\n".join(
            [
                f"Say of which kind the last request is: {', '.join(choices)}.",
                *shown,
                f"Request: {last_message(request)[:_TEXT_SHOWN]}\nKind:",
            ]
        )
        asked = AnswerRequest(
            id=f"{request.id}.kind",
            prompts=[ChatPrompt(messages=[{"role": "user", "content": message}])],
            sampling=SamplingParams(
                temperature=0.0, max_tokens=32, structured_outputs=StructuredOutputsParams(choice=choices)
            ),
            chat=ChatOptions(),
            model=self._model,
            endpoint="classifier",
            identity=request.identity,
            salt=request.salt,
        )
        (choice,) = await collect(await self._backend.open(asked))
        return choice.text if choice.text in self._names else None
