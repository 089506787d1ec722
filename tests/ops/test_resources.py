"""Cores and memory that this process may take, read from trees of files as various machines have them."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import pytest

from tokentrail.ops.native import available_memory, default_threads, usable_cores

GIB = 1 << 30
V2 = "31 23 0:28 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n"
V1 = (
    "30 23 0:27 / /sys/fs/cgroup rw - tmpfs tmpfs rw,mode=755\n"
    "32 30 0:29 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n"
    "33 30 0:30 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
)
MEMINFO = {"proc/meminfo": f"MemTotal: {64 * GIB // 1024} kB\nMemAvailable: {32 * GIB // 1024} kB\n"}


def tree(root: Path, files: Mapping[str, object]) -> Path:
    for name, content in {**MEMINFO, **files}.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(f"{content}\n")
    return root


def cpus(count: int, threads_per_core: int = 1, name: str = "core_cpus_list") -> dict[str, object]:
    """Topology as x86 numbers it: the second hyperthreads after all the first ones."""
    cores = count // threads_per_core
    return {
        f"sys/devices/system/cpu/cpu{cpu}/topology/{name}": ",".join(
            str(cpu % cores + cores * thread) for thread in range(threads_per_core)
        )
        for cpu in range(count)
    }


# --- cores -------------------------------------------------------------------------------------------


def test_hyperthreads_of_a_core_count_once(tmp_path: Path) -> None:
    root = tree(tmp_path, cpus(16, 2))
    assert usable_cores(set(range(16)), root) == 8
    assert usable_cores({0, 1, 2, 3}, root) == 4
    assert usable_cores({0, 8}, root) == 1
    assert usable_cores({0, 1, 8}, root) == 2


def test_topology_of_older_kernels(tmp_path: Path) -> None:
    assert usable_cores(set(range(8)), tree(tmp_path, cpus(8, 2, "thread_siblings_list"))) == 4


def test_unknown_topology_is_a_core_each(tmp_path: Path) -> None:
    assert usable_cores({0, 3, 5}, tree(tmp_path, {})) == 3


V2_GROUPS: list[tuple[dict[str, object], int]] = [
    ({"cpu.max": "max 100000"}, 16),
    ({"cpu.max": "400000 100000"}, 4),
    ({"cpu.max": "350000 100000"}, 3),
    ({"cpu.max": "50000 100000"}, 1),
    ({"cpu.max": "150000 50000"}, 3),
    ({"cpu.max": "6400000 100000"}, 16),
    ({"cpu.max": "max 100000", "../cpu.max": "200000 100000"}, 2),
    ({"cpu.max": "300000 100000", "../cpu.max": "200000 100000"}, 2),
    ({"cpu.max": "200000 100000", "../cpu.max": "300000 100000"}, 2),
    ({"cpu.max": "nonsense"}, 16),
    ({"cpu.max": "0 0"}, 16),
    ({"cpu.max": ""}, 16),
    ({}, 16),
]


@pytest.mark.parametrize(("group", "cores"), V2_GROUPS, ids=str)
def test_quota_of_version_2(group: Mapping[str, object], cores: int, tmp_path: Path) -> None:
    files = {os.path.normpath(f"sys/fs/cgroup/a.slice/b/{name}"): value for name, value in group.items()}
    root = tree(
        tmp_path, {**cpus(16), "proc/self/mountinfo": V2, "proc/self/cgroup": "0::/a.slice/b", **files}
    )
    assert usable_cores(set(range(16)), root) == cores


@pytest.mark.parametrize(
    ("quota", "period", "cores"), [(-1, 100000, 4), (200000, 100000, 2), (10000, 100000, 1)]
)
def test_quota_of_version_1(quota: int, period: int, cores: int, tmp_path: Path) -> None:
    group = "sys/fs/cgroup/cpu,cpuacct/docker/abc/"
    root = tree(
        tmp_path,
        {
            **cpus(4),
            "proc/self/mountinfo": V1,
            "proc/self/cgroup": "4:memory:/docker/abc\n3:cpu,cpuacct:/docker/abc\n1:name=systemd:/",
            group + "cpu.cfs_quota_us": quota,
            group + "cpu.cfs_period_us": period,
        },
    )
    assert usable_cores(set(range(4)), root) == cores


@pytest.mark.parametrize("path", ["/docker/abc", "/", "/somewhere/else"])
def test_a_container_sees_its_own_group_as_the_mount(path: str, tmp_path: Path) -> None:
    """Its path is the host's; what is mounted is the group itself."""
    root = tree(
        tmp_path,
        {
            **cpus(8),
            "proc/self/mountinfo": "32 30 0:29 /docker/abc /sys/fs/cgroup/cpu ro - cgroup cgroup rw,cpu",
            "proc/self/cgroup": f"3:cpu:{path}",
            "sys/fs/cgroup/cpu/cpu.cfs_quota_us": 300000,
            "sys/fs/cgroup/cpu/cpu.cfs_period_us": 100000,
        },
    )
    assert usable_cores(set(range(8)), root) == 3


def test_strange_files_limit_nothing(tmp_path: Path) -> None:
    root = tree(
        tmp_path,
        {
            "proc/self/mountinfo": "a b\n - \n1 2 3 / /x rw - cgroup2\n" + V2,
            "proc/self/cgroup": "\n0\n0::\nx:y\n",
            "proc/meminfo": "MemAvailable:\nMemAvailable: many kB\n",
        },
    )
    (root / "sys/fs/cgroup/cpu.max").mkdir(parents=True)
    assert usable_cores({1, 2}, root) == 2
    assert available_memory(root) > 0


