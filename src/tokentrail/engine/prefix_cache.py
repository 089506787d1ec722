"""Which KV blocks a prompt can take over instead of computing them: a keyed hash chain over token ids."""

from __future__ import annotations

import os
from hashlib import blake2b

from tokentrail.engine.block_pool import BlockPool
from tokentrail.engine.sequence import Sequence

_DIGEST = 16
"""Bytes of a hash. That two different prefixes share one has a chance of about 2^-64 after 2^32 blocks; and
as the key is secret to the process, nobody can prepare a pair. So a hash stands for its prefix, and tokens
are not compared.
"""


class PrefixCache:
    """Finds and remembers full blocks of `block_size` tokens by hash(key, hash of the block before, tokens).

    The chain begins with the request's salt and adapter, so requests of different ones share nothing.

    At most the blocks before the last token are matched, so that there is always a token left to compute,
    whose logits start the answer. A prompt that is cached to its last token therefore recomputes its last
    block, into a block of its own: a shared block is never written, nothing is copied, and the price is one
    block of prefill at most.
    """

    def __init__(
        self, pool: BlockPool, block_size: int, *, enabled: bool = True, key: bytes | None = None
    ) -> None:
        self.enabled = enabled
        self._pool = pool
        self._block_size = block_size
        self._key = os.urandom(32) if key is None else key

    def match(self, sequence: Sequence) -> tuple[list[int], bytes | None]:
        """Blocks that hold the longest remembered prefix of the sequence, not acquired; and the hash of the
        next block, if that could be shared too.
        """
        if not self.enabled or sequence.needs_all_positions:
            return [], None
        limit = (sequence.num_tokens - 1) // self._block_size
        keys = self._keys(sequence, limit)
        blocks: list[int] = []
        for at in range(limit):
            block = self._pool.find(keys[at])
            if block is None:
                return blocks, keys[at]
            blocks.append(block)
        return blocks, None

    def upcoming(self, sequence: Sequence, count: int) -> list[bytes]:
        """Hashes of the blocks that computing `count` more tokens will fill."""
        if not self.enabled:
            return []
        first, end = (
            sequence.num_computed // self._block_size,
            (sequence.num_computed + count) // self._block_size,
        )
        return self._keys(sequence, end)[first:end]

    def register(self, sequence: Sequence) -> None:
        """Remember the blocks that the sequence has filled."""
        full = sequence.num_computed // self._block_size
        if self.enabled:
            keys = self._keys(sequence, full)
            for at in range(sequence.num_registered, full):
                self._pool.register(sequence.blocks[at], keys[at])
        sequence.num_registered = full

    def _keys(self, sequence: Sequence, count: int) -> list[bytes]:
        """The sequence's hash chain, at least `count` blocks long."""
        keys = sequence.hashes
        have = len(keys)
        if have < count:
            width = self._block_size * sequence.tokens.itemsize
            tokens = sequence.tokens[have * self._block_size : count * self._block_size].tobytes()
            parent = keys[-1] if keys else self._root(sequence)
            for at in range(count - have):
                parent = self._hash(parent + tokens[at * width : (at + 1) * width], b"block")
                keys.append(parent)
        return keys

    def _root(self, sequence: Sequence) -> bytes:
        """Where the chain begins: adapters change keys and values, so those of one are of no use to another."""
        root = self._hash(sequence.salt.encode(), b"salt")
        adapter = sequence.request.adapter
        return self._hash(root + adapter.encode(), b"adapter") if adapter else root

    def _hash(self, content: bytes, kind: bytes) -> bytes:
        return blake2b(content, digest_size=_DIGEST, key=self._key, person=kind).digest()
