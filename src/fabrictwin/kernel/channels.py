"""Compiled: the recursive search for NCCL's channels over one host's links.

Ends are numbered GPUs first, then adapters, then the NVLink switch. The recursion keeps a stack of its own: a
frame is a visit that has alternatives to try, and takes up where it left off when the visit that it made
returns. Bandwidth is booked on the way down and given back on the way up; thousandths of a GB/s are the grain,
as in NCCL.

Source: NCCL 2.30.7, 2.21.5 and 2.18.3, src/graph/search.cc; what is searched when is `nccl.relax`.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from fabrictwin.kernel.jit import helper, hot_entry, outlined

NONE = -1
FOUND_BEST = -1  # steps left once nothing better can be found

BALANCED_TREE, SPLIT_TREE, TREE, RING, NVLS, COLLNET_DIRECT = 1, 2, 3, 4, 5, 6
SEARCHED, PCI_ORDER, REPLAYED = 0, 1, 2  # which GPU comes next
NEXT_CHANNEL, START, AT = 0, 1, 2  # what a visit is to do
# a frame: what to do, for which channel, at which GPU (coming from which adapter), as the channel's which step, at
# a frame: what to do, for which channel, at which GPU (from which adapter), as the channel's which step, at
# for the one under way, and two places to keep things
OP, CHANNEL, GPU, NET, STEP, TO_NET, TO_FIRST, ORDER, NEXT, HELD, KEPT, FOUND = range(12)
FRAME = 12

DIS = 11  # a path that is none
PCI_ORDER_STEPS = 1 << 10
SAME_HOPS = 1e-9


class Routes(NamedTuple):
    """The host. E ends, G GPUs, N adapters, L links, H hops of all paths."""

    gpus: int
    nets: int
    switches: int  # 1 where the host has NVLink switches
    start: np.ndarray  # [E * E + 1] hops of the path from a to b at a * E + b
    link: np.ndarray  # [H]
    pcie: np.ndarray  # [H] whether the hop is PCIe
    back: np.ndarray  # [H] the link back where it is loaded too, else NONE
    kind: np.ndarray  # [E, E] type of the path
    width: np.ndarray  # [E, E] GB/s of the path
    overhead: np.ndarray  # [E, E] how much more than a channel's speed it takes of PCIe links
    pcie_bw: np.ndarray  # [G] whole GB/s between a GPU and its PCI switch
    card: np.ndarray  # [N] adapters of one card and port
    reduces: np.ndarray  # [N] whether the switches behind reduce
    latency: np.ndarray  # [N]
    local: np.ndarray  # [N] the GPU that uses an adapter first, NONE where none does
    near: np.ndarray  # [N, G] GPUs nearest to it, NONE fills up
    nearest: np.ndarray  # [N, G] whether a GPU is widest, then fewest hops away


class Asked(NamedTuple):
    """One search. The flags at the end are ways of a release."""

    inter: bool
    pattern: int
    bw_intra: float
    bw_inter: float
    type_intra: int
    type_inter: int
    cross_nic: int
    same: bool
    least: int
    most: int
    collnet: bool
    try_nets: np.ndarray  # [G + 1, N] adapters to try from each GPU, from anywhere in the last row
    take_turns: bool  # 2.19: channels start at different adapters
    heads_once: bool  # 2.22: one GPU heads one channel, and directly reduced channels have heads too
    pairs_rings: bool  # 2.23: only rings go back the way that the ring before came
    pairs: bool  # 2.19: every second channel does
    local_first: bool  # 2.28: the adapter's own GPU, then those as near


class Work(NamedTuple):
    """The channels under way, the best ones so far, and what is left."""

    left: np.ndarray  # [L] GB/s
    net_left: np.ndarray  # [N]
    intra: np.ndarray  # [most, G]
    inter: np.ndarray  # [most, 2]
    used: np.ndarray  # [most, G]
    next: np.ndarray  # [most, G, G] which GPUs a visit tries
    score: np.ndarray  # [G, 6]
    frame: np.ndarray  # [depth, FRAME] the stack
    number: np.ndarray  # [2] steps left, frames on the stack
    hops: np.ndarray  # [1] of all channels under way
    best_intra: np.ndarray  # [most, G]
    best_inter: np.ndarray  # [most, 2]
    best: np.ndarray  # [8] channels, bw_intra, bw_inter, pattern, cross_nic, hops, latency, whether found here


@helper
def _grain(value):
    return np.floor(value * 1000.0 + 0.5) / 1000.0


@outlined
def _give_back(left, link, pcie, back, first, last, bw, overhead):
    for h in range(first, last):
        need = bw * overhead if pcie[h] else bw
        left[link[h]] = _grain(left[link[h]] + need)
        if back[h] != NONE:
            left[back[h]] = _grain(left[back[h]] + need / 8)


@outlined
def _take(left, link, pcie, back, first, last, bw, overhead):
    """Take `bw` from every hop, or nothing where one has not enough left."""
    for h in range(first, last):
        need = bw * overhead if pcie[h] else bw
        if left[link[h]] < need or (back[h] != NONE and left[back[h]] < need / 8):
            _give_back(left, link, pcie, back, first, h, bw, overhead)
            return False
        left[link[h]] = _grain(left[link[h]] - need)
        if back[h] != NONE:
            left[back[h]] = _grain(left[back[h]] - need / 8)
    return True


@helper
def _inside(r, a, b):
    return not (r.gpus <= a < r.gpus + r.nets) and not (r.gpus <= b < r.gpus + r.nets)


@helper
def _book(r, q, w, a, b, share):
    """Take a channel's speed from the path a to b. False where it is too far or has not enough left."""
    at = a * (r.gpus + r.nets + r.switches) + b
    inside = _inside(r, a, b)
    allowed = q.type_intra if inside else q.type_inter
    if r.kind[a, b] > allowed or r.kind[a, b] >= DIS:
        return False
    if q.pattern <= TREE and r.kind[b, a] > allowed:
        return False
    bw = (q.bw_intra if inside else q.bw_inter) * share
    if not _take(w.left, r.link, r.pcie, r.back, r.start[at], r.start[at + 1], bw, r.overhead[a, b]):
        return False
    w.hops[0] += share * (r.start[at + 1] - r.start[at])
    return True


