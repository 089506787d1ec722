"""The page's files: who gets them, how they are kept, what they may do, and that they are whole."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from scripted_server import MakeServer, ScriptedServer

from tokentrail.server.ui import CONTENT_SECURITY_POLICY
from tokentrail.server.ui.page import STATIC

FILES = sorted(path for path in STATIC.rglob("*") if path.is_file())
SCRIPTS = [path for path in FILES if path.suffix == ".js"]
HTML = {"accept": "text/html,application/xhtml+xml,*/*;q=0.8"}


def test_browsers_get_the_page_and_programs_the_list(server: ScriptedServer) -> None:
    page = server.get("/", headers=HTML)
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    assert page.text.startswith("<!doctype html>")
    for accept in ("application/json", "*/*"):
        listed = server.get("/", headers={"accept": accept})
        assert listed.json()["name"] == "Tokentrail"
        assert listed.headers["vary"] == page.headers["vary"] == "accept"
    assert server.http.head(server.url + "/", headers=HTML).headers["etag"] == page.headers["etag"]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.relative_to(STATIC).as_posix())
def test_files_are_served_strictly_and_checked_again(server: ScriptedServer, path: Path) -> None:
    url = "/ui/" + path.relative_to(STATIC).as_posix()
    first = server.get(url)
    assert first.status_code == 200
    assert first.content == path.read_bytes()
    assert first.headers["content-security-policy"] == CONTENT_SECURITY_POLICY
    assert first.headers["x-content-type-options"] == "nosniff"
    assert first.headers["cache-control"] == "no-cache"
    again = server.get(url, headers={"if-none-match": f'"other", W/{first.headers["etag"]}'})
    assert (again.status_code, again.content) == (304, b"")
    assert server.get(url, headers={"if-none-match": '"other"'}).status_code == 200


def test_nothing_else_is_served(server: ScriptedServer) -> None:
    for path in ("/ui/", "/ui/page.py", "/ui/%2e%2e/page.py", "/ui/..%2fpage.py", "/ui//etc/passwd"):
        assert server.get(path).status_code == 404


def test_policy() -> None:
    for rule in (
        "default-src 'none'", "script-src 'self'", "style-src 'self'", "connect-src 'self'", "img-src 'self' data:",
        "base-uri 'none'", "frame-ancestors 'none'", "form-action 'none'",
    ):  # fmt: skip
        assert rule in CONTENT_SECURITY_POLICY.split("; ")


def test_the_page_needs_no_key_and_all_it_asks_for_does(make_server: MakeServer) -> None:
    server = make_server(api_keys=("secret",))
    assert server.get("/", headers=HTML).status_code == 200
    assert server.get("/ui/js/main.js").status_code == 200
    assert server.get("/").status_code == 401
    assert server.post("/", {"inputs": "a"}, accept="text/html").status_code == 401
    assert server.get("/v1/about", headers=HTML).status_code == 401
    about = server.get("/v1/about", headers={"authorization": "Bearer secret"}).json()
    assert about["keys"] is True


def test_other_hosts_get_nothing(server: ScriptedServer) -> None:
    for path in ("/", "/ui/js/main.js"):
        assert server.get(path, headers={**HTML, "host": "evil.example"}).status_code == 403


def test_no_ui(make_server: MakeServer) -> None:
    server = make_server(ui=False, api_keys=("secret",))
    key = {"authorization": "Bearer secret"}
    assert server.get("/", headers=HTML).status_code == 401
    assert server.get("/", headers={**HTML, **key}).json()["name"] == "Tokentrail"
    assert server.get("/ui/js/main.js", headers=key).status_code == 404


def test_about(server: ScriptedServer) -> None:
    about = server.get("/v1/about").json()
    assert about["trail_text"] is about["keys"] is about["admin"] is about["gateway"] is False
    assert about["admin_api"] is about["ledger"] is False
    (model,) = about["models"]
    assert model["id"] == "demo"
    assert model["max_model_len"] == 512
    assert set(model["defaults"]) >= {"temperature", "top_p"}


def words(language: str) -> dict[str, str]:
    text = (STATIC / "js" / "i18n" / f"{language}.js").read_text(encoding="utf-8")
    entries = re.findall(r'^  "([\w.-]+)": "(.*)",$', text, re.MULTILINE)
    keys = [key for key, _ in entries]
    assert len(keys) == len(set(keys)) == len(re.findall(r"^  ", text, re.MULTILINE)), "a line is no entry"
    return dict(entries)


def test_dictionaries_are_twins() -> None:
    english, chinese = words("en"), words("zh")
    assert list(english) == list(chinese)
    for key, text in english.items():
        assert set(re.findall(r"\{\w+\}", text)) == set(re.findall(r"\{\w+\}", chinese[key])), key


def test_singular_and_plural_follow_a_number_that_is_told() -> None:
    for language in ("en", "zh"):
        for key, text in words(language).items():
            for name in re.findall(r"\{(\w+)\|", text):
                assert f"{{{name}}}" in text, key
            assert text.count("|") == 2 * len(re.findall(r"\{\w+\|\w+\|\w+\}", text)), key


def test_the_words_that_scripts_use_exist_and_are_used() -> None:
    source = "\n".join(path.read_text(encoding="utf-8") for path in SCRIPTS if path.parent.name != "i18n")
    known = words("en")
    # Of keys that are put together, the beginning: `explain.${…}`.
    begun = {match[0] for match in re.findall(r"[`\"]([a-z]+\.(?:[a-z-]+\.)?)(\$\{)", source)}
    used = set(re.findall(r"\bt\(\s*\"([\w.-]+)\"", source))
    assert used <= set(known)
    literals = set(re.findall(r"\"([\w.-]+)\"", source))
    unused = {key for key in known if key not in literals and not any(key.startswith(b) for b in begun)}
    assert not unused


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.relative_to(STATIC).as_posix())
def test_scripts_make_no_markup_and_ask_nobody_else(path: Path) -> None:
    source = path.read_text(encoding="utf-8")
    for name in (
        "innerHTML",
        "outerHTML",
        "insertAdjacentHTML",
        "document.write",
        "eval(",
        "new Function",
        "DOMParser",
    ):
        assert name not in source
    for url in re.findall(r"https?://[\w.-]+", source):
        assert url == "http://www.w3.org", f"{path.name} names {url}"
    for name in re.findall(r"^import .* from \"(.*)\";$", source, re.MULTILINE):
        assert (path.parent / name).is_file(), f"{path.name} imports {name}"
