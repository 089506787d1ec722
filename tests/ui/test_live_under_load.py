"""Live, while more answers are being given than a browser has connections."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

import openai
import pytest
from browser import Visit
from real_server import RealServer

expect = pytest.importorskip("playwright.sync_api", reason="the page is tried with Playwright").expect

ANSWERS, TOKENS = 50, 48


async def streams(url: str) -> list[str]:
    async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="unused", max_retries=0) as client:
        model = (await client.models.list()).data[0].id

        async def one() -> str:
            stream = await client.completions.create(
                model=model,
                prompt="Once upon a time",
                max_tokens=TOKENS,
                temperature=0,
                stream=True,
                extra_body={"ignore_eos": True},
            )
            return "".join([chunk.choices[0].text async for chunk in stream if chunk.choices])

        return await asyncio.gather(*(one() for _ in range(ANSWERS)))


def test_fifty_answers_at_once(demo: RealServer, visit: Callable[..., Visit]) -> None:
    """A browser has six connections to a server; programs may have more, and Live shows them all."""
    tab = visit(demo.url + "/#/live")
    tab.page.locator(".figures dd").first.wait_for()
    answers: list[str] = []
    asking = threading.Thread(target=lambda: answers.extend(asyncio.run(streams(demo.url))))
    asking.start()
    try:
        rows = tab.page.locator("table tbody tr", has=tab.page.locator(".tag"))
        expect(rows).to_have_count(ANSWERS, timeout=20_000)
        expect(tab.page.locator(".figures dd").first).to_have_text(str(ANSWERS))
    finally:
        asking.join(timeout=60)
    assert len(answers) == ANSWERS
    assert len(set(answers)) == 1
    expect(rows).to_have_count(0)
