"""Compiled: when each pass of a pipeline runs, stage by stage, without a graph of operations.

S stages, C chunks. Two numbers say the order of a stage's passes. It goes forward while no more than `ahead` of
its forwards have had no backward yet, otherwise backward; where weights' gradients are passes of their own, it
does one once more than `late` of its backwards have had none yet, and those that are left at the end. Passes of
one kind go through as many micro-batches as there are stages on one chunk, then the same on the next: up from
the first chunk forward, down from the last backward.

A pass starts once its stage is free, its message has arrived (from the neighbouring virtual stage) and, where
sends block, the send of the pass before is done. Messages of a stage in one direction leave one after the other.
"""

from __future__ import annotations

import numpy as np

from fabrictwin.kernel.jit.decorators import entry, inner

FORWARD, BACKWARD, WEIGHT = 0, 1, 2
NEVER = -1.0
# of passes of one kind: how many are done; of the next, the first of S micro-batches, which of these, which chunk
DONE, BLOCK, WITHIN, TURN = range(4)
# of a stage: when it is free, its last send is done, its lines forward and back are free
FREE, LEFT, LINE = range(3)


@entry
def play(ahead, late, took, send, slices, blocking, first, last, m, more, opens, begin, end, over):
    """Play `m` micro-batches. Return when `m + more` would be over, NEVER where some pass cannot start.

    `ahead` and `late` are [S], the latter negative where weights have no passes; `took` is [3, S, C], `send`
    [S, 2] the time of a message forward and back, `slices` [S] what gathering a message's slices takes at a stage.
    `first` [S, C] is what the first micro-batch's forward takes longer, `last` [3, S, C] what the last one's
    backwards and weights do. Filled are `opens` [S, C], when the first micro-batch's forwards begin, `begin` and
    `end` [3, S, C] of the last one's passes, and `over` [S], the end of a stage's last pass.
    """
    stages, chunks = opens.shape
    place, clock = np.zeros((3, stages, 4), np.int64), np.zeros((stages, 4))
    came, arrived = np.zeros((2, stages, chunks), np.int64), np.empty((2, stages, chunks, m + more))
    rules = (ahead, late, took, send, slices, blocking, first, last)
    state, found = (place, clock, came, arrived), (opens, begin, end)
    later = 0.0
    if more > 0:  # what both have in common once
        _advance(m, True, rules, state, found)
        beside = place.copy(), clock.copy(), came.copy(), arrived
        if not _advance(m + more, False, rules, beside, (opens, begin.copy(), end.copy())):
            return NEVER
        for s in range(stages):
            later = max(later, beside[1][s, FREE])
    if not _advance(m, False, rules, state, found):
        return NEVER
    for s in range(stages):
        over[s] = clock[s, FREE]
        if more == 0:
            later = max(later, over[s])
    return later


@inner
def _advance(m, common, rules, state, found):
    """Play passes of `m` micro-batches as far as they go; return true if that is to the end.

    With `common` no stage goes beyond what it does with more micro-batches, too.
    """
    ahead, late, took, send, slices, blocking, first, last = rules
    place, clock, came, arrived = state
    opens, begin, end = found
    stages, chunks = opens.shape
    total = m * chunks
    moves = True
    while moves:
        moves = False
        for s in range(stages):
            while True:
                forwards, backwards, weights = place[0, s, DONE], place[1, s, DONE], place[2, s, DONE]
                if late[s] >= 0 and weights < backwards and (backwards - weights > late[s] or backwards == total):
                    k = WEIGHT
                elif forwards < total and forwards - backwards <= ahead[s]:
                    k = FORWARD
                else:
                    k = BACKWARD
                if (k == BACKWARD and backwards == total) or (common and forwards == total):
                    break
                i = place[k, s, BLOCK] + place[k, s, WITHIN]
                c = place[k, s, TURN] if k == FORWARD else chunks - 1 - place[k, s, TURN]
                if common and i == m - 1 and k != FORWARD:
                    break
                # the neighbours along the virtual stages: where its message comes from is where others' go to
                ready, step = 0.0, 1 if k == FORWARD else -1
                if k != WEIGHT and (0 <= s - step < stages or 0 <= c - step < chunks):
                    if came[k, s, c] <= i:
                        break
                    ready = arrived[k, s, c, i]
                start = max(clock[s, FREE], ready)
                if blocking:
                    start = max(start, clock[s, LEFT])
                lasts = took[k, s, c]
                if k == FORWARD and i == 0:
                    lasts += first[s, c]
                    opens[s, c] = start
                if i == m - 1:
                    lasts += last[k, s, c]
                    begin[k, s, c] = start
                    end[k, s, c] = start + lasts
                free = start + lasts
                clock[s, FREE] = clock[s, LEFT] = free
                there, of = s + step, c
                if there < 0 or there == stages:
                    there, of = stages - 1 - s, c + step
                if k != WEIGHT and 0 <= of < chunks:
                    leaves = max(free, clock[s, LINE + k]) + send[s, k]
                    clock[s, LINE + k] = clock[s, LEFT] = leaves
                    arrived[k, there, of, i] = leaves + slices[there]
                    came[k, there, of] = i + 1
                place[k, s, DONE] += 1
                place[k, s, WITHIN] += 1
                if place[k, s, WITHIN] == stages:
                    place[k, s, WITHIN] = 0
                    place[k, s, TURN] += 1
                    if place[k, s, TURN] == chunks:
                        place[k, s, TURN] = 0
                        place[k, s, BLOCK] += stages
                moves = True
    for s in range(stages):
        if place[1, s, DONE] < total or (late[s] >= 0 and place[2, s, DONE] < total):
            return False
    return True
