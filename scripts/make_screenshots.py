#!/usr/bin/env python3
"""Make the pictures in docs/images again: the page's views, with the demo model behind them, in both languages.

    pip install -e '.[demo,test]' pillow && python scripts/make_screenshots.py

Needs Chromium (`apt install chromium fonts-noto-cjk`). Seeds are fixed, so texts and probabilities are the same each
time; times are the machine's. `--every FOLDER` takes all views in light and dark and in several widths instead, whole
and as they are, to look at after a change of the page.
"""

from __future__ import annotations

import argparse
import io
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

import httpx
from PIL import Image
from playwright.sync_api import Browser, Page, sync_playwright

ROOT = Path(__file__).resolve().parents[1]
IMAGES = ROOT / "docs" / "images"
MOST_BYTES = 200_000
CROWD = 20
"""Requests that run while the live view is pictured."""
KEY = "tt-pictures"

LANGUAGES = {"en": "en-US", "zh-CN": "zh-CN"}
QUESTIONS = {
    "en": "Write a Python function that reverses a string, and explain it in two bullet points.",
    "zh-CN": "写一个反转字符串的 Python 函数。",
}
PROMPTS = (
    "Tell me a long story about a fox and a crow.",
    "Describe a market in the morning, in detail.",
    "Explain how bread is made, from the field to the table.",
    "Write a letter from a lighthouse keeper to his sister.",
    "List twenty things that one can do on a rainy day, with reasons.",
)


ADMIN = "tt-an-admin-of-the-pictures"
KEYS = {"tt-a-key-of-search": 12, "tt-a-key-of-the-assistant": 7}
"""Keys, and how many requests are made with each before usage is pictured."""
DEPLOYMENT = f"""
keys:
  listed:
    - {{name: ops, key: {ADMIN}, admin: true}}
    - {{name: search, key: tt-a-key-of-search, tenant: search}}
    - {{name: assistant, key: tt-a-key-of-the-assistant, tenant: office}}
tenants:
  - {{name: search, limits: {{tokens_per_day: 500000}}}}
  - {{name: office, limits: {{requests_per_minute: 60}}}}
ledger: {{}}
prices: {{currency: USD, models: {{"*": {{input: 0.10, output: 0.40}}}}}}
"""


class Shooter:
    """One tab, in one language, theme and size."""

    def __init__(
        self, browser: Browser, url: str, language: str, theme: str, width: int, height: int
    ) -> None:
        phone = width < 600
        self.context = browser.new_context(
            viewport={"width": width, "height": height},
            locale=LANGUAGES[language],
            color_scheme="dark" if theme == "dark" else "light",
            device_scale_factor=2 if phone else 1.5,
            has_touch=phone,
            is_mobile=phone,
        )
        self.context.set_default_timeout(60_000)
        self.page: Page = self.context.new_page()
        self.url = url
        self.language = language

    def open(self, hash_: str) -> None:
        self.page.goto(f"{self.url}/#/{hash_}")

    def welcome(self) -> None:
        self.open("chat")
        self.page.locator(".welcome").wait_for()

    def chat(self) -> None:
        """A question, and its answer from the model."""
        page = self.page
        self.open("chat")
        page.locator(".welcome").wait_for()
        settings = page.locator(".talk-head button").last
        shut = not page.locator(".settings-panel").is_visible()
        if shut:
            settings.click()
        page.locator(".parameter input[type=number]").first.fill("0")
        page.locator(".parameter input[type=number]").last.fill("7")
        page.locator(".settings-panel").evaluate("panel => panel.scrollTo(0, 0)")
        if shut:
            page.locator(".settings-panel .closer").click()
        box = page.locator(".composer textarea")
        box.fill(QUESTIONS[self.language])
        box.press("Enter")
        page.locator(".answer-facts").wait_for()
        page.locator(".talk-head").hover()

    def journey(self) -> None:
        """The journey of that answer, with one of its tokens opened."""
        if not self.page.url.split("#")[-1].startswith("/chat/"):
            self.chat()
        self.page.locator(".answer-facts a").first.click()
        self.page.locator(".answer-tokens .token").last.wait_for()
        # The one that the model was least sure of.
        self.page.locator(".answer-tokens").evaluate(
            """list => { const doubt = (token) => Number(token.style.getPropertyValue("--doubt-part"));
            [...list.querySelectorAll(".token")].reduce((a, b) => (doubt(a) >= doubt(b) ? a : b)).click(); }"""
        )
        self.page.locator(".alternatives .drawn").wait_for()

    def journeys(self) -> None:
        self.open("journey")
        self.page.locator("table.journeys").wait_for()

    def usage(self) -> None:
        """As an admin sees it."""
        self.open("usage")
        box = self.page.locator("dialog input")
        box.or_(self.page.locator("table.keys")).first.wait_for()
        if box.is_visible():
            box.fill(ADMIN)
            box.press("Enter")
            self.page.locator(".rail").get_by_role("link").last.wait_for()
            self.open("usage")
        self.page.locator("table.keys").wait_for()
        self.page.locator(".page-head .button").first.click()
        self.page.locator(".page-head .button[aria-pressed=true]").first.wait_for()
        self.page.wait_for_timeout(800)

    def live(self) -> None:
        """While a crowd asks."""
        self.open("live")
        self.page.locator(".bars i").nth(199).wait_for()
        self.page.locator("td .tag").nth(CROWD - 4).wait_for()
        self.page.locator(".legend .key-free").wait_for()
        size = self.page.viewport_size
        assert size is not None
        self.page.locator(".bars").hover(position={"x": 600 if size["width"] > 1000 else 200, "y": 40})

    def learn(self) -> None:
        """One token taken, at a temperature and top-p that show."""
        self.open("learn")
        self.page.locator(".stage-column").nth(5).wait_for()
        self.page.locator(".memory-sum").wait_for()
        for name, value in (("temperature", "0.8"), ("top_p", "0.9")):
            slider = self.page.locator(f"input[id^={name}]")
            slider.evaluate(
                "(e, v) => { e.value = v; e.dispatchEvent(new Event('input', { bubbles: true })); }", value
            )
        self.page.wait_for_timeout(1500)
        self.page.locator(".lesson .button.primary").click()
        self.page.locator(".so-far mark").wait_for()
        self.page.wait_for_timeout(800)


