"""Rules that tell which scenario a request belongs to."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tokentrail.answer import AnswerRequest
from tokentrail.gateway.config import RuleSettings
from tokentrail.gateway.libraries import library
from tokentrail.gateway.routing.question import characters, has_tools, language, last_message
from tokentrail.protocol import InvalidRequest


class Rule:
    """One rule. All that its settings name must be so."""

    def __init__(self, settings: RuleSettings) -> None:
        """Raises `InvalidRequest` for what is no regular expression."""
        self._settings = settings
        self._search: Callable[[str], Any] | None = None
        if settings.pattern is not None:
            re2 = library("re2")
            options = re2.Options()
            options.case_sensitive = not settings.ignore_case
            options.log_errors = False
            try:
                self._search = re2.compile(settings.pattern, options).search
            except re2.error as error:
                raise InvalidRequest(f"is no regular expression of RE2: {error}") from None
        self._headers = {name.lower(): value for name, value in settings.headers.items()}

    def matches(self, request: AnswerRequest) -> bool:
        wanted = self._settings
        if wanted.tools is not None and has_tools(request) != wanted.tools:
            return False
        if any(request.headers.get(name) != value for name, value in self._headers.items()):
            return False
        if wanted.min_chars is not None or wanted.max_chars is not None:
            count = characters(request)
            if count < (wanted.min_chars or 0):
                return False
            if wanted.max_chars is not None and count > wanted.max_chars:
                return False
        if self._search is None and wanted.language is None:
            return True
        text = last_message(request)
        if wanted.language is not None and language(text) not in wanted.language:
            return False
        return self._search is None or self._search(text) is not None
