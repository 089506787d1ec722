"""The page as people use it: by click and by key, in both languages, through restarts, with hostile texts."""

from __future__ import annotations

import re
import signal
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from browser import Visit
from real_server import RealServer, launch
from scripted_engine import engine_info
from scripted_server import MakeServer, ScriptedServer

from tokentrail.answer.parts import TextParts

expect = pytest.importorskip("playwright.sync_api", reason="the page is tried with Playwright").expect

MakeVisit = Callable[..., Visit]

ANSWER = (
    "Of course:\n\n1. **one**\n2. *two* with `code`\n\n```python\nprint('<b>hi</b>')\n```\n\nThat is all."
)
HOSTILE = (
    "<script>window.hacked = 1</script><img src=x onerror='window.hacked = 2'>\n\n"
    "[link](javascript:window.hacked=3) **<b onclick=alert(1)>x</b>**\n\n"
    "```html\n</code></pre><script>window.hacked = 4</script>\n```\n\n"
    "\u202eright to left\u202c \u2066isolated \x07\x1b[31m\u200b\ufeff " + "W" * 3000 + "\n\n"
    "| a | b |\n|---|---|\n| <i>c</i> | "
    + "d" * 500
    + " |\n\n"
    + "> " * 40
    + "deep\n\n"
    + "*" * 500
    + "_" * 500
    + "`" * 301
)


def saying(parts: TextParts, text: str, **engine: Any) -> dict[str, Any]:
    tokens = [*parts.tokenizer.encode(text, parse_special=False), 2]
    info = engine_info(max_model_len=len(tokens) + 4096)
    return {"script": lambda request: tokens, "info": info, **engine}


def answer(visit: Visit, number: int = -1) -> Any:
    return visit.page.locator(".answer").nth(number)


def done(visit: Visit) -> Any:
    visit.page.locator(".answer[aria-busy=false]").last.wait_for()
    visit.page.locator(".answer-facts").last.wait_for()
    return answer(visit)


WORDS = {"en-US": ("Journeys", "Live", "Learn", "Replay"), "zh-CN": ("旅程", "实况", "学习", "重放")}


@pytest.mark.parametrize("by", ["click", "keys"])
@pytest.mark.parametrize("locale", WORDS)
def test_a_walk_through_the_views(demo: RealServer, visit: MakeVisit, locale: str, by: str) -> None:
    """From a question over its journey to what it teaches: by click on a wide screen, light, by keys on a phone, dark;
    and axe finds nothing serious in any of them.
    """
    phone = by == "keys"
    options = {"viewport": {"width": 390, "height": 844}, "color_scheme": "dark"} if phone else {}
    tab = visit(demo.url, locale=locale, permissions=["clipboard-read", "clipboard-write"], **options)
    page = tab.page
    journeys, live, learn, replay = WORDS[locale]

    def go(name: str) -> None:
        link = page.get_by_role("navigation").get_by_role("link", name=name)
        if phone:
            link.focus()
            page.keyboard.press("Enter")
        else:
            link.click()

    page.locator(".welcome").wait_for()
    tab.judge()
    tab.ask("Say hello in five words.")
    done(tab)
    tab.judge()
    link = answer(tab).get_by_role("link")
    if phone:
        link.focus()
        page.keyboard.press("Enter")
    else:
        link.click()
    tokens = page.locator(".answer-tokens")
    tokens.focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    page.locator(".alternatives .drawn").wait_for()
    assert page.locator(".token[aria-selected=true]").count() == 1
    assert page.locator(".chip").count() > 5
    if locale == "en-US":
        assert "computed 1 token for 1 sequence." in page.locator(".token-details").inner_text()
    tab.judge()
    with page.expect_download() as download:
        page.get_by_role("button", name="Chrome").click()
    trace = msgspec.json.decode(download.value.path().read_bytes())
    assert {event["ph"] for event in trace["traceEvents"]} >= {"X", "M"}
    page.get_by_role("button", name=replay).click()
    go(journeys)
    page.locator("table.journeys").wait_for()
    tab.judge()
    go(live)
    page.locator(".bars i").first.wait_for()
    page.locator(".legend .key-free").wait_for()
    page.locator(".bars").focus()
    page.keyboard.press("ArrowLeft")
    page.locator(".bars .chosen").wait_for()
    tab.judge()
    go(learn)
    page.locator(".stage-column").nth(5).wait_for()
    page.locator(".memory-sum").wait_for()
    page.locator(".chip").first.wait_for()
    page.locator(".so-far .next").wait_for()
    before = page.locator(".so-far").inner_text()
    take = page.locator(".lesson .button.primary")
    take.focus()
    page.keyboard.press("Enter")
    page.locator(".so-far mark").wait_for()
    assert page.locator(".so-far").inner_text() != before
    tab.judge()


