"""Fixtures: servers before a scripted engine, as in tests/server, and a browser."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "server"))

from browser import CHROMIUM, Visit
from real_server import RealServer
from scripted_server import MakeServer, ScriptedServer

from tokentrail.answer.parts import TextParts, load_text_parts

if TYPE_CHECKING:
    from playwright.sync_api import Browser


@pytest.fixture(scope="session")
def text_parts() -> TextParts:
    return load_text_parts(None)


@pytest.fixture
def make_server(text_parts: TextParts) -> Iterator[MakeServer]:
    """make_server(ready=True, engine={…}, **config)"""
    made: list[ScriptedServer] = []

    def make(*, ready: bool = True, engine: dict[str, Any] | None = None, **config: Any) -> ScriptedServer:
        made.append(ScriptedServer(text_parts, config, engine or {}, ready))
        return made[-1]

    yield make
    for server in made:
        server.close()


@pytest.fixture(scope="module")
def server(text_parts: TextParts) -> Iterator[ScriptedServer]:
    """One server with default settings, for tests that only ask."""
    shared = ScriptedServer(text_parts, {}, {}, True)
    yield shared
    shared.close()


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    sync = pytest.importorskip("playwright.sync_api", reason="the page is tried with Playwright")
    if CHROMIUM is None:
        pytest.skip("there is no Chromium to try the page with")
    with sync.sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield opened
        opened.close()


@pytest.fixture
def visit(browser: Browser) -> Iterator[Callable[..., Visit]]:
    """visit(url, **options of the context): a tab, which must have kept its policy when the test ends."""
    visits: list[Visit] = []

    def make(url: str, **options: Any) -> Visit:
        visits.append(Visit(browser, url, **options))
        return visits[-1]

    yield make
    for one in visits:
        one.end()


@pytest.fixture(scope="session")
def demo() -> Iterator[RealServer]:
    """The demo model, which keeps texts in journeys."""
    # Short, as unlucky draws would fill a longer one.
    engine = {"max_model_len": 256, "kv_cache_memory": 64 << 20}
    running = RealServer(engine=engine, log_level="warning", trail_text=True)
    yield running
    code, log = running.end()
    assert code == 0, log
