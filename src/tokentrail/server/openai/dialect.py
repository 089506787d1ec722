"""What OpenAI's two ways of generating share."""

from __future__ import annotations

from typing import Any, Generic, TypeVar

from tokentrail.answer import Prompt
from tokentrail.protocol import SamplingParams
from tokentrail.server.errors import error_json
from tokentrail.server.generation import Question
from tokentrail.server.openai.requests import GenerationRequest
from tokentrail.server.sse import MEDIA_TYPE, raw_event

Body = TypeVar("Body", bound=GenerationRequest)


class OpenAIDialect(Generic[Body]):
    """A request's model, whether it is streamed, and what it asks for beside the prompts."""

    def __init__(self, body: Body) -> None:
        self.body = body

    @property
    def model(self) -> str:
        return self.body.model

    @property
    def streaming(self) -> bool:
        return bool(self.body.stream)

    def ask(self, prompts: list[Prompt], sampling: SamplingParams, **options: Any) -> Question:
        body = self.body
        return Question(
            prompts=prompts,
            sampling=sampling,
            unset=body.unset(),
            truncate_prompt_tokens=body.truncate_prompt_tokens,
            token_ids=bool(body.return_token_ids),
            tokens_by_id=bool(body.return_tokens_as_token_ids),
            priority=body.priority or 0,
            cache_salt=body.cache_salt,
            user=body.user,
            **options,
        )


class SSEStream:
    """Errors within a stream of events: one event, and no [DONE]."""

    media_type = MEDIA_TYPE

    def failed(self, error: Exception) -> bytes:
        return raw_event(error_json(error))
