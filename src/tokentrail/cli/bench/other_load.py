"""Whether a measurement had the cores to itself."""

from __future__ import annotations

import os
import time
from pathlib import Path


class OtherLoad:
    """CPU time that neither this process nor programs it started and waited for have used, since it was made."""

    def __init__(self) -> None:
        self._start, self._others = time.monotonic(), _others()

    def share(self) -> float:
        """Of all cores' time; 0 where the system does not tell (no /proc)."""
        cores = len(os.sched_getaffinity(0))
        passed = (time.monotonic() - self._start) * cores
        return max(0.0, (_others() - self._others) / passed) if passed else 0.0


def _others() -> float:
    """CPU seconds of everyone else, time stolen by the host included."""
    try:
        first = Path("/proc/stat").read_text().splitlines()[0].split()[1:]
    except OSError:
        return 0.0
    user, nice, system, _, _, irq, softirq, steal = map(int, first[:8])
    return (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK") - sum(os.times()[:4])
