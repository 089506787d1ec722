"""The kernels built for arm64, under emulation: a small part of what scripts/test_arm64.sh runs."""

from __future__ import annotations

import os
import platform
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SUBSET = [
    "tests/ops/test_matmul.py",
    "tests/ops/test_same_bytes.py",
    "-k",
    "more_rows or extreme or not_a_number or attention_rows",
]


@pytest.mark.timeout(600)
def test_arm64_kernels_under_emulation() -> None:
    """Every NEON variant against the reference, and rows bit for bit; skipped where nothing is prepared for it."""
    script = ROOT / "scripts" / "test_arm64.sh"
    if platform.machine() == "aarch64" or not script.exists():
        pytest.skip("arm64 runs these tests itself" if script.exists() else "not in a checkout")
    done = subprocess.run(
        [script, "--prepared", *SUBSET],
        env=os.environ | {"PYTEST_ADDOPTS": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode == 77:
        pytest.skip(done.stderr.strip())
    assert done.returncode == 0, done.stdout + done.stderr
    assert " passed" in done.stdout
