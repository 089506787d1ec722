"""Usage and keys, as an admin works with them: by click and by key, in both languages."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from browser import Visit
from scripted_server import MODEL, MakeServer, ScriptedServer

expect = pytest.importorskip("playwright.sync_api", reason="the page is tried with Playwright").expect

MakeVisit = Callable[..., Visit]

ADMIN, PLAIN = "an-admin-key-of-the-file", "a-plain-key-of-the-file"
FILE = f"""
keys:
  listed:
    - {{name: ops, key: {ADMIN}, admin: true}}
    - {{name: app, key: {PLAIN}, tenant: search}}
tenants:
  - {{name: search, limits: {{tokens_per_day: 5000}}}}
ledger: {{}}
prices: {{currency: EUR, models: {{"*": {{input: 1000, output: 2000}}}}}}
filters:
  - {{name: names of cats, words: [Felix], action: mask}}
"""
WORDS = {
    "en-US": {
        "usage": "Usage", "keys": "Keys", "new": "New key", "name": "Name", "create": "Create", "done": "I have it",
        "rotate": "Rotate", "revoke": "Revoke", "limits": "Limits", "save": "Save", "day": "Tokens a day",
        "secret": "API key", "revoked": "revoked", "table": "As a table", "tenant": "New tenant", "off": "Turn off",
        "is-off": "off", "filtered": "Filtered", "rules": "found by: names of cats",
    },
    "zh-CN": {
        "usage": "用量", "keys": "密钥", "new": "新建密钥", "name": "名称", "create": "创建", "done": "已保存",
        "rotate": "更换", "revoke": "吊销", "limits": "限额", "save": "保存", "day": "每日词元数",
        "secret": "API 密钥", "revoked": "已吊销", "table": "以表格显示", "tenant": "新建租户", "off": "停用",
        "is-off": "已停用", "filtered": "过滤", "rules": "触发规则：names of cats",
    },
}  # fmt: skip


@pytest.fixture
def gateway(make_server: MakeServer, tmp_path: Path) -> ScriptedServer:
    path = tmp_path / "deploy.yaml"
    path.write_text(FILE, encoding="utf-8")
    return make_server(deployment=str(path))


def asks(server: ScriptedServer, key: str, text: str = "Hi") -> Any:
    body = {"model": MODEL, "max_tokens": 5, "messages": [{"role": "user", "content": text}]}
    return server.post("/v1/chat/completions", body, authorization=f"Bearer {key}")


def opened(visit: MakeVisit, server: ScriptedServer, key: str, **options: Any) -> Visit:
    """The page, in a tab that has been given a key."""
    tab = visit(server.url, **options)
    tab.page.locator("dialog input").fill(key)
    tab.page.keyboard.press("Enter")
    tab.page.locator(".welcome").wait_for()
    return tab


@pytest.mark.parametrize("locale", WORDS)
def test_keys_are_made_limited_rotated_and_revoked(
    gateway: ScriptedServer, visit: MakeVisit, locale: str
) -> None:
    """With the mouse on a wide screen in English, with keys alone on a phone in Chinese."""
    words, phone = WORDS[locale], locale == "zh-CN"
    assert asks(gateway, PLAIN, "Where is Felix?").status_code == 200
    options = {"viewport": {"width": 390, "height": 844}, "color_scheme": "dark"} if phone else {}
    tab = opened(visit, gateway, ADMIN, locale=locale, **options)
    page = tab.page

    def press(found: Any) -> None:
        # Not while tables are being made anew: a button would go from under the key.
        expect(page.locator(".managed[aria-busy=true]")).to_have_count(0)
        if phone:
            found.focus()
            page.keyboard.press("Enter")
        else:
            found.click()

    press(page.get_by_role("navigation").get_by_role("link", name=words["usage"]))
    keys = page.locator("table.keys")
    keys.wait_for()
    expect(keys.locator("tbody tr")).to_have_count(2)
    expect(page.locator(".figures dd").first).to_have_text("1")
    assert page.locator(".day").count() == 30
    assert page.locator(".day-columns .day").last.get_attribute("title")
    press(page.locator(".day-chart summary"))
    expect(page.locator(".day-chart tbody tr")).to_have_count(1)
    tab.judge()

    # Made: its secret is shown once, and works.
    dialog = page.get_by_role("dialog")
    press(page.get_by_role("button", name=words["new"], exact=True))
    dialog.get_by_label(words["name"], exact=True).fill("<b>robot</b>")
    tab.judge()
    page.keyboard.press("Enter")
    secret = dialog.get_by_label(words["secret"], exact=True).input_value()
    tab.judge()
    press(dialog.get_by_role("button", name=words["done"]))
    expect(keys.locator("tbody tr")).to_have_count(3)
    row = keys.locator("tbody tr").first
    expect(row.locator("th")).to_contain_text("<b>robot</b>")
    assert secret not in page.content()
    assert asks(gateway, secret).status_code == 200

    # Limited: what is used is shown, and what is set is in force.
    press(row.get_by_role("button", name=words["limits"]))
    dialog.get_by_label(words["day"], exact=True).fill("1")
    tab.judge()
    press(dialog.get_by_role("button", name=words["save"]))
    dialog.wait_for(state="detached")
    deadline = time.monotonic() + 10  # limits are looked up again after a second
    while asks(gateway, secret).status_code == 200 and time.monotonic() < deadline:
        time.sleep(0.1)
    assert asks(gateway, secret).status_code in (400, 429)
    press(row.get_by_role("button", name=words["limits"]))
    expect(dialog.locator(".limit-use")).to_contain_text(words["day"])
    page.keyboard.press("Escape")
    dialog.wait_for(state="detached")

    # Rotated, with the old secret's end at once; then revoked.
    press(row.get_by_role("button", name=words["rotate"]))
    dialog.get_by_role("combobox").select_option("0")
    press(dialog.get_by_role("button", name=words["rotate"], exact=True))
    again = dialog.get_by_label(words["secret"], exact=True).input_value()
    assert again != secret
    assert asks(gateway, secret).status_code == 401
    press(dialog.get_by_role("button", name=words["done"]))
    dialog.wait_for(state="detached")
    press(row.get_by_role("button", name=words["revoke"]))
    press(dialog.get_by_role("button", name=words["revoke"], exact=True))
    expect(row).to_contain_text(words["revoked"])
    assert asks(gateway, again).status_code == 401

    # A mistake is told where it was made.
    press(page.get_by_role("button", name=words["tenant"]))
    dialog.get_by_label(words["name"], exact=True).fill("no good name!")
    page.keyboard.press("Enter")
    expect(dialog.get_by_role("alert")).to_contain_text("name")
    dialog.get_by_label(words["name"], exact=True).fill("robots")
    page.keyboard.press("Enter")
    tenant = page.get_by_role("row", name="robots")
    press(tenant.get_by_role("button", name=words["off"]))
    press(dialog.get_by_role("button", name=words["off"], exact=True))
    expect(tenant).to_contain_text(words["is-off"])
    tab.judge()


@pytest.mark.parametrize("locale", WORDS)
def test_a_journey_shows_where_rules_looked(gateway: ScriptedServer, visit: MakeVisit, locale: str) -> None:
    id = asks(gateway, ADMIN, "Where is Felix?").json()["id"]
    tab = opened(visit, gateway, ADMIN, locale=locale)
    tab.page.goto(f"{gateway.url}/#/journey/{id}")
    row = tab.page.locator(".waterfall tbody tr").filter(has_text=WORDS[locale]["rules"])
    expect(row.locator(".stage-name")).to_have_text(WORDS[locale]["filtered"])
    expect(tab.page.locator(".waterfall .stage-name", has_text=WORDS[locale]["filtered"])).to_have_count(2)


def test_only_admins_see_usage(gateway: ScriptedServer, visit: MakeVisit) -> None:
    tab = opened(visit, gateway, PLAIN)
    navigation = tab.page.get_by_role("navigation")
    expect(navigation.get_by_role("link")).to_have_count(4)
    tab.page.goto(gateway.url + "/#/usage")
    expect(tab.page.locator(".composer")).to_be_visible()
