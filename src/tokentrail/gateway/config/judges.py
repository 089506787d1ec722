"""Rules that ask somebody else."""

from __future__ import annotations

from typing import Any, Literal
from urllib.parse import urlsplit

from pydantic import Field, field_validator, model_validator

from tokentrail.gateway.config.base import Name, Settings

_MOST_CATEGORIES = 25


class _JudgeSettings(Settings):
    timeout_s: float = Field(
        default=5, gt=0, le=300, description="For a verdict, with the time in line for it."
    )
    concurrency: int = Field(default=16, ge=1, le=1000, description="Texts that are judged at a time.")
    on_failure: Literal["block", "pass"] = Field(
        "block",
        description="Without a verdict: block refuses the request with 503, or ends its stream with an error; "
        "pass lets the text pass.",
    )
    window: int | None = Field(
        None,
        ge=1,
        le=1_000_000,
        description="Characters of an answer that are held back and judged at a time. Without it, the whole answer is.",
    )


def _checked(url: str | None) -> str | None:
    if url is not None:
        try:
            parts = urlsplit(url)
        except ValueError:
            parts = urlsplit("")
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError("must be a URL such as http://127.0.0.1:9000/judge")
    return url


class HookSettings(_JudgeSettings):
    """An HTTP endpoint that judges texts."""

    url: str = Field(
        description="Is sent {text, direction, rule, tenant, model} by POST, and answers {verdict, spans}."
    )
    headers: dict[str, str] = Field({}, description="Sent along: ${VAR} keeps keys out of the file.")

    _url = field_validator("url")(_checked)


class ModerationSettings(_JudgeSettings):
    """A model that judges texts: one of this deployment, or one behind an API of OpenAI's form."""

    model: str | None = Field(
        None, min_length=1, description="A model of this deployment; with url, the name that is sent along."
    )
    url: str | None = Field(None, description="Of an API like OpenAI's: https://…/v1/moderations.")
    api_key: str | None = Field(None, min_length=1, description="For url: ${VAR} keeps it out of the file.")
    categories: dict[Name, str | None] | None = Field(
        None,
        min_length=1,
        max_length=_MOST_CATEGORIES,
        description="What is looked for: a list of names, or names and what they mean. With url, those that count "
        "(without it, all).",
    )
    threshold: float | None = Field(
        None,
        gt=0,
        le=1,
        description="The score from which on something is found: 0.5 for a model; with url, as the API says.",
    )

    _url = field_validator("url")(_checked)

    @field_validator("categories", mode="before")
    @classmethod
    def _names(cls, value: Any) -> Any:
        return dict.fromkeys(value) if isinstance(value, list) and all(map(_is_text, value)) else value

    @model_validator(mode="after")
    def _one_judge(self) -> ModerationSettings:
        if self.url is None:
            if self.model is None:
                raise ValueError("give a model of this deployment, or the url of an API")
            if self.categories is None:
                raise ValueError("give categories: the model must be told what to look for")
            if self.api_key is not None:
                raise ValueError("api_key is for url")
        return self


def _is_text(value: Any) -> bool:
    return isinstance(value, str)
