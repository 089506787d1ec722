"""YAML → settings; each mistake is told with its line."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from tokentrail.gateway.config.models import LOCAL, REMOTE
from tokentrail.gateway.config.settings import Deployment
from tokentrail.gateway.libraries import library
from tokentrail.protocol import TokentrailError

_LARGEST = 16 * 1024 * 1024
_MOST_VALUES = 500_000
"""YAML's aliases multiply what they name."""
_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")
_ALTERNATIVES = frozenset({LOCAL, REMOTE})
_SECRETS = frozenset({"key", "api_key", "headers", "pepper", "password", "token", "secret"})
"""Settings whose values are never told."""
_HIDDEN = "…"
_Path = tuple[int | str, ...]


class ConfigError(TokentrailError):
    """A deployment file that cannot be used: each mistake on its own line, as `file:line: setting: what is wrong`."""

    lines = True


def load(path: str | Path) -> Deployment:
    """Read and check a file. Raises `ConfigError`."""
    file = Path(path)
    try:
        with file.open("rb") as stream:
            raw = stream.read(_LARGEST + 1)
    except OSError as error:
        raise ConfigError(f"{file}: cannot be read: {error.strerror}.") from None
    if len(raw) > _LARGEST:
        raise ConfigError(
            f"{file}: is larger than {_LARGEST // 2**20} MiB. Put long lists into files of their own."
        )
    try:
        text = raw.decode()
    except UnicodeDecodeError as error:
        line = raw[: error.start].count(b"\n") + 1
        raise ConfigError(f"{file}:{line}: is not UTF-8 text.") from None
    return parse(text, str(file))


def parse(text: str, name: str = "deploy.yaml") -> Deployment:
    """Check a file's text. `${NAME}` is replaced by the environment's variable: secrets need not be in the file."""
    yaml = library("yaml")
    try:
        node = yaml.compose(text, Loader=yaml.SafeLoader)
    except RecursionError:
        raise ConfigError(f"{name}: is nested too deeply.") from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f":{mark.line + 1}" if mark is not None else ""
        raise ConfigError(
            f"{name}{where}: is not YAML: {getattr(error, 'problem', None) or error}."
        ) from None
    lines: dict[_Path, int] = {(): 1}
    values = _Values(yaml, name, lines)
    try:
        value = {} if node is None else values.of(node, ())
    except RecursionError:
        raise ConfigError(f"{name}: is nested too deeply.") from None
    if not isinstance(value, dict):
        raise ConfigError(
            f"{name}:1: must be a mapping of settings, such as `filters:`, not {_plain(value)}."
        )
    try:
        deployment = Deployment.model_validate(value)
    except ValidationError as error:
        told = [_told(name, lines, values.from_environment, one) for one in error.errors()]
        raise ConfigError("\n".join(told)) from None
    deployment._file, deployment._lines = name, lines
    found = [f"{deployment.where(*path)}: {_dotted(path)}: {what}." for path, what in deployment.problems()]
    if found:
        raise ConfigError("\n".join(found))
    return deployment


def schema() -> dict[str, Any]:
    """The JSON schema of a deployment file, for editors."""
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **Deployment.model_json_schema()}


class _Values:
    """YAML's nodes → values, and where they stand."""

    def __init__(self, yaml: Any, name: str, lines: dict[_Path, int]) -> None:
        self._yaml = yaml
        self._name = name
        self._lines = lines
        self._loader = yaml.SafeLoader("")
        self._left = _MOST_VALUES
        self.from_environment: set[_Path] = set()
        """Where values of the environment stand: secrets, as a rule."""

    def of(self, node: Any, path: _Path) -> Any:
        yaml = self._yaml
        line: int = node.start_mark.line + 1
        self._lines[path] = line
        self._left -= 1
        if self._left < 0:
            raise ConfigError(
                f"{self._name}:{line}: has more than {_MOST_VALUES:,} values, those that aliases (*name) repeat "
                "included. Put long lists into files of their own."
            )
        if isinstance(node, yaml.SequenceNode):
            return [self.of(item, (*path, at)) for at, item in enumerate(node.value)]
        if not isinstance(node, yaml.MappingNode):
            try:
                value = self._loader.construct_object(node)
            except (ValueError, yaml.YAMLError) as error:  # !!int x, 2026-13-01, a number of 5000 digits
                what = getattr(error, "problem", None) or error
                raise ConfigError(f"{self._name}:{line}: {_dotted(path)}: is not a value: {what}.") from None
            if isinstance(value, str) and _VARIABLE.search(value):
                self.from_environment.add(path)
                return self._filled(value, line)
            return value
        found: dict[str, Any] = {}
        for key_node, value_node in node.value:
            at = key_node.start_mark.line + 1
            if not isinstance(key_node, yaml.ScalarNode):
                raise ConfigError(f"{self._name}:{at}: a setting's name must be a word.")
            key: str = key_node.value
            inner = (*path, key)
            if key in found:
                raise ConfigError(f"{self._name}:{at}: {_dotted(inner)} is given twice.")
            found[key] = self.of(value_node, inner)
            self._lines[inner] = at
        return found

    def _filled(self, text: str, line: int) -> str:
        def value(match: re.Match[str]) -> str:
            found = os.environ.get(match[1])
            if found is None:
                raise ConfigError(f"{self._name}:{line}: the environment has no variable {match[1]}.")
            return found

        return _VARIABLE.sub(value, text)


def _told(name: str, lines: dict[_Path, int], hidden: set[_Path], error: Any) -> str:
    given = _written(error["loc"], lines)
    path = given
    while path not in lines:
        path = path[:-1]
    field = _dotted(given)
    if error["type"] == "extra_forbidden":
        what = "there is no such setting"
    elif error["type"] == "missing":
        what = "must be given"
    elif error["type"] == "value_error":
        what = str(error["ctx"]["error"])
    elif error["type"] in ("model_type", "model_attributes_type", "dict_type"):
        what = f"must be settings of its own (names and values), not {_plain(_shown(error['input'], given, hidden))}"
    else:
        what = re.sub(r"^Input should be (a valid )?", "must be ", error["msg"])
        what += f", not {_plain(_shown(error['input'], given, hidden))}"
    return f"{name}:{lines[path]}: {field + ': ' if field else ''}{what}."


def _shown(value: Any, path: _Path, hidden: set[_Path]) -> Any:
    """A value without the secrets in it."""
    # (Behind a value's path stands, in a union, which kind it might have been.)
    if any(path[:end] in hidden or path[end - 1] in _SECRETS for end in range(1, len(path) + 1)):
        return _HIDDEN
    if isinstance(value, dict):
        return {name: _shown(inner, (*path, name), hidden) for name, inner in value.items()}
    if isinstance(value, list):
        return [_shown(inner, (*path, at), hidden) for at, inner in enumerate(value)]
    return value


def _written(path: _Path, lines: dict[_Path, int]) -> _Path:
    """Without the names of alternatives, which the checker puts between a setting and its parts."""
    found: _Path = ()
    for part in path:
        if part in _ALTERNATIVES and (*found, part) not in lines:
            continue
        found = (*found, part)
    return found


def _plain(value: Any) -> str:
    if value is _HIDDEN:
        return "what is there"
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:60]}…"


def _dotted(path: _Path) -> str:
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path).lstrip(".")