@helper
def _unbook(r, q, w, a, b, share):
    at = a * (r.gpus + r.nets + r.switches) + b
    bw = (q.bw_intra if _inside(r, a, b) else q.bw_inter) * share
    _give_back(w.left, r.link, r.pcie, r.back, r.start[at], r.start[at + 1], bw, r.overhead[a, b])
    w.hops[0] -= share * (r.start[at + 1] - r.start[at])


@helper
def _keep_if_better(r, q, w, count):
    """Compare the channels that are complete with the best so far."""
    better = False
    if q.pattern == NVLS:
        better = count > w.best[0] and count <= r.gpus
        better = better or count * q.bw_inter > w.best[0] * w.best[2]
    else:
        mine, other = count * q.bw_intra, w.best[0] * w.best[1]
        if abs(mine - other) > 1e-6 * other:
            better = mine > other
        else:
            alike = q.pattern == w.best[3] and q.cross_nic == w.best[4]
            better = alike and w.hops[0] < w.best[5] - SAME_HOPS
    if better and count >= q.least:
        for c in range(count):
            for g in range(r.gpus):
                w.best_intra[c, g] = w.intra[c, g]
            w.best_inter[c, 0], w.best_inter[c, 1] = w.inter[c, 0], w.inter[c, 1]
        w.best[0], w.best[1], w.best[2] = count, q.bw_intra, q.bw_inter
        w.best[3], w.best[4], w.best[5] = q.pattern, q.cross_nic, w.hops[0]
        w.best[6] = r.latency[w.inter[count - 1, 0]] if q.inter else 0.0
        w.best[7] = 1.0
        if count == q.most:
            w.number[0] = FOUND_BEST


@helper
def _before(score, at):
    """Whether row `at` sorts before the row above it."""
    for k in range(6):
        if score[at, k] != score[at - 1, k]:
            return score[at, k] < score[at - 1, k]
    return False


@helper
def _following(r, q, w, channel, gpu, step, to_net):
    """GPUs to try next, best first, into w.next; returns how many."""
    count = r.gpus
    ahead, behind = (gpu + 1) % count, (gpu + count - 1) % count
    if r.switches:
        # through NVSwitches few partners are better than many: neighbours by number only
        first, second = ahead, NONE
        if q.pattern == RING:
            first, second = behind, ahead
        elif q.pattern == SPLIT_TREE or q.pattern == BALANCED_TREE:
            first, second = ahead, behind
        found = 0
        for other in (first, second):
            if other in (NONE, gpu) or (found and w.next[channel, step, 0] == other):
                continue
            if not w.used[channel, other] and r.kind[gpu, other] < DIS:
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
def _paired(q):
    if q.pairs_rings:
        return q.pattern == RING and q.cross_nic == 2
    return q.pairs and q.cross_nic != 0


