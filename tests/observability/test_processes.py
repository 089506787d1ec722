"""What engine processes and GPUs use."""

from __future__ import annotations

import ctypes
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tokentrail.observability import Metrics
from tokentrail.observability.processes import children_usage, gpus


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="there is no /proc")
def test_a_child_is_measured_while_it_is_there() -> None:
    code = "sum(range(10**6)); print(len(bytearray(b'x') * 50_000_000), flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout is not None
        child.stdout.readline()
        (usage,) = [one for one in children_usage() if one.pid == child.pid]
        assert usage.cpu_seconds > 0
        text = Metrics("m").render()[0].decode()
        assert f'tokentrail_engine_process_cpu_seconds_total{{pid="{child.pid}"}}' in text
        assert f'tokentrail_engine_process_resident_memory_bytes{{pid="{child.pid}"}}' in text
        child.communicate("\n")
    assert not [one for one in children_usage() if one.pid == child.pid]


def test_names_of_processes_may_be_anything(tmp_path: Path) -> None:
    (tmp_path / "1/task/1").mkdir(parents=True)
    (tmp_path / "1/task/1/children").write_text("7 8 ")
    (tmp_path / "7").mkdir()
    rest = "S 1 1 1 0 -1 0 0 0 0 0 250 50 0 0 20 0 4 0 100 9000 25 0"
    (tmp_path / "7/stat").write_text(f"7 (a) b (c) {rest}")
    (usage,) = children_usage(tmp_path, 1)
    assert usage.pid == 7
    assert usage.cpu_seconds > 0
    assert usage.resident_bytes >= 25 * 4096
    assert children_usage(tmp_path, 2) == []


class Nvml:
    """As NVIDIA's library answers; its second device does not."""

    def nvmlDeviceGetCount_v2(self, count: Any) -> int:
        ctypes.cast(count, ctypes.POINTER(ctypes.c_uint))[0] = 2
        return 0

    def nvmlDeviceGetHandleByIndex_v2(self, index: int, device: Any) -> int:
        return 0 if index == 0 else 6

    def nvmlDeviceGetUtilizationRates(self, device: Any, busy: Any) -> int:
        busy._obj.gpu = 75
        return 0

    def nvmlDeviceGetMemoryInfo(self, device: Any, memory: Any) -> int:
        memory._obj.total, memory._obj.used = 100, 40
        return 0


def test_gpus_are_told_where_there_are_any() -> None:
    assert [tuple(one) for one in gpus(Nvml())] == [(0, 0.75, 40, 100)]
