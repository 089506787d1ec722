"""A deployment's rules, made from its settings."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tokentrail.gateway.config import ConfigError, FilterSettings
from tokentrail.gateway.filters.patterns import Pattern
from tokentrail.gateway.filters.personal import Personal
from tokentrail.gateway.filters.rules import Action, Rule
from tokentrail.gateway.filters.spans import Finder
from tokentrail.gateway.filters.words import WordList

_LARGEST = 256 * 1024 * 1024


def build_rules(settings: Sequence[FilterSettings], folder: Path) -> list[Rule]:
    """`folder`: where files are, if their paths are relative. Raises `ConfigError`."""
    return [_rule(one, f"filters[{at}]", folder) for at, one in enumerate(settings)]


def _rule(settings: FilterSettings, where: str, folder: Path) -> Rule:
    try:
        finder = _finder(settings, folder)
    except ValueError as error:
        raise ConfigError(f"{where} ({settings.name}): {error}.") from None
    return Rule(
        name=settings.name,
        finder=finder,
        action=Action(settings.action),
        inputs="input" in settings.applies_to,
        outputs="output" in settings.applies_to,
        replacement=settings.replacement,
        category=settings.category or settings.name,
    )


def _finder(settings: FilterSettings, folder: Path) -> Finder:
    if settings.pattern is not None:
        return Pattern(settings.pattern, longest=settings.longest, ignore_case=settings.ignore_case)
    if settings.personal is not None:
        return Personal(tuple(settings.personal))
    if settings.words_file is not None:
        return WordList(_words_of(folder / settings.words_file), inside_words=settings.inside_words)
    return WordList(settings.words or (), inside_words=settings.inside_words)


def _words_of(path: Path) -> list[str]:
    try:
        if path.stat().st_size > _LARGEST:
            raise ValueError(f"{path} is larger than {_LARGEST // 2**20} MiB")
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ValueError(f"{path} is not UTF-8 text") from None
    words = (line.strip() for line in text.splitlines())
    return [word for word in words if word and not word.startswith("#")]
