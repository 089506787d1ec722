"""CPU, memory and GPUs: what the processes below this one (engines) use, read when somebody scrapes."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric

_PROC = Path("/proc")


class Usage(NamedTuple):
    """Of a process."""

    pid: int
    cpu_seconds: float
    resident_bytes: int


class Gpu(NamedTuple):
    """Of a device."""

    number: int
    busy: float
    """Part of the last moment in which it computed, 1 being all of it."""
    used_bytes: int
    total_bytes: int


def children_usage(proc: Path = _PROC, pid: int | None = None) -> list[Usage]:
    """Of the processes that this one has started; empty where there is no /proc."""
    tasks = proc / str(os.getpid() if pid is None else pid) / "task"
    found: set[int] = set()
    try:
        for task in tasks.iterdir():
            found |= set(map(int, (task / "children").read_text().split()))
    except OSError:
        return []
    usages = [_usage(proc, child) for child in sorted(found)]
    return [one for one in usages if one is not None]


def _usage(proc: Path, pid: int) -> Usage | None:
    try:
        # The name, in parentheses, may hold spaces and parentheses itself.
        fields = (proc / str(pid) / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None  # it has just ended
    user, system, resident = int(fields[11]), int(fields[12]), int(fields[21])
    return Usage(pid, (user + system) / os.sysconf("SC_CLK_TCK"), resident * os.sysconf("SC_PAGE_SIZE"))


class _Utilization(ctypes.Structure):
    _fields_ = (("gpu", ctypes.c_uint), ("memory", ctypes.c_uint))


class _Memory(ctypes.Structure):
    _fields_ = (("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong))


@cache
def _nvml() -> Any:
    """NVIDIA's management library, which comes with its driver; None: there is none, or no device."""
    try:
        library = ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        return None
    return library if library.nvmlInit_v2() == 0 else None


def gpus(library: Any = None) -> list[Gpu]:
    """All NVIDIA GPUs of this machine. `library`: NVML, if not the driver's."""
    library = library or _nvml()
    if library is None:
        return []
    count = ctypes.c_uint()
    if library.nvmlDeviceGetCount_v2(ctypes.byref(count)) != 0:
        return []
    found = []
    for index in range(count.value):
        device, busy, memory = ctypes.c_void_p(), _Utilization(), _Memory()
        if (
            library.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(device)) == 0
            and library.nvmlDeviceGetUtilizationRates(device, ctypes.byref(busy)) == 0
            and library.nvmlDeviceGetMemoryInfo(device, ctypes.byref(memory)) == 0
        ):
            found.append(Gpu(index, busy.gpu / 100, memory.used, memory.total))
    return found


def process_families() -> Iterator[Metric]:
    """For `Metrics.collect`."""
    from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily

    children = children_usage()
    seconds = CounterMetricFamily(
        "tokentrail_engine_process_cpu_seconds", "CPU time of an engine process", labels=["pid"]
    )
    memory = GaugeMetricFamily(
        "tokentrail_engine_process_resident_memory_bytes", "Memory of an engine process", labels=["pid"]
    )
    for one in children:
        seconds.add_metric([str(one.pid)], one.cpu_seconds)
        memory.add_metric([str(one.pid)], one.resident_bytes)
    yield seconds
    yield memory
    if not (devices := gpus()):
        return
    for name, text, field in (
        ("utilization_perc", "Part of the time in which a GPU computes, 1 being all of it", "busy"),
        ("memory_used_bytes", "Memory of a GPU that is in use", "used_bytes"),
        ("memory_bytes", "Memory of a GPU", "total_bytes"),
    ):
        gauge = GaugeMetricFamily(f"tokentrail_gpu_{name}", text, labels=["gpu"])
        for device in devices:
            gauge.add_metric([str(device.number)], getattr(device, field))
        yield gauge
