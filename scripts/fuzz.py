#!/usr/bin/env python3
"""Damage small models of a format, open them, run what opens, and tell all that is neither an answer nor one line of
refusal: other errors, crashes, reports of sanitizers, hangs, memory without bound.

    scripts/fuzz.py FORMAT [--seconds 600] [--seed 0]     one of: gguf, safetensors, gptq, lora, tokenizer … or `all`
    scripts/fuzz.py FORMAT --replay SEED:CASE             one case again, in this process, and its files kept

With the build of `scripts/sanitize.sh` in build/sanitize-address (or `--native FILE`), kernels run under the address
and undefined-behaviour sanitizers; `--native ''` runs the installed ones. A case follows from format, seed and number
alone. Files of findings are kept under build/fuzz. Exit status 1 where there are findings. Needs what the tests need,
and Linux.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import faulthandler
import gc
import importlib
import json
import os
import pickle
import random
import resource
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NoReturn

ROOT = Path(__file__).resolve().parents[1]
KEPT = ROOT / "build" / "fuzz"
BATCH = 200
"""Cases of one process; the next begins from a fresh one."""
CPU_SECONDS = 20.0
"""Of one case, all threads together. (Other processes, and being stopped, do not count.)"""
STALLED_SECONDS = 120.0
"""Without using any processor."""
ADDRESS_SPACE = 3 << 30
RESIDENT = 768 << 20
"""Bytes that a case may take at its peak, beyond what the process had before."""


def main() -> int:
    options = _options()
    native = _native(options.native)
    if native is not None and "TOKENTRAIL_NATIVE" not in os.environ:
        _again_with(native)
    _prepare()
    from fuzzing.models import FORMATS

    formats = list(FORMATS) if options.format == "all" else [options.format]
    if unknown := set(formats) - set(FORMATS):
        raise SystemExit(f"no format {unknown.pop()!r}; there are: all, {', '.join(FORMATS)}")
    if options.replay:
        return _replay(formats[0], *map(int, options.replay.split(":")))
    findings = 0
    for format in formats:
        findings += Session(format, options.seed, options.seconds, sanitized=native is not None).run()
    return 1 if findings else 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("format")
    parser.add_argument("--seconds", type=float, default=600, help="for each format")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--replay", metavar="SEED:CASE")
    parser.add_argument("--native", help="a build of the native module; empty: the installed one")
    return parser.parse_args()


def _native(given: str | None) -> Path | None:
    if given is not None:
        return Path(given).resolve() if given else None
    return next((ROOT / "build" / "sanitize-address").glob("_native*.so"), None)


def _again_with(native: Path) -> NoReturn:
    """This command under the sanitizers' runtime, which has to be loaded before all else."""
    compiler = os.environ.get("CXX", "c++")
    libraries = [
        os.path.realpath(subprocess.check_output([compiler, f"-print-file-name={name}"], text=True).strip())
        for name in ("libasan.so", "libstdc++.so.6")
    ]
    options = "detect_leaks=0:allocator_may_return_null=1:max_allocation_size_mb=4096:exitcode=97"
    options += ":quarantine_size_mb=16:malloc_context_size=8"  # speed
    environment = {
        "LD_PRELOAD": ":".join(libraries),
        "ASAN_OPTIONS": options,
        "UBSAN_OPTIONS": "print_stacktrace=1",
        "TOKENTRAIL_NATIVE": str(native),
    }
    os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, **environment})


def _prepare() -> None:
    os.environ |= {
        "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "OPENBLAS_NUM_THREADS": "1",
        "RUST_BACKTRACE": "0",
    }
    tests = ROOT / "tests"
    sys.path[:0] = [
        str(ROOT / "scripts"),
        str(tests),
        *(str(tests / room) for room in ("models", "checkpoints")),
    ]
    importlib.import_module("native_build")  # before all else: the build that TOKENTRAIL_NATIVE names
    from fuzzing import trial

    trial.load_everything()


