"""Compiled: when each pass of a pipeline runs, stage by stage, without a graph of operations.

S stages, C chunks, T tasks of a stage in the order of its schedule. A pass starts once its stage is free, its
message has arrived (from the neighbouring virtual stage) and, where sends block, the send of the pass before is
done. Messages of a stage in one direction leave one after the other.
"""

from __future__ import annotations

import numpy as np

from fabrictwin.kernel.jit.decorators import entry

FORWARD, BACKWARD, WEIGHT = 0, 1, 2
NEVER = -1.0


@entry
def play(kind, micro_batch, chunk, took, send, slices, blocking, first, last, begin, end):
    """Fill `begin` and `end`: [3, S, C, m] when each pass runs. Returns whether every pass did.

    `kind`, `micro_batch`, `chunk` are [S, T]; `took` is [3, S, C], `send` [S, 2] the time of a message forward and
    back, `slices` [S] what gathering a message's slices takes at a stage. `first` [S, C] is what the first
    micro-batch's forward takes longer, `last` [3, S, C] what the last micro-batch's passes do.
    """
    stages, tasks = kind.shape
    chunks, m = end.shape[2], end.shape[3]
    at = np.zeros(stages, np.int64)
    free = np.zeros(stages)
    line = np.zeros((stages, 2))
    left = np.zeros(stages)  # when the send of the pass before is done
    arrived = np.full((2, stages, chunks, m), NEVER)
    done = 0
    while done < stages * tasks:
        before = done
        for s in range(stages):
            while at[s] < tasks:
                t = at[s]
                k, i, c = kind[s, t], micro_batch[s, t], chunk[s, t]
                v = c * stages + s
                ready = 0.0
                if (k == FORWARD and v > 0) or (k == BACKWARD and v < chunks * stages - 1):
                    ready = arrived[k, s, c, i]
                    if ready == NEVER:
                        break
                start = max(free[s], ready)
                if blocking:
                    start = max(start, left[s])
                lasts = took[k, s, c]
                if k == FORWARD and i == 0:
                    lasts += first[s, c]
                if i == m - 1:
                    lasts += last[k, s, c]
                begin[k, s, c, i] = start
                end[k, s, c, i] = start + lasts
                free[s] = start + lasts
                left[s] = start + lasts
                step = 1 if k == FORWARD else -1
                to = v + step
                if k != WEIGHT and 0 <= to < chunks * stages:
                    way = 0 if k == FORWARD else 1
                    leaves = max(free[s], line[s][way])
                    line[s][way] = leaves + send[s, way]
                    left[s] = line[s][way]
                    arrived[k, to % stages, to // stages, i] = line[s][way] + slices[to % stages]
                at[s] += 1
                done += 1
        if done == before:
            return False
    return True