@pytest.mark.parametrize(
    ("count", "threads_per_core", "quota", "threads"),
    [
        (1, 1, None, 1),
        (2, 1, None, 2),
        (4, 1, None, 4),
        (8, 1, None, 7),
        (64, 1, None, 63),
        (8, 2, None, 4),
        (16, 2, None, 8),
        (16, 2, 4, 4),
        (64, 2, 12, 11),
    ],
)
def test_threads_beside_the_api_process(
    count: int, threads_per_core: int, quota: int | None, threads: int, tmp_path: Path
) -> None:
    """One core of many is left to it, unless there are idle hyperthreads."""
    root = tree(
        tmp_path,
        {
            **cpus(count, threads_per_core),
            "proc/self/mountinfo": V2,
            "proc/self/cgroup": "0::/",
            "sys/fs/cgroup/cpu.max": "max 100000" if quota is None else f"{quota * 100000} 100000",
        },
    )
    assert default_threads(set(range(count)), root) == threads


def test_here() -> None:
    assert 1 <= default_threads() <= usable_cores() <= (os.cpu_count() or 1)


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="needs sched_setaffinity")
def test_affinity_counts() -> None:
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(before)})
    try:
        assert usable_cores() == default_threads() == 1
    finally:
        os.sched_setaffinity(0, before)


# --- memory ------------------------------------------------------------------------------------------


def memory_v2(root: Path, path: str = "/", **groups: Mapping[str, object]) -> Path:
    files = {
        f"sys/fs/cgroup/{group}/{name}": v for group, values in groups.items() for name, v in values.items()
    }
    return tree(root, {"proc/self/mountinfo": V2, "proc/self/cgroup": f"0::{path}", **files})


def test_without_limits_it_is_what_the_system_has(tmp_path: Path) -> None:
    assert available_memory(tree(tmp_path, {})) == 32 * GIB


def test_limits_of_version_2(tmp_path: Path) -> None:
    group = {"memory.max": 3 * GIB, "memory.current": GIB, "memory.stat": "anon 5\ninactive_file 0\nfile 7"}
    assert available_memory(memory_v2(tmp_path / "a", "/a", a=group)) == 2 * GIB
    assert available_memory(memory_v2(tmp_path / "b", "/a", a={**group, "memory.max": "max"})) == 32 * GIB
    assert available_memory(memory_v2(tmp_path / "c", "/a", a={**group, "memory.max": GIB // 2})) == 0
    high = {**group, "memory.max": "max", "memory.high": 2 * GIB}
    assert available_memory(memory_v2(tmp_path / "d", "/a", a=high)) == GIB


def test_file_pages_nobody_uses_are_free(tmp_path: Path) -> None:
    """A model that was just downloaded or copied fills the group's page cache with its file."""
    group = {
        "memory.max": 8 * GIB,
        "memory.current": 7 * GIB,
        "memory.stat": f"anon {GIB}\nfile {6 * GIB}\ninactive_file {5 * GIB}\nactive_file {GIB}",
    }
    assert available_memory(memory_v2(tmp_path, "/a", a=group)) == 6 * GIB


def test_more_cache_than_use_is_not_believed(tmp_path: Path) -> None:
    """The files are read one after the other, while their values change."""
    group = {"memory.max": 2 * GIB, "memory.current": GIB, "memory.stat": f"inactive_file {9 * GIB}"}
    assert available_memory(memory_v2(tmp_path, "/a", a=group)) == 2 * GIB


def test_the_tightest_of_nested_groups_counts(tmp_path: Path) -> None:
    loose = {"memory.max": 16 * GIB, "memory.current": GIB}
    tight = {"memory.max": 4 * GIB, "memory.current": GIB}
    files = {"a": tight, "a/b": loose, "a/b/c": {"memory.max": "max", "memory.current": 0}}
    assert available_memory(memory_v2(tmp_path, "/a/b/c", **files)) == 3 * GIB


def test_limits_of_version_1(tmp_path: Path) -> None:
    unlimited = 9223372036854771712
    own, top = "sys/fs/cgroup/memory/pod/own/", "sys/fs/cgroup/memory/"
    files: dict[str, object] = {
        "proc/self/mountinfo": V1,
        "proc/self/cgroup": "4:memory:/pod/own\n3:cpu,cpuacct:/",
        own + "memory.limit_in_bytes": 4 * GIB,
        own + "memory.usage_in_bytes": 3 * GIB,
        own + "memory.stat": f"inactive_file 0\ntotal_inactive_file {GIB}",
        top + "memory.limit_in_bytes": unlimited,
        top + "memory.usage_in_bytes": 20 * GIB,
    }
    assert available_memory(tree(tmp_path, files)) == 2 * GIB
    assert available_memory(tree(tmp_path, {**files, own + "memory.limit_in_bytes": unlimited})) == 32 * GIB


def test_no_more_than_the_machine_has() -> None:
    free = available_memory()
    assert free > 0
    total = Path("/proc/meminfo")
    if total.exists():
        assert free <= int(total.read_text().split()[1]) * 1024
