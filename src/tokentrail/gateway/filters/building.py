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


_Stamp = tuple[int, int, int]


class RuleBuilder:
    """Rules from settings. Those whose settings and files are the same as the last time stay."""

    def __init__(self, folder: Path) -> None:
        """`folder`: where files are, if their paths are relative."""
        self._folder = folder
        self._built: list[tuple[FilterSettings, _Stamp | None, Rule]] = []
        self._told: list[_Stamp | None] = []
        """Of which files it was told last that they have changed."""

    def build(self, settings: Sequence[FilterSettings]) -> list[Rule]:
        """Raises `ConfigError`; what was built before is as it was, then."""
        built = []
        for at, one in enumerate(settings):
            if one.hook is not None or one.moderation is not None:
                continue
            stamp = self._stamp(one)
            same = (rule for before, then, rule in self._built if (before, then) == (one, stamp))
            built.append((one, stamp, next(same, None) or _rule(one, f"filters[{at}]", self._folder)))
        self._built = built
        return [rule for _, _, rule in built]

    def files_changed(self) -> bool:
        """Whether a file is not any more what a rule was built from; of each change it is told once. A file that is
        gone has not changed: it may just be on its way.
        """
        stamps = [self._stamp(settings) for settings, _, _ in self._built]
        changed = any(
            now is not None and now != then for now, (_, then, _) in zip(stamps, self._built, strict=True)
        )
        told, self._told = self._told, stamps
        return changed and told != stamps

    def _stamp(self, settings: FilterSettings) -> _Stamp | None:
        if settings.words_file is None:
            return None
        try:
            status = (self._folder / settings.words_file).stat()
        except OSError:
            return None
        return status.st_mtime_ns, status.st_size, status.st_ino


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
        if path.exists() and not path.is_file():  # a pipe or a device may give nothing, or never end
            raise ValueError(f"{path} is not a regular file")
        if path.stat().st_size > _LARGEST:
            raise ValueError(f"{path} is larger than {_LARGEST // 2**20} MiB")
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ValueError(f"{path} is not UTF-8 text") from None
    words = (line.strip() for line in text.splitlines())
    return [word for word in words if word and not word.startswith("#")]
