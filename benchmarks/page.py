"""What the page's own scripts cost: the longest task of its thread, in Chromium.

    pip install -e '.[demo,test]' && python benchmarks/page.py [--tokens 5000]

An answer is streamed to it as fast as it takes it, reloaded, and opened as a journey; then 50 requests run in the live
view. A browser calls a task long from 50 ms on (the Long Tasks API); shorter ones are not told. The engine is the
tests', which says a given text.
"""

from __future__ import annotations

import argparse
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "tests" / "server"), str(ROOT / "tests" / "answer"), str(ROOT / "tests" / "ui")]

from browser import CHROMIUM, Visit  # noqa: E402
from playwright.sync_api import sync_playwright  # noqa: E402
from scripted_engine import engine_info  # noqa: E402
from scripted_server import ScriptedServer  # noqa: E402

from tokentrail.answer.parts import load_text_parts  # noqa: E402

PART = (
    "A sentence of **some** words, and `code`. " * 20
    + "\n\n- a list\n- of *things*\n\n| a | b |\n|---|---|\n| 1 | 2 |\n\n```\n"
    + "x = 1\n" * 60
    + "```\n\n"
)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tokens", type=int, default=5000)
    given = parser.parse_args()
    parts = load_text_parts(None)
    each = parts.tokenizer.encode(PART, parse_special=False)
    tokens = (each * (given.tokens // len(each) + 1))[: given.tokens]
    info = engine_info(max_model_len=given.tokens + 4096)
    engine: dict[str, Any] = {"script": lambda request: [*tokens, 2], "info": info, "cut": 1, "delay": 0.002}
    server = ScriptedServer(parts, {"trail_text": True}, engine, True)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        tab = Visit(browser, server.url)
        page = tab.page
        page.locator(".welcome").wait_for()

        def tell(name: str) -> None:
            told = page.evaluate("window.longest")
            print(f"{name:40} {'none of 50 ms or more' if not told else f'{told:.0f} ms'}")

        def longest(name: str, work: Callable[[], object]) -> None:
            page.evaluate("window.longest = 0")
            work()
            page.wait_for_timeout(500)
            tell(name)

        def answered() -> None:
            page.locator(".answer-facts").wait_for()

        longest(f"{given.tokens} tokens stream in", lambda: (tab.ask("Hi"), answered()))
        # Loading anew begins a new document, which counts from 0.
        page.reload()
        answered()
        page.wait_for_timeout(500)
        tell("the page is loaded with that answer")

        def opened() -> None:
            page.locator(".answer-facts a").click()
            page.locator(".token").nth(given.tokens - 1).wait_for(state="attached")

        longest("its journey is opened", opened)
        longest(
            "its journey is replayed for 2 s",
            lambda: (page.locator(".replay button").click(), page.wait_for_timeout(2000)),
        )
        page.goto(f"{server.url}/#/live")
        page.locator(".bars").wait_for()

        def crowd() -> None:
            body = {
                "model": "demo",
                "prompt": [f"Hi {k}" for k in range(50)],
                "max_tokens": 500,
                "stream": True,
            }

            def ask() -> None:
                with httpx.stream("POST", f"{server.url}/v1/completions", json=body, timeout=60) as response:
                    for _ in response.iter_raw():
                        pass

            asking = threading.Thread(target=ask)
            asking.start()
            page.wait_for_timeout(4000)
            asking.join()

        longest("50 sequences run live", crowd)
        tab.end()
        browser.close()
    server.close()


if __name__ == "__main__":
    main()