def test_an_answer_streams_as_markdown_and_is_kept(
    make_server: MakeServer, text_parts: TextParts, visit: MakeVisit
) -> None:
    server = make_server(engine=saying(text_parts, ANSWER))
    tab = visit(server.url)
    tab.ask("Hi")
    shown = done(tab)
    assert shown.locator("ol > li").all_inner_texts() == ["one", "two with code"]
    assert shown.locator("strong").inner_text() == "one"
    assert shown.locator("pre code").inner_text() == "print('<b>hi</b>')\n"
    assert (
        "tokens/s" in shown.locator(".answer-facts").inner_text()
        or "token" in shown.locator(".answer-facts").inner_text()
    )
    tab.page.reload()
    assert done(tab).locator("pre code").inner_text() == "print('<b>hi</b>')\n"
    # The question is changed and asked again: what came after it goes.
    question = tab.page.locator(".question").first
    question.hover()
    question.get_by_role("button", name="Edit").click()
    question.get_by_role("textbox").fill("Hello")
    question.get_by_role("button", name="Ask again").click()
    done(tab)
    assert tab.page.locator(".question").all_inner_texts()[0].startswith("Hello")
    assert tab.page.locator(".answer").count() == 1
    asked = [text_parts.tokenizer.decode(one.prompt) for one in server.engine.requests]
    assert "Hello" in asked[-1]
    assert "Hi\n" not in asked[-1]


def test_stopping_by_click_and_by_key(
    make_server: MakeServer, text_parts: TextParts, visit: MakeVisit
) -> None:
    server = make_server(engine=saying(text_parts, "word " * 2000, delay=0.01))
    tab = visit(server.url)
    for stop in (
        lambda: tab.page.get_by_role("button", name="Stop").click(),
        lambda: tab.page.keyboard.press("Escape"),
    ):
        tab.ask("Hi")
        answer(tab).locator(".prose p").wait_for()
        stop()
        assert "stopped" in done(tab).inner_text()
    assert len(server.engine.aborted) == 2


def test_an_answer_goes_on_after_a_reload(
    make_server: MakeServer, text_parts: TextParts, visit: MakeVisit
) -> None:
    text = " ".join(f"n{k}" for k in range(300))
    server = make_server(engine=saying(text_parts, text, delay=0.004))
    tab = visit(server.url)
    tab.ask("Hi")
    answer(tab).get_by_text("n20 ").wait_for()
    tab.page.reload()
    assert done(tab).locator(".prose").inner_text() == text
    first, second = server.engine.requests
    assert first.sampling.seed == second.sampling.seed


def test_an_answer_goes_on_when_the_server_was_killed(demo: RealServer, visit: MakeVisit) -> None:
    """The very bytes: the second server is asked with the seed, and what it repeats is compared."""
    first = RealServer(
        engine={"max_model_len": 512, "kv_cache_memory": 32 << 20}, log_level="error", log_requests=False
    )
    again = None
    try:
        tab = visit(first.url, viewport={"width": 1500, "height": 900})
        tab.page.get_by_role("spinbutton", name="Temperature").fill("0.3")
        tab.page.get_by_role("spinbutton", name="Maximum tokens").fill("120")
        tab.ask("Tell me a long story about a fox and a crow.")
        expect(answer(tab).locator(".prose")).to_have_text(re.compile(".{60}", re.DOTALL))
        first.process.send_signal(signal.SIGKILL)
        first.process.wait(20)
        tab.page.locator(".answer .notice").wait_for()
        shown = answer(tab).locator(".prose").inner_text()
        port = int(first.url.rsplit(":", 1)[1])
        again = launch(msgspec.structs.replace(first.config, port=port))
        shown_in_the_end = done(tab).locator(".prose").inner_text()
        assert shown_in_the_end.startswith(shown.rstrip()[:40])
        assert answer(tab).locator(".notice").count() == 0, "nothing differed"
        # What it is without any restart.
        store = tab.page.evaluate(
            """() => new Promise((resolve) => { const open = indexedDB.open("tokentrail"); open.onsuccess = () => {
            const all = open.result.transaction("conversations").objectStore("conversations").getAll();
            all.onsuccess = () => resolve(all.result[0].messages); }; })"""
        )
        body = {
            "model": demo.model,
            "messages": [{"role": "user", "content": store[0]["content"]}],
            "seed": store[1]["seed"],
            "temperature": 0.3,
        }
        whole = demo.http.post("/v1/chat/completions", json={**body, "max_tokens": store[1]["tokens"]}).json()
        assert whole["choices"][0]["message"]["content"].startswith(store[1]["content"][:200])
    finally:
        first.end(signal.SIGKILL)
        if again is not None:
            again.terminate()
            again.communicate(timeout=60)


def test_keys_are_asked_for_and_stay_in_the_tab(make_server: MakeServer, visit: MakeVisit) -> None:
    server = make_server(api_keys=("right",))
    tab = visit(server.url)
    box = tab.page.get_by_label("API key")
    box.fill("wrong")
    box.press("Enter")
    tab.page.get_by_text("That key was refused.").wait_for()
    tab.page.get_by_label("API key").fill("right")
    tab.page.get_by_role("button", name="Use it").click()
    tab.page.locator(".welcome").wait_for()
    tab.ask("Hi")
    done(tab)
    assert tab.page.evaluate("Object.values(localStorage).some((value) => value.includes('right'))") is False
    assert tab.page.evaluate("Object.values(sessionStorage)") == ["right"]