def ask_in_a_crowd(url: str, stop: threading.Event) -> list[threading.Thread]:
    """Requests of different lengths, streamed and asked again until `stop`."""

    def one(number: int) -> None:
        with httpx.Client(timeout=300, headers={"authorization": f"Bearer {KEY}"}) as http:
            model = http.get(f"{url}/v1/models").json()["data"][0]["id"]
            time.sleep(number * 0.12)
            while not stop.is_set():
                body = {
                    "model": model,
                    "messages": [{"role": "user", "content": PROMPTS[number % len(PROMPTS)]}],
                    "max_tokens": 60 + 23 * number,
                    "seed": number,
                    "stream": True,
                    "ignore_eos": True,
                }
                with http.stream("POST", f"{url}/v1/chat/completions", json=body) as response:
                    for _ in response.iter_lines():
                        if stop.is_set():
                            return

    threads = [threading.Thread(target=one, args=(number,), daemon=True) for number in range(CROWD)]
    for thread in threads:
        thread.start()
    return threads


@contextmanager
def crowd(url: str) -> Iterator[None]:
    stop = threading.Event()
    threads = ask_in_a_crowd(url, stop)
    try:
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join(30)


@contextmanager
def served(deployment: str | None = None) -> Iterator[str]:
    """The address of `tokentrail serve` on the demo model, with texts in journeys."""
    command = [
        "serve",
        "--port",
        "0",
        "--trail-text",
        "--max-model-len",
        "2048",
        "--kv-cache-memory",
        "96MiB",
    ]
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryFile("w+") as log:
        if deployment is not None:
            (Path(folder) / "deploy.yaml").write_text(deployment)
            command += ["--config", "deploy.yaml"]
        process = subprocess.Popen(
            [sys.executable, "-m", "tokentrail", *command],
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            cwd=folder,
        )
        try:
            assert process.stdout is not None
            for line in process.stdout:
                if found := re.search(r"http://[\d.]+:\d+", line):
                    yield found[0]
                    return
            log.seek(0)
            raise SystemExit(f"the server did not start:\n{log.read()}")
        finally:
            process.terminate()
            process.wait(60)


def small(png: bytes) -> bytes:
    """With a palette of 256 colours, which is all that such a page has."""
    image = Image.open(io.BytesIO(png)).convert("RGB")
    out = io.BytesIO()
    image.quantize(256, method=Image.Quantize.MEDIANCUT, dither=Image.Dither.NONE).save(
        out, "PNG", optimize=True
    )
    return out.getvalue()


def keep(name: str, png: bytes, folder: Path) -> None:
    data = small(png)
    path = folder / f"{name}.png"
    path.write_bytes(data)
    print(f"{path}  {len(data) / 1000:.0f} KB")
    if len(data) > MOST_BYTES:
        raise SystemExit(f"{path} has {len(data):,} bytes; pictures here have at most {MOST_BYTES:,}")


