"""KV blocks of requests on one engine (`vllm/v1/core/kv_cache_manager.py`).

All groups of layers draw blocks of one size from one pool. Layers with a sliding window give blocks back as the
window moves on. Left out: groups with different block sizes, Mamba state, cross attention, KV connectors.
"""

from __future__ import annotations

from fabrictwin.base.records import record
from fabrictwin.kernel.codes import NONE
from fabrictwin.serving.cache.hits import Hit, PrefixSearch, window_blocks
from fabrictwin.serving.cache.pool import NO_BLOCK, BlockPool
from fabrictwin.serving.scheduler.release import Release
from fabrictwin.serving.scheduler.request import Request


@record
class CacheLayout:
    """Memory of an engine for KV, and how layers share it.

    Attributes:
        blocks: Blocks in all, block 0 among them (`num_gpu_blocks`).
        block_size: Tokens of a block.
        windows: Sliding window of each group of layers in tokens, 0 for full attention.
        caching: Prefixes are kept for later requests.
        max_model_len: Longest request, tokens.
        in_flight_tokens: Most tokens that are scheduled and not returned: steps in flight × tokens of a step.
        drops_last: The last block of a hit is computed again (EAGLE-like drafters, before 0.33).
        hash_lookahead: Tokens after a block that its identity covers.
        watermark: Share of all blocks that stays free when a request is admitted beside others (0.33).
    """

    blocks: int
    max_model_len: int
    block_size: int = 16
    windows: tuple[int, ...] = (0,)
    caching: bool = True
    in_flight_tokens: int = 0
    drops_last: bool = False
    hash_lookahead: int = 0
    watermark: float = 0.0


