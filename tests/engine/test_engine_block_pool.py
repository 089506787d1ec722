"""The block pool's books, under any sequence of operations."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tokentrail.engine.block_pool import BlockPool

SIZE = 8


class PoolMachine(RuleBasedStateMachine):
    """The pool against a model: tables of holders, what each block holds, and the order in which blocks were
    left.
    """

    def __init__(self) -> None:
        super().__init__()
        self.pool = BlockPool(SIZE)
        self.tables: list[list[int]] = []
        self.content: dict[int, bytes] = {}
        self.freed: list[int] = []
        self.serial = 0

    def used(self) -> set[int]:
        return {block for table in self.tables for block in table}

    @rule(count=st.integers(0, SIZE))
    def allocate(self, count: int) -> None:
        free = SIZE - len(self.used())
        if count > free:
            with pytest.raises(RuntimeError):
                self.pool.allocate(count)
            return
        plain = free - sum(block in self.content for block in self.freed)
        remembered = [block for block in self.freed if block in self.content]
        taken = self.pool.allocate(count)
        assert not self.used() & set(taken)
        # Blocks that nobody can find go first, then those left longest ago.
        assert [block for block in taken if block in self.content] == remembered[: max(0, count - plain)]
        for block in taken:
            self.content.pop(block, None)
            if block in self.freed:
                self.freed.remove(block)
        self.tables.append(taken)

    @precondition(lambda self: any(self.tables))
    @rule(data=st.data())
    def register(self, data: st.DataObject) -> None:
        block = data.draw(st.sampled_from([block for table in self.tables for block in table]))
        if block in self.content:
            return
        key = data.draw(st.sampled_from([b"a", b"b", b"c", b"d"]))
        if key not in self.content.values():
            self.content[block] = key
        self.pool.register(block, key)

    @precondition(lambda self: self.content)
    @rule(data=st.data())
    def share(self, data: st.DataObject) -> None:
        block = data.draw(st.sampled_from(sorted(self.content)))
        assert self.pool.find(self.content[block]) == block
        self.pool.acquire([block])
        if block in self.freed:
            self.freed.remove(block)
        self.tables.append([block])

    @precondition(lambda self: self.tables)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        table = self.tables.pop(data.draw(st.integers(0, len(self.tables) - 1)))
        self.pool.release(table)
        left = self.used()
        self.freed += [block for block in reversed(table) if block not in left]

    @invariant()
    def books_agree(self) -> None:
        self.pool.check(self.tables)
        assert self.pool.num_used == len(self.used())
        assert self.pool.num_free + self.pool.num_used == SIZE
        for key in (b"a", b"b", b"c", b"d"):
            holders = [block for block, held in self.content.items() if held == key]
            assert self.pool.find(key) == (holders[0] if holders else None)


PoolMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
TestPool = PoolMachine.TestCase


def test_a_double_release_is_noticed() -> None:
    pool = BlockPool(2)
    blocks = pool.allocate(1)
    pool.release(blocks)
    with pytest.raises(RuntimeError, match="twice"):
        pool.release(blocks)


def test_the_check_finds_wrong_books() -> None:
    pool = BlockPool(4)
    table = pool.allocate(2)
    pool.check([table])
    for wrong in ([], [table, table], [[table[0], table[0]]]):
        with pytest.raises(AssertionError):
            pool.check(wrong)
