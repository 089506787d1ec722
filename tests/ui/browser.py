"""A page in Debian's Chromium, which must neither break its own policy nor throw."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")

# Told by the page itself, from before its first script on.
_WATCH = """
window.violations = [];
addEventListener("securitypolicyviolation", (event) => window.violations.push(
  `${event.violatedDirective} ${event.blockedURI}`));
window.longest = 0;
new PerformanceObserver((list) => {
  for (const entry of list.getEntries()) window.longest = Math.max(window.longest, entry.duration);
}).observe({ type: "longtask", buffered: true });
"""


class Visit:
    """One tab of a browser of its own, and what went wrong in it."""

    def __init__(self, browser: Browser, url: str, **options: Any) -> None:
        options = {"viewport": {"width": 1280, "height": 800}, "locale": "en-US", **options}
        self.context = browser.new_context(**options)
        self.context.set_default_timeout(60_000)
        self.context.add_init_script(_WATCH)
        self.page: Page = self.context.new_page()
        self.wrong: list[str] = []
        self.elsewhere: list[str] = []
        self.page.on("pageerror", lambda error: self.wrong.append(str(error)))
        self.page.on("dialog", lambda dialog: (self.wrong.append(dialog.message), dialog.dismiss()))
        self.page.on("request", lambda request: self._asked(request.url, url.split("/#", maxsplit=1)[0]))
        self.page.goto(url)

    def _asked(self, asked: str, own: str) -> None:
        if not asked.startswith((own, "data:", "blob:")):
            self.elsewhere.append(asked)

    def end(self) -> None:
        violations = self.page.evaluate("window.violations")
        self.context.close()
        assert violations == [], violations
        assert self.wrong == [], self.wrong
        assert self.elsewhere == [], self.elsewhere

    def ask(self, text: str) -> None:
        box = self.page.locator(".composer textarea")
        box.fill(text)
        box.press("Enter")

    def fits(self) -> bool:
        """Nothing stands out at the side."""
        return bool(self.page.evaluate("document.documentElement.scrollWidth <= innerWidth"))

    def judge(self) -> None:
        """Axe finds nothing serious, and nothing stands out at the side."""
        axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="axe judges the page")
        found = axe.Axe().run(self.page, options={"resultTypes": ["violations"]}).response["violations"]
        serious = [
            (one["id"], [node["html"][:200] for node in one["nodes"]])
            for one in found
            if one["impact"] in ("serious", "critical")
        ]
        assert serious == []
        assert self.fits()