class KvCache:
    """Which blocks requests hold; finds prefixes and hands out blocks."""

    def __init__(self, layout: CacheLayout, release: Release) -> None:
        changes = sum(one != other for one, other in zip(layout.windows, layout.windows[1:], strict=False))
        if (
            not release.any_mix_of_windows
            and len(layout.windows) > 1
            and not (0 in layout.windows and changes == 1)
        ):
            raise ValueError(
                f"sliding windows: got {list(layout.windows)}, vLLM {release.name} "
                "takes groups of full attention before or after groups of one other kind"
            )
        self.pool = BlockPool(layout.blocks, unhashed_first=release.frees_unhashed_first)
        self.layout = layout
        self._release = release
        self._size = layout.block_size
        self._windows = layout.windows
        self._groups = len(layout.windows)
        self._plain = layout.windows == (0,)
        self._search = PrefixSearch(self.pool, layout.windows, layout.block_size, layout.drops_last)
        self._watermark = int(layout.watermark * layout.blocks)
        self._caps = [self._admission_cap(window) for window in layout.windows]
        self._tails = [window_blocks(window, self._size, layout.drops_last) for window in layout.windows]

    def _admission_cap(self, window: int) -> int:
        """Most blocks of a group that one request is counted with on admission."""
        if not (window and self._release.settles_before_freeing):
            return self.layout.blocks
        tokens = min(window - 1 + self.layout.in_flight_tokens, self.layout.max_model_len)
        return -(-tokens // self._size) + 1

    def enter(self, request: Request) -> None:
        """Begin to hold blocks for a request that has arrived."""
        request.blocks = [[] for _ in self._windows]
        request.cached = [NONE] * self._groups
        self.extend_keys(request)

    def extend_keys(self, request: Request) -> None:
        """Identify the blocks that have become full."""
        full = (request.tokens - self.layout.hash_lookahead) // self._size
        known = len(request.keys)
        if self.layout.caching and full > known:
            request.keys.extend(request.key_source(known, full))

    def lookup(self, request: Request) -> Hit | None:
        """Return the longest cached prefix of a request, never all of its tokens; None if there is none."""
        if not self.layout.caching:
            return None
        hit = self._search.find(request.keys, request.tokens - 1)
        request.junction = hit.junction
        return hit if any(hit.blocks) else None

    def _skipped(self, window: int, computed: int) -> int:
        """Blocks before the window of the next token."""
        return max(0, computed - window + 1) // self._size if window else 0

    def _needed(self, request: Request, tokens: int, hit: Hit | None, computed: int, *, capped: bool) -> int:
        """Free blocks that it takes to hold `tokens` of a request, those of the hit that are free among them."""
        required = -(-tokens // self._size)
        references = self.pool.references
        needed = 0
        for group, window in enumerate(self._windows):
            held = len(request.blocks[group])
            wanted = min(required, self._caps[group]) if capped else required
            found = hit.blocks[group] if hit else []
            if not self._release.sizes_hits_by_window:
                needed += wanted - len(found) - held
                skipped = 0
            elif request.cached[group] != NONE:
                needed += max(wanted - held, 0)
                continue
            else:
                skipped = self._skipped(window, computed)
                needed += max(wanted - max(skipped, len(found) + held), 0)
            for block in found[max(0, skipped - held) :]:
                if block != NO_BLOCK and references[block] == 0:
                    needed += 1
        return needed

    def fits_whole(self, request: Request, hit: Hit | None, *, beside_others: bool) -> bool:
        """Return if all known tokens of a waiting request fit, less what was found in the cache."""
        computed = min(request.computed + (hit.tokens if hit else 0), self.layout.max_model_len)
        tokens = min(request.tokens, self.layout.max_model_len)
        needed = self._needed(request, tokens, hit, computed, capped=True)
        return needed + (self._watermark if beside_others else 0) <= self.pool.free_blocks

    def allocate(
        self,
        request: Request,
        new: int,
        *,
        hit: Hit | None = None,
        lookahead: int = 0,
        margin: bool = False,
        computed_later: bool = False,
    ) -> bool:
        """Hold blocks for `new` more tokens after those computed or found, and cache those that get full.

        `lookahead`: slots beyond, for a drafter. `margin`: the watermark stays free. `computed_later`: nothing is
        cached yet. Returns False, with nothing allocated, if there are too few free blocks.
        """
        computed = request.computed + (hit.tokens if hit else 0)
        slots = min(computed + new + lookahead, self.layout.max_model_len)
        if not self._plain:
            self._leave_window(request, computed)
        elif hit is None:
            missing = -(-slots // self._size) - len(request.blocks[0])
            if missing > 0:
                if missing + (self._watermark if margin else 0) > self.pool.free_blocks:
                    return False
                request.blocks[0] += self.pool.take(missing)
            if not computed_later:
                self.cache(request, min(computed + new, request.tokens))
            return True
        needed = self._needed(request, slots, hit, computed, capped=False)
        if needed + (self._watermark if margin else 0) > self.pool.free_blocks:
            return False
        if hit is not None:
            self._adopt(request, hit, computed)
        required = -(-slots // self._size)
        for held in request.blocks:
            if required > len(held):
                held += self.pool.take(required - len(held))
        if not computed_later:
            self.cache(request, min(computed + new, request.tokens))
        return True

    def _adopt(self, request: Request, hit: Hit, computed: int) -> None:
        for group, window in enumerate(self._windows):
            found = hit.blocks[group]
            if self._release.sizes_hits_by_window:
                skipped = self._skipped(window, computed)
                found = [NO_BLOCK] * skipped + found[skipped:]
            self.pool.touch(found)
            request.blocks[group] = list(found)
            request.cached[group] = len(found)

    def _leave_window(self, request: Request, computed: int) -> None:
        """Let go of blocks before the window, the last of them first."""
        if not self._release.sizes_hits_by_window:
            computed = request.computed
        elif self._release.settles_before_freeing:
            computed = max(0, computed - request.in_flight)
        for group, window in enumerate(self._windows):
            blocks = request.blocks[group]
            left = []
            for place in range(min(self._skipped(window, computed), len(blocks)) - 1, -1, -1):
                if blocks[place] == NO_BLOCK:
                    break
                left.append(blocks[place])
                blocks[place] = NO_BLOCK
            if left:
                self.pool.release(left)

    def cache(self, request: Request, tokens: int) -> None:
        """Make the full blocks among the first `tokens` of a request findable."""
        full = tokens // self._size
        if full <= request.cached[0] and self._plain:
            return
        if not self.layout.caching:
            return
        keys = request.keys
        full = min(full, len(keys))
        insert, groups = self.pool.insert, self._groups
        for group, window in enumerate(self._windows):
            known = max(request.cached[group], 0)
            if known >= full:
                continue
            blocks = request.blocks[group]
            if window and self._release.keeps_replay_tail_only:
                places = self._replay_places(request, known, full, self._tails[group])
            else:
                places = list(range(known, full))
            for place in places:
                if blocks[place] != NO_BLOCK:
                    insert(blocks[place], keys[place] * groups + group)
            request.cached[group] = full

    def _replay_places(self, request: Request, known: int, full: int, tail: int) -> list[int]:
        """Places between `known` and `full` that a replay of the prompt, or a sibling of it, begins after."""
        places: set[int] = set()
        for boundary in (request.prompt - 1, request.junction):
            if boundary:
                end = boundary // self._size
                places.update(range(max(known, end - tail), min(full, end)))
        return sorted(places)

    def free(self, request: Request) -> None:
        """Let go of all blocks of a request, the last of each group first."""
        for group, blocks in enumerate(request.blocks):
            self.pool.release(reversed(blocks))
            request.blocks[group] = []
            request.cached[group] = NONE
