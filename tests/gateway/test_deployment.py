"""Deployment files: what they may say, and how each mistake is told."""

from __future__ import annotations

import asyncio
import itertools
import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tokentrail.cli.app import app
from tokentrail.gateway import ConfigError, Gateway
from tokentrail.gateway.config import load, parse, schema
from tokentrail.gateway.filters.building import RuleBuilder
from tokentrail.gateway.watching import Watch

GOOD = """
filters:
  - name: rude
    words: [damn, 违禁词]
    action: mask
    replacement: "[…]"
    category: harassment
  - name: private
    personal: [phone, email]
    action: block
    applies_to: [input]
  - name: orders
    pattern: "ORD-[0-9]{4,8}"
    action: flag
  - name: from a file
    words_file: words.txt
    action: log
"""


def test_a_good_file_is_understood(tmp_path: Path) -> None:
    (tmp_path / "words.txt").write_text("# a comment\n\nfoo bar\n坏话\n", encoding="utf-8")
    (tmp_path / "deploy.yaml").write_text(GOOD, encoding="utf-8")
    gateway = Gateway(tmp_path / "deploy.yaml")
    assert [(rule.name, rule.action.value) for rule in gateway.rules] == [
        ("rude", "mask"), ("private", "block"), ("orders", "flag"), ("from a file", "log"),
    ]  # fmt: skip
    assert [rule.outputs for rule in gateway.rules] == [True, False, True, True]
    assert gateway.rules[0].category == "harassment"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("filters:\n  - name: x\n    words: [a]\n    action: kill\n",
         "deploy.yaml:4: filters[0].action: must be 'block', 'mask', 'flag' or 'log', not 'kill'."),
        ("filters:\n  - name: x\n    words: [a]\n    action: mask\n    colour: red\n",
         "deploy.yaml:5: filters[0].colour: there is no such setting."),
        ("filter: []\n", "deploy.yaml:1: filter: there is no such setting."),
        ("filters:\n  - name: x\n    action: mask\n",
         "deploy.yaml:2: filters[0]: give one of words, words_file, pattern, personal, hook, moderation."),
        ("filters:\n  - name: x\n    action: mask\n    words: [a]\n    pattern: b\n",
         "deploy.yaml:2: filters[0]: give one of words, words_file, pattern, personal, hook, moderation, not words"),
        ("filters:\n  - words: [a]\n    action: mask\n", "deploy.yaml:2: filters[0].name: must be given."),
        ("filters:\n  - name: x\n    words: a\n    action: mask\n",
         "deploy.yaml:3: filters[0].words: must be list, not 'a'."),
        ("filters:\n  - name: x\n    words: [a]\n    action: block\n    replacement: y\n",
         "deploy.yaml:2: filters[0]: replacement is for the action mask, not block."),
        ("filters: 3\n", "deploy.yaml:1: filters: must be list, not 3."),
        ("filters: []\nfilters: []\n", "deploy.yaml:2: filters is given twice."),
        ("- a\n", "deploy.yaml:1: must be a mapping of settings, such as `filters:`, not ['a']."),
        ("filters: [\n", "deploy.yaml:2: is not YAML:"),
        ("[a]: 2\n", "deploy.yaml:1: a setting's name must be a word."),
        ("on: 2\n", "deploy.yaml:1: on: there is no such setting."),
        ("filters:\n  - name: ${NO_SUCH_NAME}\n", "deploy.yaml:2: the environment has no variable NO_SUCH_NAME."),
        ("x: !!python/object/apply:os.system [ls]\n", "deploy.yaml:1: x: there is no such setting."),
        ("[" * 3000, "deploy.yaml"),
        ("a: &a [*a]\n", "deploy.yaml: is nested too deeply."),
        ("limits: {x: 2026-13-01}\n", "deploy.yaml:1: limits.x: is not a value: month must be in 1..12."),
        ("limits: {x: " + "9" * 5000 + "}\n", "deploy.yaml:1: limits.x: is not a value: Exceeds the limit"),
        ("limits: {x: !!int a}\n", "deploy.yaml:1: limits.x: is not a value: "),
        ("limits: {x: !!binary ü}\n", "deploy.yaml:1: limits.x: is not a value: "),
        ("models: [{name: m, url: \"http://a\\nb\"}]\n", "deploy.yaml:1: models[0].url: String should match pattern"),
    ],
)  # fmt: skip
def test_each_mistake_is_told_with_its_line(text: str, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse(text)
    assert str(caught.value).startswith(said)


def test_aliases_do_not_multiply_without_end() -> None:
    names = "abcdefghij"
    lines = ["a: &a [x, x, x, x, x, x, x, x, x, x]"]
    lines += [
        f"{name}: &{name} [{', '.join([f'*{before}'] * 10)}]" for before, name in itertools.pairwise(names)
    ]
    with pytest.raises(ConfigError, match="has more than 500,000 values"):
        parse("\n".join(lines))


def test_all_mistakes_are_told_at_once() -> None:
    with pytest.raises(ConfigError) as caught:
        parse(
            "filters:\n  - name: x\n    words: [a]\n    action: no\n  - name: y\n    wrds: [a]\n    action: log\n"
        )
    assert [line.split(":")[1] for line in str(caught.value).splitlines()] == ["4", "6"]


@pytest.mark.parametrize(
    ("rule", "said"),
    [
        ('pattern: "("', "filters[0] (x): '(' is not a regular expression that RE2 takes"),
        ('pattern: "a*"', "filters[0] (x): 'a*' matches the empty text, and so everywhere."),
        ("words_file: /dev/zero", "filters[0] (x): /dev/zero is not a regular file."),
        ("words_file: nowhere.txt", "cannot be read: No such file or directory."),
        ('words: ["..."]', "filters[0] (x): '...' has no letters or digits."),
    ],
)
def test_what_a_rule_looks_for_is_checked_too(tmp_path: Path, rule: str, said: str) -> None:
    (tmp_path / "d.yaml").write_text(
        f"filters:\n  - name: x\n    action: mask\n    {rule}\n", encoding="utf-8"
    )
    with pytest.raises(ConfigError) as caught:
        Gateway(tmp_path / "d.yaml")
    assert said in str(caught.value)


def test_the_environment_fills_in_values(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RUDE_WORD", "damn")
    (rule,) = parse('filters: [{name: x, words: ["${RUDE_WORD}!"], action: log}]').filters
    assert rule.words == ["damn!"]


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"none\.yaml: cannot be read: No such file"):
        load(tmp_path / "none.yaml")
    (tmp_path / "latin.yaml").write_bytes(b"a: 1\nb: \xff\n")
    with pytest.raises(ConfigError, match=r"latin\.yaml:2: is not UTF-8 text"):
        load(tmp_path / "latin.yaml")


def test_a_reload_with_mistakes_changes_nothing(tmp_path: Path) -> None:
    file = tmp_path / "d.yaml"
    file.write_text("filters: [{name: one, words: [a], action: log}]", encoding="utf-8")
    gateway = Gateway(file)
    file.write_text("filters: [{name: two, words: [b], action: lag}]", encoding="utf-8")
    with pytest.raises(ConfigError):
        gateway.reload()
    assert [rule.name for rule in gateway.rules] == ["one"]
    file.write_text("filters: [{name: two, words: [b], action: log}]", encoding="utf-8")
    gateway.reload()
    assert [rule.name for rule in gateway.rules] == ["two"]


def test_the_commands(tmp_path: Path) -> None:
    (tmp_path / "words.txt").write_text("x", encoding="utf-8")
    (tmp_path / "deploy.yaml").write_text(GOOD, encoding="utf-8")
    result = CliRunner().invoke(app, ["config", "check", str(tmp_path / "deploy.yaml")])
    assert result.exit_code == 0
    assert "filter rude: mask in prompts and answers" in result.output
    assert "filter private: block in prompts\n" in result.output
    result = CliRunner().invoke(app, ["config", "schema"])
    assert json.loads(result.output) == schema()
    assert "filters" in schema()["properties"]


def test_word_lists_that_change_are_told_once_and_others_stay(tmp_path: Path) -> None:
    words = tmp_path / "words.txt"
    words.write_text("zebra", encoding="utf-8")
    settings = parse(
        "filters: [{name: a, words_file: words.txt, action: block}, {name: b, words: [c], action: block}]"
    ).filters
    builder = RuleBuilder(tmp_path)
    first = builder.build(settings)
    assert not builder.files_changed()
    assert [one is other for one, other in zip(first, builder.build(settings), strict=True)] == [True, True]
    words.write_text("zebras", encoding="utf-8")
    assert builder.files_changed()
    assert not builder.files_changed()
    second = builder.build(settings)
    assert [one is other for one, other in zip(first, second, strict=True)] == [False, True]
    words.unlink()
    assert not builder.files_changed()
    words.write_bytes(b"\xff\xff")
    assert builder.files_changed()
    with pytest.raises(ConfigError, match="not UTF-8"):
        builder.build(settings)
    assert not builder.files_changed()


async def test_changes_are_applied_and_mistakes_survived() -> None:
    applied = asyncio.Event()
    calls = 0

    def apply() -> None:
        nonlocal calls
        calls += 1
        if calls == 1:
            raise ConfigError("a mistake")
        loop.call_soon_threadsafe(applied.set)

    loop = asyncio.get_running_loop()
    watch = Watch(lambda: True, apply, interval=0.001)
    watch.start()
    await asyncio.wait_for(applied.wait(), 20)
    await watch.aclose()
