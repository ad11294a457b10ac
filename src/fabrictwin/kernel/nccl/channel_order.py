"""Compiled: where a channel under way may go next: GPUs to try, best first, and adapters to leave by.

Source: NCCL 2.30.7, 2.21.5 and 2.18.3, src/graph/search.cc.
"""

from __future__ import annotations

from fabrictwin.kernel.codes import NONE, PathType, Pattern
from fabrictwin.kernel.jit.decorators import helper


@helper
def _before(score, at):
    """Return True where row `at` sorts before the row above it."""
    for k in range(6):
        if score[at, k] != score[at - 1, k]:
            return score[at, k] < score[at - 1, k]
    return False


@helper
def following(r, q, w, channel, gpu, step, to_net):
    """GPUs to try next, best first, into w.next; returns how many."""
    count = r.gpus
    ahead, behind = (gpu + 1) % count, (gpu + count - 1) % count
    if r.switches:
        # through NVSwitches few partners are better than many: neighbours by number only
        first, second = ahead, NONE
        if q.pattern == Pattern.RING:
            first, second = behind, ahead
        elif q.pattern == Pattern.SPLIT_TREE or q.pattern == Pattern.BALANCED_TREE:
            first, second = ahead, behind
        found = 0
        for other in (first, second):
            if other in (NONE, gpu) or (found and w.next[channel, step, 0] == other):
                continue
            if not w.used[channel, other] and r.kind[gpu, other] < PathType.DIS:
                w.next[channel, step, found] = other
                found += 1
        return found
    ends = r.gpus + r.nets + r.switches
    sort_net = 0 if to_net == NONE else (1 if to_net == step + 1 else -1)
    found = 0
    for i in range(1, count):
        other = (gpu + i) % count
        hops = r.start[gpu * ends + other + 1] - r.start[gpu * ends + other]
        if not hops or w.used[channel, other]:
            continue
        for k in range(3):
            w.score[found, k] = 0
        if sort_net:
            net = r.gpus + w.inter[channel, 0]
            w.score[found, 0] = -int(r.width[net, other])
            w.score[found, 1] = -r.pcie_bw[other]
            w.score[found, 2] = r.start[net * ends + other + 1] - r.start[net * ends + other]
        w.score[found, 3], w.score[found, 4] = -int(r.width[gpu, other]), hops
        w.score[found, 5] = i
        # insert where it belongs; equal ones stay in order
        at = found
        while at > 0 and _before(w.score, at):
            for k in range(6):
                w.score[at, k], w.score[at - 1, k] = w.score[at - 1, k], w.score[at, k]
            at -= 1
        found += 1
    alike = True
    for i in range(found):
        w.next[channel, step, i] = (gpu + w.score[i, 5]) % count
        alike = alike and w.score[i, 3] == w.score[0, 3] and w.score[i, 4] == w.score[0, 4]
    if sort_net == -1 and alike:
        for i in range(found // 2):
            other = w.next[channel, step, i]
            w.next[channel, step, i] = w.next[channel, step, found - 1 - i]
            w.next[channel, step, found - 1 - i] = other
    return found


@helper
def paired(q):
    if q.pairs_rings:
        return q.pattern == Pattern.RING and q.cross_nic == 2
    return q.pairs and q.cross_nic != 0


@helper
def may_leave(r, q, w, channel, net, step):
    """Return True where a channel may leave by an adapter, given the one that it entered by."""
    entered = w.inter[channel, 0]
    if q.pattern == Pattern.TREE and net != entered:
        return False
    in_pairs = paired(q)
    if in_pairs and channel % 2 == 1 and net != w.inter[channel - 1, 0]:
        return False
    if q.pairs_rings:
        if not in_pairs and q.cross_nic == 0 and r.card[net] != r.card[entered]:
            return False
    elif q.cross_nic != 1 and r.card[net] != r.card[entered]:
        return False
    return not (q.pattern == Pattern.BALANCED_TREE and step != 0 and net != w.inter[channel, 1])
