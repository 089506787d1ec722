"""A PostgreSQL of its own for tests: Debian's `postgresql`, reached by a socket in a folder of its own."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import pytest

_SETTINGS = {
    # Nothing has to survive the machine.
    "fsync": "off",
    "full_page_writes": "off",
    "listen_addresses": "",
    "shared_buffers": "16MB",
    "max_connections": "60",
    "autovacuum": "off",
}


def programs() -> Path:
    """The folder of its programs. Skips the test where there is none."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: float(path.parts[4]))
    if found:
        return found[-1].parent
    path = shutil.which("initdb")
    if path is None:
        pytest.skip("PostgreSQL is not installed (apt install postgresql)")
    return Path(path).parent


class PostgresServer:
    def __init__(self) -> None:
        self._bin = programs()
        # Its server refuses to run as root.
        self._as: dict[str, Any] = {}
        self.folder = Path(tempfile.mkdtemp(prefix="tt-pg-"))
        if os.getuid() == 0:
            try:
                user = pwd.getpwnam("postgres")
            except KeyError:
                pytest.skip("there is no user postgres, and PostgreSQL does not run as root")
            os.chown(self.folder, user.pw_uid, user.pw_gid)
            self._as = {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}
        self._made = 0
        self._run(
            "initdb", "-D", f"{self.folder}/data", "-U", "postgres", "-A", "trust", "--no-sync", "-E", "UTF8"
        )
        self.start()

    def start(self) -> None:
        options = " ".join(f"-c {name}={value}" for name, value in _SETTINGS.items())
        self._run(
            "pg_ctl", "-D", f"{self.folder}/data", "-l", f"{self.folder}/log", "-w", "-t", "60",
            "-o", f"-k {self.folder} {options}", "start",
        )  # fmt: skip

    def stop(self, mode: str = "fast") -> None:
        """`immediate`: as if it had crashed."""
        self._run("pg_ctl", "-D", f"{self.folder}/data", "-m", mode, "-w", "-t", "60", "stop")

    def remove(self) -> None:
        try:
            self.stop("immediate")
        except AssertionError:
            pid = int((self.folder / "data/postmaster.pid").read_text().split()[0])
            os.kill(pid, signal.SIGKILL)
        shutil.rmtree(self.folder, ignore_errors=True)

    def url(self, name: str) -> str:
        return f"postgresql://postgres@/{name}?host={self.folder}"

    def new_database(self) -> str:
        self._made += 1
        name = f"test_{self._made}"
        self._run("createdb", "-h", str(self.folder), "-U", "postgres", name)
        return self.url(name)

    def _run(self, program: str, *arguments: str) -> None:
        with (
            tempfile.TemporaryFile() as said
        ):  # a pipe would stay open as long as the server that inherits it
            done = subprocess.run(
                [str(self._bin / program), *arguments],
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=said,
                cwd="/",
                timeout=90,
                check=False,
                **self._as,
            )
            said.seek(0)
            assert done.returncode == 0, (program, said.read()[-2000:])
