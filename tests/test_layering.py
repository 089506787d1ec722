"""Imports point downwards only, as docs/architecture.md ("The rooms") draws them.

Every `import` statement in the sources counts, those inside functions and under `TYPE_CHECKING` included: a
lazy import saves start-up time, it does not make a wall move.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).resolve().parents[1] / "src"
PACKAGE = SOURCE / "tokentrail"

# Room → the rooms it may call directly. What those may call, it may too: the order is what matters.
CALLS: dict[str, set[str]] = {
    "protocol": set(),
    "ops": {"protocol"},
    "checkpoints": {"protocol"},
    "text": {"checkpoints", "protocol"},
    "models": {"ops", "checkpoints", "protocol"},
    "engine": {"models", "text", "ops", "protocol"},
    "hub": {"checkpoints", "protocol"},
    "journey": {"protocol"},
    "observability": {"protocol"},
    "answer": {"engine", "text", "hub", "journey", "observability", "protocol"},
    "gateway": {"answer", "journey", "observability", "protocol"},
    "server": {"gateway", "answer", "journey", "observability", "protocol"},
    "cli": {"server", "gateway", "answer", "journey", "observability", "protocol"},
}
# Modules of the root. `tokentrail/__init__.py` hands out the public names, so it may know every room
# but the command line; nothing in a room may import a name from it except the version.
ROOT_MODULES = {"__init__": set(CALLS) - {"cli"}, "__main__": {"cli"}}
ROOT_NAMES = {"__version__"}


def reachable(room: str) -> set[str]:
    found = {room}
    pending = [room]
    while pending:
        for below in CALLS[pending.pop()] - found:
            found.add(below)
            pending.append(below)
    return found


def imported_modules(path: Path) -> Iterator[tuple[int, str]]:
    """(line, absolute dotted name) of each import; for `from x import y` the name is `x.y`."""
    relative = path.relative_to(SOURCE).with_suffix("").parts
    package = relative if path.name == "__init__.py" else relative[:-1]
    if path.name == "__init__.py":
        package = relative[:-1]
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"), filename=str(path))):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom):
            base = list(package[: len(package) - node.level + 1]) if node.level else []
            if node.module:
                base.append(node.module)
            for alias in node.names:
                yield node.lineno, ".".join([*base, alias.name])
        elif (
            isinstance(node, ast.Call)
            and isinstance(node.func, (ast.Name, ast.Attribute))
            and (node.func.id if isinstance(node.func, ast.Name) else node.func.attr)
            in {"import_module", "__import__"}
            and node.args
            and isinstance(node.args[0], ast.Constant)
            and isinstance(node.args[0].value, str)
        ):
            yield node.lineno, node.args[0].value


def violations(path: Path) -> list[str]:
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    if len(parts) == 1:
        assert parts[0] in ROOT_MODULES, (
            f"{path.name}: a module of the package's root that this test does not know"
        )
        allowed = ROOT_MODULES[parts[0]]
    else:
        assert parts[0] in CALLS, f"{parts[0]}/: a room that this test and docs/architecture.md do not know"
        allowed = reachable(parts[0])
    found = []
    for line, name in imported_modules(path):
        top, _, rest = name.partition(".")
        if top != "tokentrail":
            continue
        target = rest.split(".")[0]
        if target not in allowed and target not in ROOT_NAMES:
            found.append(f"{path.relative_to(SOURCE)}:{line}: imports {name}")
    return found


def test_imports_point_downwards_only() -> None:
    files = sorted(PACKAGE.rglob("*.py"))
    assert files
    found = [violation for path in files for violation in violations(path)]
    assert not found, "\n".join(["imports that point upwards or sideways:", *found])


def test_every_room_says_what_it_is_for() -> None:
    for folder in sorted(path for path in PACKAGE.iterdir() if path.is_dir() and path.name != "__pycache__"):
        room = folder.name
        text = ast.get_docstring(ast.parse((folder / "__init__.py").read_text(encoding="utf-8")))
        assert text, f"{room}/__init__.py has no docstring"
        assert "to come" not in text, f"{room}/__init__.py does not say what the room is for"


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("from tokentrail.server import run", "tokentrail.server.run"),
        ("import tokentrail.cli.app", "tokentrail.cli.app"),
        ("def f():\n    from tokentrail.answer import LLM", "tokentrail.answer.LLM"),
        ("from ..engine import config", "tokentrail.engine.config"),
        ("from . import model", "tokentrail.checkpoints.model"),
        ("import importlib\nimportlib.import_module('tokentrail.cli')", "tokentrail.cli"),
    ],
)
def test_the_check_sees_each_kind_of_import(
    source: str, expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    room = tmp_path / "tokentrail" / "checkpoints"
    room.mkdir(parents=True)
    module = room / "sample.py"
    module.write_text(source)
    monkeypatch.setattr(sys.modules[__name__], "SOURCE", tmp_path)
    monkeypatch.setattr(sys.modules[__name__], "PACKAGE", tmp_path / "tokentrail")
    assert expected in [name for _, name in imported_modules(module)]
    below = expected.split(".")[1] in reachable("checkpoints")
    assert bool(violations(module)) is not below


def loaded_by(statement: str, *modules: str) -> list[str]:
    """Which of `modules` a fresh interpreter has loaded after `statement`."""
    code = f"import sys; {statement}; print(' '.join(m for m in {modules!r} if m in sys.modules))"
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    return result.stdout.split()


def test_the_command_line_starts_without_heavy_imports() -> None:
    heavy = (
        "numpy",
        "fastapi",
        "pydantic",
        "httpx",
        "tokenizers",
        "jinja2",
        "rich.progress",
        "huggingface_hub",
        "tokentrail.server",
    )
    assert loaded_by("import tokentrail.cli.app", *heavy) == []


def test_the_engine_process_is_free_of_server_imports() -> None:
    heavy = (
        "fastapi",
        "starlette",
        "pydantic",
        "uvicorn",
        "httpx",
        "rich",
        "typer",
        "jinja2",
        "prometheus_client",
        "huggingface_hub",
        "tokentrail.hub",
    )
    assert loaded_by("import tokentrail.engine.process", *heavy) == []