def _replay(format: str, seed: int, case: int) -> int:
    """The case alone, its files kept, with everything it prints."""
    from fuzzing.models import models_of

    faulthandler.enable()
    folder = KEPT / f"replay-{format}-{seed}-{case}"
    shutil.rmtree(folder, ignore_errors=True)
    print(f"files: {folder}", flush=True)
    name, kind, detail = _case(format, seed, case, models_of(format), folder)
    print(f"{name}: {kind}\n{detail}")
    return 0 if kind in ("ran", "refused") else 1


def _case(format: str, seed: int, case: int, models: list[Any], folder: Path) -> tuple[str, str, str]:
    """(model, kind of outcome, detail)."""
    from fuzzing import damage, trial

    draw = random.Random(f"{format}:{seed}:{case}")
    model = draw.choice(models)
    # Each as it is, too, one in four cases: it has to run.
    sound = case % 4 == 0 and case // 4 < len(models)
    model = models[case // 4] if sound else damage.damaged(draw, model)
    try:
        outcome = trial.run(model, folder, draw)
    except OSError as error:  # a name that no file can have
        return model.name, "ran", repr(error)
    if sound and outcome.kind == "refused":
        return model.name, "a sound model is refused", outcome.detail
    return model.name, outcome.kind, outcome.detail


class Session:
    """Cases of one format, in processes that are watched."""

    def __init__(self, format: str, seed: int, seconds: float, *, sanitized: bool) -> None:
        self.format, self.seed, self.seconds, self.sanitized = format, seed, seconds, sanitized
        self.counts: collections.Counter[str] = collections.Counter()
        self.findings: collections.Counter[str] = collections.Counter()
        memory = "/dev/shm"
        self.folder = Path(
            tempfile.mkdtemp(prefix="tokentrail-fuzz-", dir=memory if os.path.isdir(memory) else None)
        )
        self.models: list[Any] = []

    def run(self) -> int:
        try:
            self.models = self._make_models()
            started = shown = time.monotonic()
            case = 0
            while time.monotonic() - started < self.seconds:
                case = self._batch(case, started + self.seconds)
                if time.monotonic() - shown > 60:
                    shown = time.monotonic()
                    self._tell(shown - started)
            self._tell(time.monotonic() - started)
            for kind, count in self.findings.most_common():
                print(f"  {count} x {kind}")
            return len(self.findings)
        finally:
            shutil.rmtree(self.folder, ignore_errors=True)

    def _tell(self, seconds: float) -> None:
        print(
            f"{self.format}: {sum(self.counts.values())} cases in {seconds:.0f} s (seed {self.seed}"
            f"{', sanitizers on' if self.sanitized else ''}): {self.counts['refused']} refused, "
            f"{self.counts['ran']} ran, {self.counts['finding']} findings of {len(self.findings)} kinds",
            flush=True,
        )

    def _make_models(self) -> list[Any]:
        """In a process of its own, since this one must not have threads when it forks."""
        target = self.folder / "models"
        child = os.fork()
        if child == 0:
            with _exit_code_of_child():
                from fuzzing.models import models_of

                target.write_bytes(pickle.dumps(models_of(self.format)))
        if os.waitpid(child, 0)[1] != 0:
            raise SystemExit(f"{self.format}: the models could not be made")
        models: list[Any] = pickle.loads(target.read_bytes())
        return models

    def _batch(self, first: int, deadline: float) -> int:
        """Runs up to `BATCH` cases, begun before `deadline`; returns the next one's number."""
        reading, writing = os.pipe()
        errors = self.folder / "stderr"
        child = os.fork()
        if child == 0:
            with _exit_code_of_child():
                os.close(reading)
                os.dup2(os.open(errors, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), 2)
                self._work(first, writing, deadline)
        os.close(writing)
        watch = _Watch(child)
        case, pending = first - 1, b""
        with os.fdopen(reading, "rb", buffering=0) as pipe:
            while True:
                ready, _, _ = select.select([pipe], [], [], 0.5)
                if not ready:
                    if problem := watch.problem():
                        self._stop(child)
                        self._found(case, problem, errors)
                        break
                    continue
                chunk = pipe.read(65536)
                if not chunk:
                    break
                *lines, pending = (pending + chunk).split(b"\n")
                for line in lines:
                    message = json.loads(line)
                    watch.restart()
                    if "begin" in message:
                        case = message["begin"]
                    else:
                        self._count(case, message)
                        case = message["case"]
        status = os.waitpid(child, 0)[1]
        if status != 0 and not watch.told:
            number = os.waitstatus_to_exitcode(status)
            what = signal.Signals(-number).name if number < 0 else f"exit code {number}"
            self._found(case, f"crash: {_report(errors) or what}", errors)
        return case + 1

    def _stop(self, child: int) -> None:
        os.kill(child, signal.SIGUSR1)  # faulthandler tells where it is
        time.sleep(1)
        os.kill(child, signal.SIGKILL)

    def _work(self, first: int, writing: int, deadline: float) -> None:
        faulthandler.register(signal.SIGUSR1, all_threads=True)
        if not self.sanitized:
            faulthandler.enable()
        limit = _status("VmSize") + ADDRESS_SPACE
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        folder = self.folder / "case"
        for case in range(first, first + BATCH):
            if time.monotonic() > deadline:
                return
            os.write(writing, json.dumps({"begin": case}).encode() + b"\n")
            shutil.rmtree(folder, ignore_errors=True)
            Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
            before = _status("VmRSS")
            name, kind, detail = _case(self.format, self.seed, case, self.models, folder)
            gc.collect()
            taken = _status("VmHWM") - before
            if taken > RESIDENT:
                kind = f"memory: {taken >> 20} MiB, {kind}"
            message = {"case": case, "model": name, "kind": kind, "detail": detail[:4000]}
            os.write(writing, json.dumps(message).encode() + b"\n")

    def _count(self, case: int, message: dict[str, Any]) -> None:
        kind = message["kind"]
        if kind in ("ran", "refused"):
            self.counts[kind] += 1
        else:
            self._found(case, kind, None, f"{message['model']}\n{message['detail']}")

    def _found(self, case: int, kind: str, errors: Path | None, detail: str = "") -> None:
        self.counts["finding"] += 1
        self.findings[kind.partition(" MiB")[0] if kind.startswith("memory") else kind] += 1
        if self.findings[kind] > 1 and not kind.startswith("memory"):
            return
        if errors is not None:
            detail += errors.read_text(errors="replace")[-12000:]
        kept = KEPT / f"{self.format}-{self.seed}-{case}"
        shutil.rmtree(kept, ignore_errors=True)
        kept.mkdir(parents=True)
        with contextlib.suppress(OSError):
            shutil.copytree(self.folder / "case", kept / "model")
        (kept / "report.txt").write_text(f"{kind}\n{detail}\n")
        print(f"FINDING {self.format} --replay {self.seed}:{case}: {kind}", flush=True)


class _Watch:
    """Notices that a process computes for too long, or does nothing."""

    def __init__(self, child: int) -> None:
        self._child = child
        self.told = False
        self.restart()

    def restart(self) -> None:
        self._begun = self._last = self._used()
        self._moved = time.monotonic()

    def problem(self) -> str | None:
        used, now = self._used(), time.monotonic()
        if used != self._last:
            self._last, self._moved = used, now
        if used - self._begun > CPU_SECONDS:
            self.told = True
            return f"hang: more than {CPU_SECONDS:.0f} s of processor time"
        if now - self._moved > STALLED_SECONDS:
            self.told = True
            return "hang: waits for ever"
        return None

    def _used(self) -> float:
        fields = Path(f"/proc/{self._child}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@contextlib.contextmanager
def _exit_code_of_child() -> Any:
    """The forked process ends here, whatever happens."""
    code = 1
    try:
        yield
        code = 0
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _status(name: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(name + ":"):
            return int(line.split()[1]) * 1024
    return 0


def _report(errors: Path) -> str:
    """What a sanitizer, or Python, says in one line."""
    lines = errors.read_text(errors="replace").splitlines()
    for word in ("runtime error:", "ERROR: AddressSanitizer", "Fatal Python error", "Error"):
        for line in lines:
            if word in line:
                return line.strip()[:300]
    return ""


if __name__ == "__main__":
    sys.exit(main())
