"""The machine's limits are measured on work that was really done."""

from __future__ import annotations

import pytest

from tokentrail.ops.native import MachineProbe, available_isas

# Four 64-byte vector operations a cycle at 8 GHz, and memory on the processor's own package: no core does more. A
# loop that the compiler took away would.
FASTEST = {"int4": 64, "int8": 64, "bf16": 32, "f32": 16}
CYCLES = 4 * 8e9


@pytest.mark.parametrize("isa", available_isas())
def test_rates_of_products_are_those_of_a_processor(isa: str) -> None:
    rates = MachineProbe(1, isa=isa).macs(seconds=0.02)
    assert rates.keys() == FASTEST.keys()
    for name, rate in rates.items():
        assert 1e7 < rate < FASTEST[name] * CYCLES, name


@pytest.mark.parametrize("threads", [1, 2])
def test_memory_reads_at_the_rate_of_a_memory(threads: int) -> None:
    assert 1e8 < MachineProbe(threads).bandwidth() < threads * 3e11
