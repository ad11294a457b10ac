"""Releases of vLLM whose V1 scheduler is modelled, and in which decisions they differ.

Read from the sources of the wheels 0.12.0, 0.15.1, 0.19.0 and 0.33.0 (`vllm/v1/core/`); patch releases in between
are taken for the nearest of the four that is not newer. A flag names a decision, not a line of code.
"""

from __future__ import annotations

import re

from fabrictwin.base.records import record


@record
class Release:
    """Decisions in which one release of the scheduler differs from another.

    Attributes:
        reserves_whole_prompt: A waiting request is admitted only if all of its known tokens fit.
        sizes_hits_by_window: Blocks before the sliding window are dropped from a hit when it is adopted, and
            counts of blocks never go below zero.
        any_mix_of_windows: More than one kind of sliding window beside full attention.
        waits_for_token_in_pipeline: With several pipeline stages a request whose token is in flight is passed
            over.
        clears_drafts_when_preempted: Drafts of a preempted request are dropped.
        skips_drafts_of_chunks: Drafts for a request in the middle of its prompt are ignored.
        shifts_after_any_victim: Under the priority policy a victim ahead in the list moves the scan back even
            if it was not scheduled, and a request that evicted itself does not end the scan.
        frees_unhashed_first: Blocks without a hash go to the head of the free list, those with one to its tail.
        settles_before_freeing: Blocks that left the window are freed once no step in flight reads them; output in
            flight of a preempted request is told apart; the cap on admission knows that windows recycle blocks.
        pads_drafts_on_admission: A request with one token to compute is admitted with placeholders for drafts.
        reserves_lookahead_on_admission: Slots of the drafter are counted when a request is admitted.
        keeps_replay_tail_only: Of a sliding window only the blocks that a replay of the prompt needs are cached.
        hashes_lookahead: With a drafter that reads hidden states, a block's hash covers the token after it.
        frees_long_prefill_alone: The cap on long prefills does not bind a request that is alone.
        refills_past_empty_steps: An empty step does not keep the queue of batches from being filled.
        stays_ahead_of_done_steps: The queue of batches is filled even if its oldest batch is done.
    """

    name: str
    reserves_whole_prompt: bool = True
    sizes_hits_by_window: bool = True
    any_mix_of_windows: bool = True
    waits_for_token_in_pipeline: bool = False
    clears_drafts_when_preempted: bool = True
    skips_drafts_of_chunks: bool = True
    shifts_after_any_victim: bool = False
    frees_unhashed_first: bool = False
    settles_before_freeing: bool = False
    pads_drafts_on_admission: bool = False
    reserves_lookahead_on_admission: bool = False
    keeps_replay_tail_only: bool = False
    hashes_lookahead: bool = False
    frees_long_prefill_alone: bool = False
    refills_past_empty_steps: bool = False
    stays_ahead_of_done_steps: bool = False


RELEASES: tuple[Release, ...] = (
    Release(
        "0.12",
        reserves_whole_prompt=False,
        sizes_hits_by_window=False,
        any_mix_of_windows=False,
        clears_drafts_when_preempted=False,
        skips_drafts_of_chunks=False,
    ),
    Release("0.15", reserves_whole_prompt=False, waits_for_token_in_pipeline=True, skips_drafts_of_chunks=False),
    Release("0.19"),
    Release(
        "0.33",
        shifts_after_any_victim=True,
        frees_unhashed_first=True,
        settles_before_freeing=True,
        pads_drafts_on_admission=True,
        reserves_lookahead_on_admission=True,
        keeps_replay_tail_only=True,
        hashes_lookahead=True,
        frees_long_prefill_alone=True,
        refills_past_empty_steps=True,
        stays_ahead_of_done_steps=True,
    ),
)

NAMES = tuple(release.name for release in RELEASES)


def release(name: str) -> Release:
    """Return the release that `name` ("0.19", "0.19.0") is taken for: the newest modelled that is not newer.

    Raises:
        ValueError: `name` is no release, or is older than the oldest modelled.
    """
    parts = re.fullmatch(r"v?0\.(\d{1,4})(?:\.\d+)?", name)
    if parts is None:
        raise ValueError(f"got {name!r}, expected a release of vLLM such as {', '.join(NAMES)}")
    found = [one for one in RELEASES if int(one.name.split(".")[1]) <= int(parts[1])]
    if not found:
        raise ValueError(f"got {name!r}, expected a release of vLLM from {NAMES[0]} on")
    return found[-1]