def use(url: str) -> None:
    """Requests with each key, for the ledger to tell of."""
    for key, count in KEYS.items():
        with httpx.Client(timeout=60, headers={"authorization": f"Bearer {key}"}) as http:
            model = http.get(f"{url}/v1/models").json()["data"][0]["id"]
            for number in range(count):
                body = {
                    "model": model,
                    "messages": [{"role": "user", "content": PROMPTS[number % len(PROMPTS)]}],
                    "max_tokens": 20 + 5 * number,
                    "seed": number,
                }
                http.post(f"{url}/v1/chat/completions", json=body).raise_for_status()


@contextmanager
def unrolled(page: Page) -> Iterator[None]:
    """All of a view to be seen: views scroll within the window, so the window grows."""
    size = page.viewport_size
    assert size is not None
    page.locator(".view").first.evaluate("view => view.scrollTo(0, 0)")
    more = page.locator(".view").first.evaluate("view => view.scrollHeight - view.clientHeight")
    page.set_viewport_size({"width": size["width"], "height": size["height"] + more})
    page.wait_for_timeout(300)
    yield
    page.set_viewport_size(size)


def whole(page: Page, end: str | None = None) -> bytes:
    """A picture of the view from its top, to its end or below the element `end`."""
    if page.locator(".view").count() == 0:
        return page.screenshot()
    with unrolled(page):
        size = page.viewport_size
        assert size is not None
        height = size["height"]
        if end is not None:
            box = page.locator(end).first.bounding_box()
            assert box is not None
            height = int(box["y"] + box["height"]) + 24
        page.set_viewport_size({"width": size["width"], "height": height})
        page.wait_for_timeout(300)
        return page.screenshot()


def pictures(given: argparse.Namespace, browser: Browser, url: str) -> None:
    """Those of the documents."""
    for language in given.languages.split(","):
        shooter = Shooter(browser, url, language, "light", 1280, 640)
        page = shooter.page
        end = "" if language == "en" else f".{language}"
        for view in given.views.split(","):
            with crowd(url) if view == "live" else nullcontext():
                getattr(shooter, view)()
                if view == "learn":
                    with unrolled(page):
                        for number, name in enumerate(("tokens", "draw", "memory")):
                            lesson = page.locator("section.panel.part").nth(number)
                            keep(f"learn-{name}{end}", lesson.screenshot(), given.out)
                elif view == "journey":
                    keep(f"journey{end}", whole(page, "section:has(.waterfall)"), given.out)
                    with unrolled(page):
                        keep(f"journey-tokens{end}", page.locator(".answer-pair").screenshot(), given.out)
                else:
                    keep(f"{view}{end}", whole(page), given.out)
        shooter.context.close()


def every(given: argparse.Namespace, browser: Browser, url: str) -> None:
    given.every.mkdir(parents=True, exist_ok=True)
    for language in given.languages.split(","):
        for theme in given.themes.split(","):
            for width in map(int, given.widths.split(",")):
                shooter = Shooter(browser, url, language, theme, width, 844 if width < 600 else 900)
                for view in given.views.split(","):
                    with crowd(url) if view == "live" else nullcontext():
                        getattr(shooter, view)()
                        picture = whole(shooter.page)
                    path = given.every / f"{view}-{width}-{theme}-{language}.png"
                    path.write_bytes(picture)
                    print(path)
                shooter.context.close()


def usage_pictures(given: argparse.Namespace, browser: Browser, url: str) -> None:
    use(url)
    for language in given.languages.split(","):
        for theme in given.themes.split(",") if given.every else ["light"]:
            for width in map(int, given.widths.split(",")) if given.every else [1280]:
                shooter = Shooter(browser, url, language, theme, width, 844 if width < 600 else 640)
                shooter.usage()
                if given.every:
                    path = given.every / f"usage-{width}-{theme}-{language}.png"
                    path.write_bytes(whole(shooter.page))
                    print(path)
                else:
                    keep("usage" if language == "en" else f"usage.{language}", whole(shooter.page), given.out)
                shooter.context.close()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=IMAGES)
    parser.add_argument("--every", type=Path, metavar="FOLDER")
    parser.add_argument("--views", default="chat,journey,live,learn,usage")
    parser.add_argument("--languages", default="en,zh-CN")
    parser.add_argument("--themes", default="light,dark")
    parser.add_argument("--widths", default="390,1440,1920")
    given = parser.parse_args()
    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if chromium is None:
        raise SystemExit("there is no Chromium: apt install chromium")
    views = [view for view in given.views.split(",") if view]
    given.views = ",".join(view for view in views if view != "usage")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        if given.views:
            with served() as url:
                (every if given.every else pictures)(given, browser, url)
        if "usage" in views:
            with served(DEPLOYMENT) as url:
                usage_pictures(given, browser, url)
        browser.close()


if __name__ == "__main__":
    main()
