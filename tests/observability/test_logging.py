"""Logs: readable lines, from one handler, at the level asked for."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator

import pytest

from tokentrail.observability import setup_logging


@pytest.fixture(autouse=True)
def _restored() -> Iterator[None]:
    root, ours = logging.getLogger(), logging.getLogger("tokentrail")
    before = (list(root.handlers), root.level, ours.level)
    yield
    root.handlers[:], root.level, ours.level = before[0], before[1], before[2]


def test_lines_name_time_level_and_room(capsys: pytest.CaptureFixture[str]) -> None:
    for _ in range(3):
        setup_logging("info")
    logging.getLogger("tokentrail.server.app").info("ready at %s", "http://localhost")
    logging.getLogger("tokentrail.engine").debug("too fine")
    logging.getLogger("somelibrary").info("too fine too")
    logging.getLogger("somelibrary.part").warning("careful")
    lines = capsys.readouterr().err.splitlines()
    assert [re.sub(r"^\d\d:\d\d:\d\d ", "", line) for line in lines] == [
        "info server: ready at http://localhost",
        "warning somelibrary: careful",
    ]


def test_an_unknown_level_is_refused() -> None:
    with pytest.raises(ValueError, match="one of debug, info, warning, error"):
        setup_logging("loud")
