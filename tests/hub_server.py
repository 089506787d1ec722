"""A server on this machine that speaks as much of Hugging Face's and ModelScope's protocols as getting models needs."""

from __future__ import annotations

import hashlib
import json
import threading
import urllib.parse
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

COMMIT = "0123456789abcdef0123456789abcdef01234567"
OLDER = "89abcdef0123456789abcdef0123456789abcdef"


@dataclass
class Repository:
    files: dict[str, bytes]
    gated: bool = False
    older: dict[str, bytes] | None = None
    """What the revision `v1` holds."""


@dataclass
class HubServer:
    """State of the server: tests change it, and look at what was asked."""

    url: str
    repositories: dict[str, Repository] = field(default_factory=dict)
    requests: list[tuple[str, str, str | None]] = field(default_factory=list)
    """(method, path, Range header) of each."""
    token: str | None = None
    """That lets into gated repositories."""
    cut_after: int | None = None
    """Break the next download off after so many bytes."""
    status: int | None = None
    """Answer everything with it."""

    def downloaded(self) -> set[str]:
        """Names of files whose content was asked for."""
        return {
            path.rpartition("/blob/")[2]
            for method, path, _ in self.requests
            if "/blob/" in path and method == "GET"
        }


def etag(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


@contextmanager
def hub_server() -> Iterator[HubServer]:
    class Handler(_Handler):
        pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    hub = HubServer(f"http://127.0.0.1:{server.server_address[1]}")
    Handler.hub = hub
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _Handler(BaseHTTPRequestHandler):
    hub: HubServer
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def do_HEAD(self) -> None:
        self._answer()

    def do_GET(self) -> None:
        self._answer()

    def _answer(self) -> None:
        hub = self.hub
        url = urllib.parse.urlsplit(self.path)
        path = urllib.parse.unquote(url.path)
        hub.requests.append((self.command, path, self.headers.get("Range")))
        if hub.status is not None:
            self._send(hub.status, b"{}")
        elif path.startswith("/api/v1/models/"):
            self._modelscope(path, dict(urllib.parse.parse_qsl(url.query)))
        elif path.startswith("/api/models/"):
            self._api(path.removeprefix("/api/models/"))
        elif "/blob/" in path:
            self._blob(path)
        elif "/resolve/" in path:
            self._resolve(path)
        else:
            self._send(404, b"{}")

    # --- Hugging Face --------------------------------------------------------------------------------

    def _find(self, name: str, revision: str) -> tuple[str, dict[str, bytes]] | None:
        """(commit, files), or None after an error was sent."""
        repository = self.hub.repositories.get(name)
        if repository is None:  # the hub does not tell whether it is not there or private
            self._send(401, b"{}", {"X-Error-Code": "RepoNotFound"})
        elif revision in ("main", COMMIT):
            return COMMIT, repository.files
        elif revision in ("v1", OLDER) and repository.older is not None:
            return OLDER, repository.older
        else:
            self._send(404, b"{}", {"X-Error-Code": "RevisionNotFound"})
        return None

    def _let_in(self, name: str) -> bool:
        repository = self.hub.repositories[name]
        if not repository.gated:
            return True
        given = self.headers.get("Authorization", "")
        if given and given == f"Bearer {self.hub.token}":
            return True
        self._send(403 if given else 401, b"{}", {"X-Error-Code": "GatedRepo"})
        return False

    def _api(self, rest: str) -> None:
        name, _, revision = rest.partition("/revision/")
        name, tree, tree_revision = name.partition("/tree/")
        found = self._find(name, tree_revision or revision or "main")
        if found is None:
            return
        commit, files = found
        if tree:
            entries = [
                {"type": "file", "path": path, "size": len(content), "oid": etag(content)[:40]}
                for path, content in files.items()
            ]
            self._json(entries)
            return
        siblings = [{"rfilename": path, "size": len(content)} for path, content in files.items()]
        self._json({"id": name, "sha": commit, "gated": False, "private": False, "siblings": siblings})

    def _resolve(self, path: str) -> None:
        name, _, rest = path.lstrip("/").partition("/resolve/")
        revision, _, file = rest.partition("/")
        found = self._find(name, revision)
        if found is None or not self._let_in(name):
            return
        commit, files = found
        content = files.get(file)
        if content is None:
            self._send(404, b"{}", {"X-Error-Code": "EntryNotFound", "X-Repo-Commit": commit})
            return
        headers = {"X-Repo-Commit": commit, "ETag": f'"{etag(content)}"'}
        if file.endswith((".safetensors", ".gguf")):  # large files lie elsewhere
            headers |= {"X-Linked-Etag": f'"{etag(content)}"', "X-Linked-Size": str(len(content))}
            elsewhere = self.hub.url.replace("127.0.0.1", "localhost")
            headers["Location"] = f"{elsewhere}/{name}/{revision}/blob/{urllib.parse.quote(file)}"
            self._send(302, b"", headers)
        else:
            self.hub.requests.append((self.command, f"/blob/{file}", None))
            self._content(content, headers)

    def _blob(self, path: str) -> None:
        name, _, rest = path.lstrip("/").partition("/blob/")
        name, _, revision = name.rpartition("/")
        found = self._find(name, revision)
        if found is not None:
            content = found[1][rest]
            self._content(content, {"ETag": f'"{etag(content)}"'})

    # --- ModelScope ----------------------------------------------------------------------------------

    def _modelscope(self, path: str, query: Mapping[str, str]) -> None:
        rest = path.removeprefix("/api/v1/models/")
        owner, name, *what = rest.split("/")
        repository = self.hub.repositories.get(f"{owner}/{name}")
        if repository is None:
            self._json({"Code": 10010205001, "Success": False, "Message": "no such model"}, 404)
        elif what == ["repo", "files"]:
            files = [
                {
                    "Path": path,
                    "Name": path.rpartition("/")[2],
                    "Size": len(content),
                    "Type": "blob",
                    "Sha256": etag(content),
                    "Revision": COMMIT,
                }
                for path, content in repository.files.items()
            ]
            self._json({"Code": 200, "Success": True, "Data": {"Files": files}})
        elif what == ["repo"] and query.get("FilePath") in repository.files:
            self.hub.requests.append((self.command, f"/blob/{query['FilePath']}", None))
            self._content(repository.files[query["FilePath"]], {})
        elif what == ["revisions"]:
            revisions = {"Branches": [{"Revision": "master"}], "Tags": []}
            self._json({"Code": 200, "Success": True, "Data": {"RevisionMap": revisions}})
        elif not what:
            self._json({"Code": 200, "Success": True, "Data": {"Name": name, "Path": owner}})
        else:
            self._json({"Code": 404, "Success": False, "Message": "not found"}, 404)

    # --- answers -------------------------------------------------------------------------------------

    def _json(self, value: Any, status: int = 200) -> None:
        self._send(status, json.dumps(value).encode(), {"Content-Type": "application/json"})

    def _content(self, content: bytes, headers: Mapping[str, str]) -> None:
        wanted = self.headers.get("Range")
        status, more = 200, {"Accept-Ranges": "bytes", **headers}
        part = content
        if wanted and wanted.startswith("bytes="):
            first, _, last = wanted.removeprefix("bytes=").partition("-")
            start = int(first)
            stop = int(last) + 1 if last else len(content)
            part = content[start:stop]
            status = 206
            more["Content-Range"] = f"bytes {start}-{start + len(part) - 1}/{len(content)}"
        cut = self.hub.cut_after
        if cut is not None and self.command == "GET" and len(part) > cut:
            self.hub.cut_after = None
            self._send(status, part, more, only=cut)
            self.close_connection = True
            return
        self._send(status, part, more)

    def _send(
        self, status: int, body: bytes, headers: Mapping[str, str] | None = None, *, only: int | None = None
    ) -> None:
        self.send_response(status)
        for key, value in (headers or {}).items():
            self.send_header(key, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body if only is None else body[:only])
            self.wfile.flush()
