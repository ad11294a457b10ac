"""Compiled: the best run of consecutive edges around a ring."""

from __future__ import annotations

import numpy as np

from fabrictwin.kernel.jit.decorators import entry


@entry
def best_runs(start, gain, longest, best):
    """`best[c]`: the largest sum of up to `longest[c]` consecutive gains of channel c's ring, and at least 0.

    Channel c's gains are `gain[start[c] : start[c + 1]]`; after the last comes the first again. A run is the
    difference of two prefix sums, so the smallest of the last `longest` ones is kept in a queue of rising values.
    """
    room = 1
    for c in range(len(best)):
        room = max(room, start[c + 1] - start[c] + longest[c] + 1)
    prefix, place = np.zeros(room), np.zeros(room, np.int64)
    for c in range(len(best)):
        n, most = start[c + 1] - start[c], longest[c]
        best[c] = 0.0
        if n == 0 or most <= 0:
            continue
        head, tail = 0, 1
        place[0] = 0
        prefix[0] = 0.0
        for i in range(1, n + most + 1):
            prefix[i] = prefix[i - 1] + gain[start[c] + (i - 1) % n]
            if place[head] < i - most:
                head += 1
            best[c] = max(best[c], prefix[i] - prefix[place[head]])
            while tail > head and prefix[place[tail - 1]] >= prefix[i]:
                tail -= 1
            place[tail] = i
            tail += 1