@helper
def _may_leave(r, q, w, channel, net, step):
    """Whether a channel may leave by an adapter, given the one that it entered by."""
    entered = w.inter[channel, 0]
    if q.pattern == TREE and net != entered:
        return False
    paired = _paired(q)
    if paired and channel % 2 == 1 and net != w.inter[channel - 1, 0]:
        return False
    if q.pairs_rings:
        if not paired and q.cross_nic == 0 and r.card[net] != r.card[entered]:
            return False
    elif q.cross_nic != 1 and r.card[net] != r.card[entered]:
        return False
    return not (q.pattern == BALANCED_TREE and step != 0 and net != w.inter[channel, 1])


@helper
def _push(w, op, channel, gpu, net, step, to_net, to_first, order):
    f = w.frame[w.number[1]]
    f[OP], f[CHANNEL], f[GPU], f[NET], f[STEP] = op, channel, gpu, net, step
    f[TO_NET], f[TO_FIRST], f[ORDER] = to_net, to_first, order
    f[NEXT], f[HELD], f[KEPT], f[FOUND] = 0, NONE, 0, 0
    w.number[1] += 1


@helper
def _share_net(r, w, net, bw):
    """Count a channel on an adapter, and on what else its card's port is known as."""
    for other in range(r.nets):
        if r.card[other] == r.card[net]:
            w.net_left[other] -= bw


@helper
def _start(r, q, w, f):
    """Begin a channel at a GPU, coming from an adapter where it comes from one. Done when it has gone on once."""
    channel, gpu, net = f[CHANNEL], f[GPU], f[NET]
    if f[NEXT] == 1:
        if net != NONE:
            _unbook(r, q, w, r.gpus + net, gpu, 1.0)
        w.number[1] -= 1
        return
    f[NEXT] = 1
    for g in range(r.gpus):
        w.used[channel, g] = False
    w.inter[channel, 0], w.inter[channel, 1] = net, NONE
    if net != NONE and not _book(r, q, w, r.gpus + net, gpu, 1.0):
        w.number[1] -= 1
        return
    w.used[channel, gpu] = True
    ring = q.pattern == RING
    to_net, to_first = NONE, NONE
    if q.inter:
        to_net = r.gpus - 1 if ring else (1 if q.pattern == SPLIT_TREE else 0)
    elif ring:
        to_first = r.gpus - 1
    _push(w, AT, channel, gpu, NONE, 0, to_net, to_first, f[ORDER])


@helper
def _next_inside(r, q, w, f):
    """Begin the next channel of a host that is by itself: as numbered or as before, then anywhere."""
    channel, turn = f[CHANNEL], f[NEXT]
    f[NEXT] += 1
    if q.pattern == NVLS:
        if turn == 0:
            _push(w, START, channel, channel, NONE, 0, 0, 0, SEARCHED)
            return
    elif turn == 0:
        if channel == 0:
            _push(w, START, channel, 0, NONE, 0, 0, 0, PCI_ORDER)
        else:
            _push(w, START, channel, w.intra[channel - 1, 0], NONE, 0, 0, 0, REPLAYED)
        return
    elif turn <= r.gpus and (channel == 0 or not q.same):
        _push(w, START, channel, turn - 1, NONE, 0, 0, 0, SEARCHED)
        return
    w.number[1] -= 1


@helper
def _next_from_net(r, q, w, f):
    """Begin the next channel at every adapter that has the speed left, at every GPU that is worth trying for it.

    NEXT counts adapters, KEPT alternatives of the adapter under way, HELD the adapter that is counted on.
    """
    channel = f[CHANNEL]
    whole = int(q.bw_inter)  # adapters are counted in whole GB/s
    heads = q.pattern == NVLS or (q.pattern == COLLNET_DIRECT and q.heads_once)
    if f[HELD] != NONE and _next_gpu(r, q, w, f, heads):
        return
    if f[HELD] != NONE:
        _share_net(r, w, f[HELD], -whole)
        f[HELD] = NONE
    nets = 0
    while nets < r.nets and q.try_nets[r.gpus, nets] != NONE:
        nets += 1
    while f[NEXT] < nets:
        i = f[NEXT]
        f[NEXT] += 1
        if heads and ((q.heads_once and f[FOUND] == 1) or (not q.heads_once and i > 0)):
            break
        net = q.try_nets[r.gpus, (i + (channel if q.take_turns else 0)) % nets]
        if (q.collnet and not r.reduces[net]) or w.net_left[net] < whole:
            continue
        if _paired(q) and channel % 2 == 1 and net != w.inter[channel - 1, 1]:
            continue
        _share_net(r, w, net, whole)
        f[HELD], f[KEPT] = net, 0
        return  # the frame is on top of the stack still, and goes on with this adapter's GPUs
    w.number[1] -= 1


