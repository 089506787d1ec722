"""The pool of KV blocks: who holds which, which content is remembered, which block goes next."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable

FREE, CACHED, USED, SHARED = range(4)
"""States of a block: nobody's; nobody's, but what it holds can still be found; one sequence's; several sequences'."""


class BlockPool:
    """`num_blocks` blocks, reference-counted. A block whose count falls to 0 is free, but what it holds can
    still be found by its hash until the block is handed out again; the least recently used goes first.

    A registered block never changes: only full blocks are registered, and writers hold unregistered ones
    alone.
    """

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self._refs = [0] * num_blocks
        # Insertion order is eviction order. Blocks without remembered content stand in front.
        self._free: OrderedDict[int, None] = OrderedDict.fromkeys(range(num_blocks))
        self._block_of: dict[bytes, int] = {}
        self._hash_of: list[bytes | None] = [None] * num_blocks
        self.states = bytearray(num_blocks)
        """Each block's state, kept up to date, so that looking at them costs a copy."""

    @property
    def num_free(self) -> int:
        return len(self._free)

    @property
    def num_used(self) -> int:
        return self.num_blocks - len(self._free)

    def refs(self, block: int) -> int:
        return self._refs[block]

    def hash_of(self, block: int) -> bytes | None:
        return self._hash_of[block]

    def find(self, key: bytes) -> int | None:
        """The block that holds this content. It is not acquired."""
        return self._block_of.get(key)

    def allocate(self, count: int) -> list[int]:
        """Take `count` free blocks, to be written to; their old content is forgotten. Needs count <=
        num_free.
        """
        if count > len(self._free):
            raise RuntimeError(f"{count} blocks wanted, {len(self._free)} free")
        taken = []
        for _ in range(count):
            block, _ = self._free.popitem(last=False)
            key = self._hash_of[block]
            if key is not None:
                del self._block_of[key]
                self._hash_of[block] = None
            self._refs[block] = 1
            self.states[block] = USED
            taken.append(block)
        return taken

    def acquire(self, blocks: Iterable[int]) -> None:
        """Share blocks that `find` returned."""
        for block in blocks:
            if self._refs[block] == 0:
                del self._free[block]
                self.states[block] = USED
            else:
                self.states[block] = SHARED
            self._refs[block] += 1

    def release(self, blocks: list[int]) -> None:
        """Give up one reference to each. The end of a sequence is evicted before its beginning, which more
        may share.
        """
        for block in reversed(blocks):
            refs = self._refs[block] - 1
            if refs < 0:
                raise RuntimeError(f"block {block} released twice")
            self._refs[block] = refs
            if refs == 1:
                self.states[block] = USED
            elif refs == 0:
                self._free[block] = None
                self.states[block] = CACHED
                if self._hash_of[block] is None:
                    self._free.move_to_end(block, last=False)
                    self.states[block] = FREE

    def register(self, block: int, key: bytes) -> None:
        """Remember the content of a full block. When another block already holds it, that one stays the known
        one.
        """
        if key not in self._block_of:
            self._block_of[key] = block
            self._hash_of[block] = key

    def check(self, tables: Iterable[list[int]]) -> None:
        """Raise AssertionError unless the books agree with the block tables of all sequences. For tests."""
        counts = [0] * self.num_blocks
        for table in tables:
            assert len(set(table)) == len(table), "a block stands twice in one table"
            for block in table:
                counts[block] += 1
        assert counts == self._refs, "reference counts differ from the tables"
        assert {block for block, refs in enumerate(counts) if refs == 0} == set(self._free), (
            "free list is wrong"
        )
        for block, refs in enumerate(counts):
            state = min(refs + 1, SHARED) if refs else CACHED if self._hash_of[block] is not None else FREE
            assert self.states[block] == state, f"block {block} is told of wrongly"
        for key, block in self._block_of.items():
            assert self._hash_of[block] == key, "hash maps disagree"
        assert sum(key is not None for key in self._hash_of) == len(self._block_of), "hash maps disagree"
