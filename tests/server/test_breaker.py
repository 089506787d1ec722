"""Clients that leave at any moment, in any way, among others that behave (breaker.py): nothing is left over."""

from __future__ import annotations

import sys

import pytest
from breaker import Breaker, left_over, start


@pytest.mark.timeout(300)
@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
async def test_nothing_is_left_over_of_clients_that_leave() -> None:
    server = start()
    breaker = Breaker(server, seed=5)
    await breaker.run(clients=8, seconds=1.0)
    before = left_over(server)
    await breaker.run(clients=20, seconds=3.0)
    breaker.killed_clients()
    after = left_over(server)
    status, log = server.end()
    assert status == 0, log
    assert len(breaker.did) >= 7
    for name in ("in flight", "blocks", "live journeys", "restarts"):
        assert after[name] == 0, name
    assert after["open files"] <= before["open files"] + 3
    assert after["MiB of server"] < before["MiB of server"] + 60
    assert after["MiB of engine"] < before["MiB of engine"] + 60
    bad = [line for line in log.splitlines() if " info " not in line and "ignoring the unknown" not in line]
    assert not bad