@helper
def _next_gpu(r, q, w, f, heads):
    """The next GPU to begin at from the adapter under way. False where there are no more."""
    channel, net = f[CHANNEL], f[HELD]
    if heads:
        head = r.local[net]
        free = f[KEPT] == 0 and head != NONE
        for before in range(channel):
            free = free and w.intra[before, 0] != head
        f[KEPT] = 1
        if free:
            f[FOUND] = 1
            _push(w, START, channel, head, net, 0, 0, 0, SEARCHED)
        return free
    only_replayed = channel > 0 and q.same
    if f[KEPT] == 2:
        # back from the reference, which does not count
        if w.number[0] != FOUND_BEST:
            w.number[0] = f[FOUND]
    if f[KEPT] == 0:
        f[KEPT] = 1
        if channel > 0 and (q.same or not q.local_first):
            _push(w, START, channel, w.intra[channel - 1, 0], net, 0, 0, 0, REPLAYED)
            return True
    if only_replayed:
        return False
    if f[KEPT] == 1:
        f[KEPT] = 3
        if channel == 0 and not (r.switches and q.take_turns):
            # as a reference; it does not count, nor does it run for long
            f[KEPT], f[FOUND] = 2, w.number[0]
            w.number[0] = PCI_ORDER_STEPS
            _push(w, START, channel, 0, net, 0, 0, 0, PCI_ORDER)
            return True
    f[KEPT] = max(f[KEPT], 3)
    while f[KEPT] - 3 <= r.gpus:
        k = f[KEPT] - 3
        f[KEPT] += 1
        first = NONE
        if q.local_first:
            if k == 0:
                first = r.local[net]
            elif r.near[net, k - 1] != r.local[net] and r.near[net, k - 1] != NONE:
                first = r.near[net, k - 1]
                if r.kind[r.gpus + net, first] == DIS:
                    first = NONE
        elif k < r.gpus:
            other = (k + (channel if q.take_turns else 0)) % r.gpus
            if r.nearest[net, other] and r.width[r.gpus + net, other] >= int(q.bw_inter):
                first = other
        if first != NONE:
            _push(w, START, channel, first, net, 0, 0, 0, SEARCHED)
            return True
    return False


@helper
def _all_legs(r, q, w, gpu, book):
    """Book or give back what a head takes: through the NVLink switch every GPU once, itself twice; else pairs."""
    nvls = q.pattern == NVLS
    booked = 0
    while booked < 2 * r.gpus:
        other = booked % r.gpus
        hub = r.gpus + r.nets if nvls else gpu
        a, b = (hub, other) if booked < r.gpus else (other, hub)
        share = (2.0 if other == gpu else 1.0) if nvls else 1.0 / (r.gpus - 1)
        if book:
            if not _book(r, q, w, a, b, share):
                break
        else:
            _unbook(r, q, w, a, b, share)
        booked += 1
    if book and booked < 2 * r.gpus:
        for leg in range(booked):
            other = leg % r.gpus
            hub = r.gpus + r.nets if nvls else gpu
            a, b = (hub, other) if leg < r.gpus else (other, hub)
            _unbook(r, q, w, a, b, (2.0 if other == gpu else 1.0) if nvls else 1.0 / (r.gpus - 1))
        return False
    return True


