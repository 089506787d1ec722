"""Starting servers for a measurement, and ending them whatever happens."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


@contextmanager
def server(
    command: Sequence[str], url: str, *, timeout: float = 120.0, log_file: Path | None = None
) -> Iterator[subprocess.Popen[bytes]]:
    """Run `command` until the block ends; it begins when `url`/health answers 200. `log_file`: for what it says."""
    with tempfile.TemporaryFile() if log_file is None else log_file.open("wb+") as log:
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL)
        try:
            _wait_until_healthy(process, url, timeout)
            yield process
        except RuntimeError:
            log.seek(0)
            print(log.read().decode("utf-8", "replace")[-2000:], file=sys.stderr)
            raise
        finally:
            process.terminate()
            try:
                process.wait(timeout=40)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _wait_until_healthy(process: subprocess.Popen[bytes], url: str, timeout: float) -> None:
    deadline = time.monotonic() + timeout
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise RuntimeError(f"the server ended with exit code {process.returncode}")
        try:
            with urllib.request.urlopen(f"{url}/health", timeout=2) as response:
                if response.status == 200:
                    return
        except (urllib.error.URLError, OSError):
            pass
        time.sleep(0.05)
    raise RuntimeError(f"the server did not become healthy in {timeout:g} s")


def tokentrail(*arguments: str | Path | int) -> list[str]:
    """The command line of this environment's `tokentrail`."""
    return [sys.executable, "-m", "tokentrail", *map(str, arguments)]


def family(pid: int) -> list[int]:
    """A process and all that descend from it (Linux)."""
    found = [pid]
    for parent in found:
        for task in Path(f"/proc/{parent}/task").glob("*/children"):
            found += map(int, task.read_text().split())
    return found


def thread_seconds(pids: Sequence[int]) -> dict[str, float]:
    """CPU seconds so far of each thread, by its name, its process's and its number (Linux)."""
    spent = {}
    for pid in pids:
        process = Path(f"/proc/{pid}/comm").read_text().strip()
        for task in Path(f"/proc/{pid}/task").iterdir():
            fields = (task / "stat").read_text()
            name = fields[fields.index("(") + 1 : fields.rindex(")")]
            times = fields.rpartition(")")[2].split()
            ticks = int(times[11]) + int(times[12])
            spent[f"{process}/{name} {task.name}"] = ticks / os.sysconf("SC_CLK_TCK")
    return spent
