"""The repository's own promises: twins that agree, tables that are complete, commands that exist."""

from __future__ import annotations

import re
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
import typer

from tokentrail import __version__
from tokentrail.cli.app import app

ROOT = Path(__file__).resolve().parents[1]


def read(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def code_blocks(text: str) -> list[str]:
    """Fenced blocks without their comments, which may be translated."""
    blocks = re.findall(r"^```\w*\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    return ["\n".join(line.split("  #")[0].rstrip() for line in block.splitlines()) for block in blocks]


def test_the_walks_are_twins() -> None:
    english, chinese = read("docs/walk.md"), read("docs/walk.zh-CN.md")
    assert code_blocks(english) == code_blocks(chinese)
    pictures = [re.findall(r"\]\((images/[\w-]+)[\w.-]*\.png\)", text) for text in (english, chinese)]
    assert pictures[0] == pictures[1]


def test_pictures_are_small() -> None:
    for path in (ROOT / "docs" / "images").iterdir():
        assert path.stat().st_size <= 200_000, path.name


def test_the_readmes_are_twins() -> None:
    english, chinese = read("README.md"), read("README.zh-CN.md")
    assert code_blocks(english) == code_blocks(chinese)
    levels = [re.findall(r"^(#+) ", text, re.MULTILINE) for text in (english, chinese)]
    assert levels[0] == levels[1]
    flags = [re.findall(r"^\| `(-[^`]+)`", text, re.MULTILINE) for text in (english, chinese)]
    assert flags[0]
    assert flags[0] == flags[1]


def test_ci_runs_the_readmes_test_command() -> None:
    install, test = re.findall(r"^pip install -e '\.\[([\w,]+)\]' && (.+)$", read("README.md"), re.MULTILINE)[
        :2
    ]
    assert install[1].startswith("tokentrail serve")
    assert test[1] == "pytest -n auto --dist worksteal"
    script = read(".ci/run")
    extras = re.search(r"pip install -q -e '\.\[([\w,]+)\]'", script)
    assert extras is not None
    assert set(test[0].split(",")) <= set(extras[1].split(","))
    assert script.rstrip().endswith("\npytest -n auto --dist worksteal")


def requirements() -> set[str]:
    names = set()
    for requirement in metadata.requires("tokentrail") or []:
        if "extra ==" not in requirement:
            match = re.match(r"[\w.-]+", requirement)
            assert match is not None
            names.add(match[0].lower())
    return names


def test_every_dependency_is_explained() -> None:
    section = read("docs/architecture.md").split("\n## Dependencies\n")[1].split("\n## ")[0]
    table = "\n".join(line.split("|")[1] for line in section.splitlines() if line.startswith("| "))
    missing = {name for name in requirements() if not re.search(rf"\b{re.escape(name)}\b", table)}
    assert not missing


def test_version() -> None:
    assert metadata.version("tokentrail") == __version__
    assert re.search(rf"^## {re.escape(__version__)} ", read("CHANGELOG.md"), re.MULTILINE)


DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("**/*.md")])


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_links_lead_somewhere(path: Path) -> None:
    for target in re.findall(r"\]\(([^)#\s]+)(?:#[\w-]*)?\)", path.read_text(encoding="utf-8")):
        if "://" not in target:
            assert (path.parent / target).exists(), f"{path.name} links to {target}, which is not there"


def test_documented_flags_exist() -> None:
    """Each `--flag` of a `tokentrail` command shown in the documents is in that command's help."""
    flags = flags_by_command()
    for path in DOCUMENTS:
        for block in code_blocks(path.read_text(encoding="utf-8")):
            for line in block.replace("\\\n", " ").splitlines():
                for command, rest in re.findall(
                    r"\btokentrail ((?:bench |keys |tenants )?[a-z]+)\b([^|&;]*)", line
                ):
                    for flag in re.findall(r"(?<!\S)--[a-z][\w-]*", rest):
                        assert flag in flags[command], f"{path.name}: {line}"


def flags_by_command() -> dict[str, set[str]]:
    """Command, such as `bench serve` → its flags."""
    found: dict[str, set[str]] = {}

    def collect(command: Any, name: str) -> None:
        options = (parameter for parameter in command.params if parameter.param_type_name == "option")
        found[name] = {"--help", *(flag for o in options for flag in (*o.opts, *o.secondary_opts))}
        for child, below in getattr(command, "commands", {}).items():
            collect(below, f"{name} {child}".strip())

    collect(typer.main.get_command(app), "")
    return found