@helper
def _at(r, q, w, f):
    """Arrived at a GPU as the channel's step-th or, past the last, the channel is complete."""
    channel, gpu, step = f[CHANNEL], f[GPU], f[STEP]
    if f[NEXT] == 0:
        if w.number[0] <= 0:
            w.number[1] -= 1
            return
        w.number[0] -= 1
        if step == r.gpus:
            _keep_if_better(r, q, w, channel + 1)
        else:
            w.intra[channel, step] = gpu
    if step == r.gpus:
        f[NEXT] += 1
        if f[NEXT] == 1 and channel + 1 < q.most:
            _push(w, NEXT_CHANNEL, channel + 1, 0, NONE, 0, 0, 0, SEARCHED)
        else:
            w.number[1] -= 1
    elif step == f[TO_NET]:
        _leave(r, q, w, f)
    elif q.pattern == NVLS or q.pattern == COLLNET_DIRECT:
        if f[NEXT] == 0 and _all_legs(r, q, w, gpu, True):
            if q.pattern == COLLNET_DIRECT:
                k = 1
                for other in range(r.gpus):
                    if other != gpu:
                        w.intra[channel, k] = other
                        k += 1
            f[NEXT], f[HELD] = 1, gpu
            _push(w, AT, channel, gpu, NONE, r.gpus, NONE, NONE, SEARCHED)
        else:
            if f[HELD] != NONE:
                _all_legs(r, q, w, gpu, False)
            w.number[1] -= 1
    else:
        _go_on(r, q, w, f)


@helper
def _leave(r, q, w, f):
    """Leave by an adapter, then go on inside the host; the first two GPUs of a balanced tree share its traffic."""
    channel, gpu, step = f[CHANNEL], f[GPU], f[STEP]
    balanced = q.pattern == BALANCED_TREE
    share = 0.5 if balanced else 1.0
    if f[NEXT] == 0:
        f[KEPT] = w.inter[channel, 1]
    if f[HELD] != NONE:
        _unbook(r, q, w, gpu, r.gpus + f[HELD], share)
        f[HELD] = NONE
    while f[NEXT] < r.nets and q.try_nets[gpu, f[NEXT]] != NONE:
        net = q.try_nets[gpu, f[NEXT]]
        f[NEXT] += 1
        if _may_leave(r, q, w, channel, net, step) and _book(r, q, w, gpu, r.gpus + net, share):
            f[HELD] = net
            w.inter[channel, 1] = net
            _push(w, AT, channel, gpu, NONE, step, 1 if balanced and step == 0 else NONE, f[TO_FIRST], f[ORDER])
            return
    w.inter[channel, 1] = f[KEPT]
    w.number[1] -= 1


@helper
def _go_on(r, q, w, f):
    """On to the next GPU; from the last one back to the first, or nowhere."""
    channel, gpu, step = f[CHANNEL], f[GPU], f[STEP]
    if f[NEXT] == 0:
        f[FOUND] = 1
        if step == r.gpus - 1:
            w.next[channel, step, 0] = w.intra[channel, 0]
        elif f[ORDER] == PCI_ORDER:
            w.next[channel, step, 0] = step + 1
        elif f[ORDER] == REPLAYED:
            w.next[channel, step, 0] = w.intra[channel - 1, step + 1]
        else:
            f[FOUND] = _following(r, q, w, channel, gpu, step, f[TO_NET])
    back = step == f[TO_FIRST]
    free = step == r.gpus - 1 and not back
    if f[HELD] != NONE:
        if not free:
            _unbook(r, q, w, gpu, f[HELD], 1.0)
        if not back and not free:
            w.used[channel, f[HELD]] = False
        f[HELD] = NONE
    while f[NEXT] < f[FOUND]:
        other = w.next[channel, step, f[NEXT]]
        f[NEXT] += 1
        if free or _book(r, q, w, gpu, other, 1.0):
            f[HELD] = other
            if back or free:
                _push(w, AT, channel, other, NONE, r.gpus, NONE, NONE, f[ORDER])
            else:
                w.used[channel, other] = True
                _push(w, AT, channel, other, NONE, step + 1, f[TO_NET], f[TO_FIRST], f[ORDER])
            return
    w.number[1] -= 1


@hot_entry
def search(r, q, w):
    """Search from nothing; `w.number[0]` holds the steps that it may take, and afterwards those left."""
    w.number[1] = 0
    _push(w, NEXT_CHANNEL, 0, 0, NONE, 0, 0, 0, SEARCHED)
    while w.number[1] > 0:
        f = w.frame[w.number[1] - 1]
        if f[OP] == AT:
            _at(r, q, w, f)
        elif f[OP] == START:
            _start(r, q, w, f)
        elif q.inter:
            _next_from_net(r, q, w, f)
        else:
            _next_inside(r, q, w, f)
