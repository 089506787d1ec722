"""What this process may take of the machine: cores and memory, by affinity, control groups and what is free.

Sources: cgroups(7), and the kernel's admin-guide/cgroup-v1 and cgroup-v2; topology from Documentation/ABI
(sysfs-devices-system-cpu). Whatever cannot be read does not limit.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

_ROOT = Path("/")
_LEAVE_ONE_FROM = 8
"""From so many cores on, one is left to the API process: an eighth of the arithmetic at most, and nothing of
decoding, which waits for memory."""


def usable_cores(affinity: set[int] | None = None, root: Path = _ROOT) -> int:
    """Cores to compute on: those of `affinity` (default: this process's own, which cpusets have cut already),
    hyperthreads of one core counted once, cut to the CPU time that the control groups allow, at least 1.

    A share of a core counts as none: who is out of time waits for a tenth of a second, and all others with it.
    """
    cpus = _affinity() if affinity is None else affinity
    return max(1, min(len(_physical(cpus, root)), int(min(_quotas(root), default=len(cpus)))))


def default_threads(affinity: set[int] | None = None, root: Path = _ROOT) -> int:
    """Threads to compute with when nobody says.

    All usable cores of a small machine, where the API process needs little of any one: tiles go to whoever is free.
    Of a larger one, one less, where the API process has no idle hyperthread to run on.
    """
    cpus = _affinity() if affinity is None else affinity
    cores = usable_cores(cpus, root)
    limited = cores < len(_physical(cpus, root))
    if cores >= _LEAVE_ONE_FROM and (limited or cores == len(cpus)):
        return cores - 1
    return cores


def available_memory(root: Path = _ROOT) -> int:
    """Bytes this process may still take: what the system has free, cut to what its control groups leave.

    File pages that nobody has used lately do not count as used: the kernel drops them when memory is needed (what
    Kubernetes calls a container's working set).
    """
    free = _system_memory(root)
    for folder in _groups(root, "memory"):
        for limit_name, used_name, reclaimable in (
            ("memory.max", "memory.current", "inactive_file"),
            ("memory.high", "memory.current", "inactive_file"),  # above it, a group is slowed down
            ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
        ):
            limit, used = _number(folder / limit_name), _number(folder / used_name)
            if limit is None or used is None:
                continue
            cache = min(_entry(folder / "memory.stat", reclaimable) or 0, used)
            free = min(free, limit - used + cache)
    return max(free, 0)


# --- cores -----------------------------------------------------------------------------------------------


def _affinity() -> set[int]:
    try:
        return set(os.sched_getaffinity(0))
    except AttributeError:  # not on macOS
        return set(range(os.cpu_count() or 1))


def _physical(cpus: set[int], root: Path) -> set[object]:
    """The cores behind these CPUs; a CPU of unknown topology is a core of its own."""
    cores: set[object] = set()
    for cpu in cpus:
        topology = root / f"sys/devices/system/cpu/cpu{cpu}/topology"
        # The second name is that of kernels before 5.4.
        siblings = _text(topology / "core_cpus_list") or _text(topology / "thread_siblings_list")
        cores.add(siblings or cpu)
    return cores


def _quotas(root: Path) -> Iterator[float]:
    """CPUs' worth of time that each control group around us allows, where it has a limit."""
    for folder in _groups(root, "cpu"):
        version2 = (_text(folder / "cpu.max") or "").split()
        quota: int | None
        period: int | None
        if len(version2) == 2:
            quota, period = _integer(version2[0]), _integer(version2[1])
        else:
            quota, period = _number(folder / "cpu.cfs_quota_us"), _number(folder / "cpu.cfs_period_us")
        if quota is not None and period is not None and quota > 0 and period > 0:
            yield quota / period


# --- control groups --------------------------------------------------------------------------------------


def _groups(root: Path, controller: str) -> Iterator[Path]:
    """Folders of the control groups that this process is in, from its own up to the topmost one visible here.

    A container mostly sees its own group as the root of the mount (mountinfo's fourth field names it), while
    /proc/self/cgroup may give the path that the host sees.
    """
    paths = {}
    for line in (_text(root / "proc/self/cgroup") or "").splitlines():
        _, _, rest = line.partition(":")
        names, _, path = rest.partition(":")
        paths.update(dict.fromkeys(names.split(","), path))  # version 2 has no names
    for line in (_text(root / "proc/self/mountinfo") or "").splitlines():
        fields, _, kind = line.partition(" - ")
        mount, (filesystem, *options) = fields.split(), (kind.split() or [""])
        if len(mount) < 5 or len(options) < 2:
            continue
        if filesystem == "cgroup2":
            group = paths.get("")
        elif filesystem == "cgroup" and controller in options[1].split(","):
            group = paths.get(controller)
        else:
            continue
        if not group:
            continue
        top = Path(os.path.normpath(root / _unescape(mount[4]).lstrip("/")))
        inside = os.path.relpath("/" + group.lstrip("/"), "/" + _unescape(mount[3]).lstrip("/"))
        folder = top if inside.startswith("..") else Path(os.path.normpath(top / inside))
        yield folder
        while folder != top:
            folder = folder.parent
            yield folder


def _unescape(field: str) -> str:
    """mountinfo writes spaces and the like as octal numbers."""
    for code, sign in (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")):
        field = field.replace(code, sign)
    return field


# --- reading ---------------------------------------------------------------------------------------------


def _system_memory(root: Path) -> int:
    for line in (_text(root / "proc/meminfo") or "").splitlines():
        name, _, amount = line.partition(":")
        kib = _integer(amount.split()[0]) if name == "MemAvailable" and amount.split() else None
        if kib is not None:
            return kib * 1024
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")  # macOS: all there is


def _text(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return None


def _integer(text: str) -> int | None:
    try:
        return int(text)
    except ValueError:  # `max`: no limit
        return None


def _number(path: Path) -> int | None:
    text = _text(path)
    return None if text is None else _integer(text)


def _entry(path: Path, name: str) -> int | None:
    """A value of a file of `name value` lines."""
    for line in (_text(path) or "").splitlines():
        key, _, value = line.partition(" ")
        if key == name:
            return _integer(value)
    return None