def test_hostile_texts_stay_texts(make_server: MakeServer, text_parts: TextParts, visit: MakeVisit) -> None:
    server = make_server(engine=saying(text_parts, HOSTILE), trail_text=True)
    for width in (390, 1280):
        tab = visit(server.url, viewport={"width": width, "height": 800})
        tab.ask(HOSTILE[:3000])
        shown = done(tab)
        assert "<script>window.hacked = 1</script>" in shown.inner_text()
        assert shown.locator("script, img, b, i").count() == 0
        assert shown.locator("a").evaluate_all("links => links.map((a) => a.protocol)") in (
            ["http:"],
            [],
        ) or all(
            protocol.startswith("http")
            for protocol in shown.locator("a").evaluate_all("links => links.map((a) => a.protocol)")
        )
        assert tab.fits()
        shown.get_by_role("link", name="Show the journey").click()
        tab.page.locator(".token").last.wait_for()
        assert tab.fits()
        # As a title in the list of conversations, as a text to cut, and in an address that somebody sends.
        tab.page.goto(f"{server.url}/#/learn")
        tab.page.get_by_label("Text", exact=True).fill(HOSTILE)
        tab.page.locator(".chip").nth(50).wait_for()
        assert tab.fits()
        for address in ("journey", "chat"):
            tab.page.goto(f"{server.url}/#/{address}/%3Cimg%20src=x%20onerror=window.hacked=5%3E%E2%80%AE")
            tab.page.locator(".notice.bad, .welcome").wait_for()
            assert tab.page.locator("main img").count() == 0
            assert tab.fits()
        assert tab.page.evaluate("window.hacked") is None


COUNT_ADDED = """() => {
  const nodes = (node) => 1 + (node.querySelectorAll?.("*").length ?? 0);
  window.added = 0;
  new MutationObserver((list) => {
    for (const one of list) for (const node of one.addedNodes) window.added += nodes(node);
  }).observe(document.querySelector(".log"), { childList: true, subtree: true });
}"""
COUNT_NODES = """() => {
  const all = document.createTreeWalker(document.querySelector(".log"), NodeFilter.SHOW_ELEMENT | NodeFilter.SHOW_TEXT);
  let count = 0;
  while (all.nextNode()) count += 1;
  return count;
}"""


def test_five_thousand_tokens_are_drawn_once(
    make_server: MakeServer, text_parts: TextParts, visit: MakeVisit
) -> None:
    """Each piece of the answer becomes elements once, not anew with every token: `benchmarks/page.py` has the times."""
    part = (
        "A sentence of **some** words, and `code`. " * 20
        + "\n\n- a list\n- of *things*\n\n```\n"
        + "x = 1\n" * 60
        + "```\n\n"
    )
    tokens = text_parts.tokenizer.encode(part)
    text = part * (5000 // len(tokens) + 1)
    server = make_server(engine=saying(text_parts, text, cut=2))
    tab = visit(server.url)
    tab.page.locator(".welcome").wait_for()
    tab.page.evaluate(COUNT_ADDED)
    tab.ask("Hi")
    facts = done(tab).locator(".answer-facts").inner_text()
    assert int(re.sub(r"\D", "", facts.split(" tokens")[0])) > 5000
    assert answer(tab).locator("figure.code").count() > 5
    there = tab.page.evaluate(COUNT_NODES)
    added = tab.page.evaluate("window.added")
    # A line that is being written may be drawn again; the whole, never: that would be some thousand times as many.
    assert added < 60 * there, (added, there)


def test_fifty_requests_live(make_server: MakeServer, text_parts: TextParts, visit: MakeVisit) -> None:
    server: ScriptedServer = make_server(engine=saying(text_parts, "word " * 3000, delay=0.05))
    tab = visit(f"{server.url}/#/live")
    tab.page.locator(".bars").wait_for()
    tab.page.evaluate(
        """() => { for (let k = 0; k < 50; k += 1) fetch("/v1/completions", { method: "POST",
        headers: { "content-type": "application/json" },
        body: JSON.stringify({ model: "demo", prompt: `Hi ${k}`, stream: true, max_tokens: 2000 }) }); }"""
    )
    # A browser has six connections to a server: one is this stream's, the others bring five at a time.
    tab.page.locator("td .tag.state-answer").nth(4).wait_for()
    bodies = [
        {"model": "demo", "prompt": [f"Bye {k}" for k in range(50)], "max_tokens": 2000, "stream": True}
    ]
    with server.http.stream("POST", server.url + "/v1/completions", json=bodies[0]) as response:
        next(response.iter_lines())
        expect(tab.page.locator(".figures dd").first).to_have_text(re.compile("^(5[5-9]|[6-9][0-9])$"))
        assert tab.fits()
