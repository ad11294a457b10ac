"""The pool of KV blocks with its free list and prefix cache (`vllm/v1/core/block_pool.py`).

Blocks are numbers. Block 0 is never handed out: it stands in tables for blocks that are no longer held. A freed
block that holds a cached prefix stays findable until its place in the free list comes up; a hit takes it out of
the list. The same content may be cached in several blocks; the one that was cached first is found.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable

NO_BLOCK = 0
NO_KEY = -1


class BlockPool:
    """Free list, references and prefix cache of all KV blocks of one engine."""

    __slots__ = ("_cached", "_free", "_keys", "_unhashed_first", "references")

    def __init__(self, blocks: int, *, unhashed_first: bool) -> None:
        if blocks < 2:
            raise ValueError(f"num_gpu_blocks: got {blocks}, expected at least 2 (block 0 is reserved)")
        self.references = [0] * blocks
        self._keys = [NO_KEY] * blocks
        self._free: OrderedDict[int, None] = OrderedDict.fromkeys(range(1, blocks))
        self._cached: dict[int, int | dict[int, None]] = {}
        self._unhashed_first = unhashed_first

    @property
    def free_blocks(self) -> int:
        """Blocks that can be handed out, those with a cached prefix among them."""
        return len(self._free)

    @property
    def usage(self) -> float:
        """Share of all blocks but block 0 that requests hold."""
        return 1 - len(self._free) / (len(self.references) - 1)

    def find(self, key: int) -> int:
        """Return the block that holds the content `key`, or `NO_BLOCK`."""
        found = self._cached.get(key, NO_BLOCK)
        return found if isinstance(found, int) else next(iter(found))

    def find_run(self, keys: list[int]) -> list[int]:
        """Return the blocks of the longest cached head of a chain of contents."""
        run = []
        cached = self._cached
        for key in keys:
            found = cached.get(key)
            if found is None:
                break
            run.append(found if isinstance(found, int) else next(iter(found)))
        return run

    def touch(self, blocks: Iterable[int]) -> None:
        """Hold blocks that were found in the cache; free ones leave the free list."""
        references, free = self.references, self._free
        for block in blocks:
            if block == NO_BLOCK:
                continue
            if references[block] == 0:
                del free[block]
            references[block] += 1

    def take(self, count: int) -> list[int]:
        """Return `count` blocks from the head of the free list; what they had cached is forgotten."""
        pop, keys, cached, references = self._free.popitem, self._keys, self._cached, self.references
        taken = []
        for _ in range(count):
            block = pop(last=False)[0]
            key = keys[block]
            if key != NO_KEY:
                keys[block] = NO_KEY
                if cached[key] == block:
                    del cached[key]
                else:
                    self._forget(block, key)
            references[block] = 1
            taken.append(block)
        return taken

    def release(self, blocks: Iterable[int]) -> None:
        """Let go of blocks, the first of them to be reused first."""
        references, keys, free, unhashed_first = self.references, self._keys, self._free, self._unhashed_first
        unhashed = []
        for block in blocks:
            if block == NO_BLOCK:
                continue
            left = references[block] = references[block] - 1
            if left:
                continue
            if unhashed_first and keys[block] == NO_KEY:
                unhashed.append(block)
            else:
                free[block] = None
        for block in reversed(unhashed):
            free[block] = None
            free.move_to_end(block, last=False)

    def insert(self, block: int, key: int) -> None:
        """Make the content `key` findable in a block that is held."""
        self._keys[block] = key
        present = self._cached.get(key)
        if present is None:
            self._cached[key] = block
        elif isinstance(present, int):
            self._cached[key] = {present: None, block: None}
        else:
            present[block] = None

    def _forget(self, block: int, key: int) -> None:
        """Make one of several blocks with a content no longer findable."""
        present = self._cached[key]
        assert isinstance(present, dict)
        del present[block]
        if not present:
            del self._cached[key]
