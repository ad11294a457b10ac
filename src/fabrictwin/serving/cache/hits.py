"""Prefix hits over groups of layers (`vllm/v1/core/kv_cache_coordinator.py`, `single_type_kv_cache_manager.py`).

Layers of full attention need every block before the hit's end, layers with a sliding window only those that the
next token sees. A hit is the longest length on which all groups agree; full attention is asked first because it
can only shorten the others.
"""

from __future__ import annotations

from collections.abc import Sequence

from fabrictwin.base.records import record
from fabrictwin.serving.cache.pool import NO_BLOCK, BlockPool


@record
class Hit:
    """Blocks found for a request, by group of layers, and what they cover.

    Attributes:
        blocks: By group; `NO_BLOCK` before a sliding window.
        tokens: Tokens that need not be computed.
        junction: Tokens that one group has cached beyond `tokens`, from the start; 0 if none.
    """

    blocks: tuple[list[int], ...]
    tokens: int = 0
    junction: int = 0


def window_blocks(window: int, block_size: int, drops_last: bool) -> int:
    """Blocks in a row that a hit under a sliding window needs; one more if its last is dropped."""
    return -(-(window - 1) // block_size) + drops_last


class PrefixSearch:
    """Longest prefix hits for groups of layers with full attention (window 0) and sliding windows, in tokens.

    `drops_last`: the last block of a hit is computed again, for a drafter that needs its hidden states.
    """

    def __init__(self, pool: BlockPool, windows: Sequence[int], block_size: int, drops_last: bool) -> None:
        self._pool = pool
        self._groups = len(windows)
        self._size = block_size
        self._drops_last = drops_last
        kinds: dict[int, list[int]] = {}
        for group, window in enumerate(windows):
            kinds.setdefault(window, []).append(group)
        self._kinds = sorted(kinds.items(), key=lambda kind: kind[0] != 0)
        self._one_pass = self._groups == 1 or (len(self._kinds) == 2 and self._kinds[0][0] == 0)

    def find(self, keys: list[int], limit: int) -> Hit:
        """Return the longest hit of at most `limit` tokens."""
        if self._groups == 1 and self._kinds[0][0] == 0:
            run = self._pool.find_run(keys[: limit // self._size])
            if self._drops_last and run:
                run.pop()
            return Hit((run,), len(run) * self._size)
        found: list[list[int] | None] = [None] * self._groups
        length = limit
        longest = 0
        while True:
            current = length
            for window, groups in self._kinds:
                if window == 0 and found[groups[0]] is not None:
                    current = min(current, len(found[groups[0]] or ()) * self._size)
                    continue
                search = (
                    self._windowed(keys, current, groups, window) if window else self._full(keys, current, groups)
                )
                current = len(search[0]) * self._size
                for group, blocks in zip(groups, search, strict=True):
                    found[group] = blocks
                longest = max(longest, current)
            if current >= length:
                break
            length = current
            if self._one_pass:
                break
        if self._kinds[0][0] == 0:
            for group in self._kinds[0][1]:
                del (found[group] or [])[length // self._size :]
        junction = longest if self._groups > 1 and longest > length else 0
        return Hit(tuple(blocks or [] for blocks in found), length, junction)

    def _cached(self, key: int, groups: Sequence[int]) -> list[int] | None:
        blocks = []
        for group in groups:
            block = self._pool.find(key * self._groups + group)
            if block == NO_BLOCK:
                return None
            blocks.append(block)
        return blocks

    def _full(self, keys: list[int], limit: int, groups: Sequence[int]) -> list[list[int]]:
        runs: list[list[int]] = [[] for _ in groups]
        for key in keys[: limit // self._size]:
            blocks = self._cached(key, groups)
            if blocks is None:
                break
            for run, block in zip(runs, blocks, strict=True):
                run.append(block)
        if self._drops_last and runs[0]:
            for run in runs:
                run.pop()
        return runs

    def _windowed(self, keys: list[int], limit: int, groups: Sequence[int], window: int) -> list[list[int]]:
        needed = window_blocks(window, self._size, self._drops_last)
        most = limit // self._size
        runs = [[NO_BLOCK] * most for _ in groups]
        row = 0
        end = 0
        for place in range(most - 1, -1, -1):
            blocks = self._cached(keys[place], groups)
            if blocks is None:
                row = 0
                continue
            for run, block in zip(runs, blocks, strict=True):
                run[place] = block
            row += 1
            if row >= needed:
                end = place + row
                break
        else:
            end = row
        for run in runs:
            del run[end:]
            if self._drops_last and run:
                run.pop()
        return runs
