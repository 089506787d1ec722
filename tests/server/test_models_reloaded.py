"""Models of this machine come, change and go with the deployment file, while the server answers."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

FLAGS = "threads: 1, max-num-seqs: 4, kv-cache-memory: 128MiB"


class Served:
    """`tokentrail serve --config`."""

    def __init__(self, folder: Path) -> None:
        self.file = folder / "deploy.yaml"
        self.log = folder / "log"

    def write(self, *models: str, to: str) -> None:
        listed = "".join(f"  - {model}\n" for model in models)
        self.file.write_text(f"models:\n{listed}routes: [{{name: chat, targets: [{to}]}}]\n")

    def start(self) -> None:
        command = [sys.executable, "-m", "tokentrail", "serve", "--config", str(self.file), "--port", "0"]
        with self.log.open("a") as log:
            self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
        assert self.process.stdout is not None
        banner = self.process.stdout.readline()
        assert " at http://" in banner, self.log.read_text()
        self.http = httpx.Client(base_url=banner.split(" at ")[1].strip().removesuffix("/v1"), timeout=120)

    def reload(self) -> None:
        self.process.send_signal(signal.SIGHUP)

    def lengths(self) -> dict[str, int]:
        """Names and contexts of what can be asked."""
        return {one["id"]: one["max_model_len"] for one in self.http.get("/v1/models").json()["data"]}

    def engines(self) -> int:
        pid = self.process.pid
        return len(Path(f"/proc/{pid}/task/{pid}/children").read_text().split())

    def wait(self, lengths: dict[str, int], engines: int) -> None:
        end = time.monotonic() + 120
        while (self.lengths(), self.engines()) != (lengths, engines):
            assert time.monotonic() < end, (self.lengths(), self.engines(), self.log.read_text())
            time.sleep(0.05)

    def told(self, what: str) -> None:
        end = time.monotonic() + 120
        while what not in self.log.read_text():
            assert time.monotonic() < end, self.log.read_text()
            time.sleep(0.05)

    def ask(self, model: str, **more: Any) -> httpx.Response:
        return self.http.post("/v1/completions", json={"model": model, "prompt": "One, two,", **more})


@pytest.fixture
def served(tmp_path: Path, demo_path: Path) -> Iterator[Served]:
    one = Served(tmp_path)
    yield one
    one.http.close()
    one.process.kill()
    one.process.communicate()


def test_models_come_change_and_go(served: Served) -> None:
    served.write(f"{{name: one, model: demo, flags: {{max-model-len: 512, {FLAGS}}}}}", to="one")
    served.start()
    assert served.lengths() == {"chat": 512, "one": 512}
    body = {"temperature": 0, "max_tokens": 400, "ignore_eos": True}
    expected = served.ask("one", **body).json()["choices"][0]["text"]

    # Another one takes its place, while it still answers.
    got: list[str] = []
    begun = threading.Event()

    def stream() -> None:
        asked = {"model": "chat", "prompt": "One, two,", "stream": True, **body}
        with served.http.stream("POST", "/v1/completions", json=asked) as reply:
            for line in reply.iter_lines():
                if line.startswith("data: {"):
                    got.append(json.loads(line[6:])["choices"][0]["text"])
                    begun.set()

    thread = threading.Thread(target=stream)
    thread.start()
    assert begun.wait(60)
    served.write(f"{{name: two, model: demo, flags: {{max-model-len: 256, {FLAGS}}}}}", to="two")
    served.reload()
    served.wait({"chat": 256, "two": 256}, engines=1)
    thread.join(60)
    assert "".join(got) == expected
    assert served.ask("chat", max_tokens=2).headers["x-tokentrail-served-by"] == "two"
    assert served.ask("one", max_tokens=2).status_code == 404

    # Its own flags change: an engine with them takes over.
    served.write(f"{{name: two, model: demo, flags: {{max-model-len: 384, {FLAGS}}}}}", to="two")
    served.reload()
    served.wait({"chat": 384, "two": 384}, engines=1)
    assert served.ask("two", max_tokens=2).status_code == 200
    samples = Counter(
        line.rsplit(" ", 1)[0]
        for line in served.http.get("/metrics").text.splitlines()
        if not line.startswith("#")
    )
    assert [sample for sample, count in samples.items() if count > 1] == []
    assert samples['tokentrail_engine_up{model_name="two"}'] == 1
    assert samples['tokentrail_engine_up{model_name="one"}'] == 0
    assert samples['tokentrail_requests_total{model_name="one",outcome="length"}'] == 1

    # What does not start changes nothing.
    for wrong, why in (
        ("{name: three, model: ./no.gguf}", "there is no file or folder ./no.gguf"),
        (f"{{name: three, model: demo, flags: {{max-model-len: 100000, {FLAGS}}}}}", "is not applied"),
    ):
        served.write(wrong, to="three")
        served.reload()
        served.told(why)
        assert served.ask("chat", max_tokens=2).status_code == 200
        served.wait({"chat": 384, "two": 384}, engines=1)
        served.log.write_text("")

    # It ends as ever, and with it what has come later.
    served.process.send_signal(signal.SIGTERM)
    assert served.process.wait(60) == 0
