"""Rules for texts."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from tokentrail.gateway.config.base import Name, Settings
from tokentrail.gateway.config.judges import HookSettings, ModerationSettings


class FilterSettings(Settings):
    """One rule: what is looked for (one of words, words_file, pattern, personal, hook and moderation), where, and what
    happens then.
    """

    name: Name = Field(description="Told in logs and metrics, and to clients whose request is refused.")
    words: list[str] | None = Field(None, description="Words and phrases, found however they are disguised.")
    words_file: str | None = Field(
        None,
        description="A text file with one word or phrase a line; # begins a comment. Relative to this file.",
    )
    inside_words: bool = Field(False, description="Also find words of an alphabet within longer ones.")
    pattern: str | None = Field(None, description="A regular expression in RE2's syntax.")
    longest: int | None = Field(
        None,
        gt=0,
        le=100_000,
        description="Characters of a match at most. A pattern without a bound of its own holds back the whole answer "
        "unless this says one.",
    )
    ignore_case: bool = Field(True, description="For patterns.")
    personal: list[Literal["email", "phone", "identity_card", "bank_card", "key"]] | None = Field(
        None, description="Kinds of personal data."
    )
    hook: HookSettings | None = Field(None, description="An HTTP endpoint that judges.")
    moderation: ModerationSettings | None = Field(None, description="A model that judges.")
    action: Literal["block", "mask", "flag", "log"] | None = Field(
        None, description="Must be given, but for hooks: without it, what is done is what the hook says."
    )
    applies_to: list[Literal["input", "output"]] = Field(["input", "output"], min_length=1)
    replacement: str | None = Field(
        None,
        max_length=200,
        description="In the place of what is masked; without it, a * for each character.",
    )
    category: Name | None = Field(
        None, description="The category that /v1/moderations tells; without it, the name."
    )

    @model_validator(mode="after")
    def _one_kind(self) -> FilterSettings:
        kinds = ("words", "words_file", "pattern", "personal", "hook", "moderation")
        given = [kind for kind in kinds if getattr(self, kind) is not None]
        if len(given) != 1:
            raise ValueError(
                f"give one of {', '.join(kinds)}" + (f", not {' and '.join(given)}" if given else "")
            )
        for option, kind in (("longest", "pattern"), ("inside_words", "words"), ("replacement", None)):
            if option not in self.model_fields_set:
                continue
            if kind is not None and not given[0].startswith(kind):
                raise ValueError(f"{option} is for {kind}, and this rule has {given[0]}")
            if option == "replacement" and self.action != "mask" and given[0] != "hook":
                raise ValueError(f"replacement is for the action mask, not {self.action}")
        if self.action is None and given[0] != "hook":
            raise ValueError("action must be given: block, mask, flag or log")
        return self
