"""Compiled: the recursive search for NCCL's channels over one host's links.

The recursion keeps a stack of its own: a frame is a visit that has alternatives to try, and takes up where it left
off when the visit that it made returns. What bandwidth is left is `channel_links`, what is tried `channel_order`.

Source: NCCL 2.30.7, 2.21.5 and 2.18.3, src/graph/search.cc; what is searched when is `nccl.search.search_order`.
"""

from __future__ import annotations

from fabrictwin.kernel.codes import NONE, PathType, Pattern
from fabrictwin.kernel.jit.decorators import helper, hot_entry
from fabrictwin.kernel.nccl.channel_links import book, book_legs, share_net, unbook, unbook_legs
from fabrictwin.kernel.nccl.channel_order import following, may_leave, paired

FOUND_BEST = -1  # steps left once nothing better can be found

SEARCHED, PCI_ORDER, REPLAYED = 0, 1, 2  # which GPU comes next
NEXT_CHANNEL, START, AT = 0, 1, 2  # what a visit is to do
# a frame: what to do, for which channel, at which GPU (from which adapter), as the channel's which step, at which
# steps to leave or to close the ring, in which order; then the next alternative, what is booked for the one under
# way, and two places to keep things
OP, CHANNEL, GPU, NET, STEP, TO_NET, TO_FIRST, ORDER, NEXT, HELD, KEPT, FOUND = range(12)
FRAME = 12

PCI_ORDER_STEPS = 1 << 10


@helper
def _keep_if_better(r, q, w, count):
    """Compare the channels that are complete with the best so far."""
    better = False
    if q.pattern == Pattern.NVLS:
        better = count > w.best[0] and count <= r.gpus
        better = better or count * q.bw_inter > w.best[0] * w.best[2]
    else:
        mine, other = count * q.bw_intra, w.best[0] * w.best[1]
        if abs(mine - other) > 1e-6 * other:
            better = mine > other
        else:
            alike = q.pattern == w.best[3] and q.cross_nic == w.best[4]
            better = alike and w.hops[0] < w.best[5]
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
def _push(w, op, channel, gpu, net, step, to_net, to_first, order):
    f = w.frame[w.number[1]]
    f[OP], f[CHANNEL], f[GPU], f[NET], f[STEP] = op, channel, gpu, net, step
    f[TO_NET], f[TO_FIRST], f[ORDER] = to_net, to_first, order
    f[NEXT], f[HELD], f[KEPT], f[FOUND] = 0, NONE, 0, 0
    w.number[1] += 1


@helper
def _start(r, q, w, f):
    """Begin a channel at a GPU, coming from an adapter where it comes from one. Done when it has gone on once."""
    channel, gpu, net = f[CHANNEL], f[GPU], f[NET]
    if f[NEXT] == 1:
        if net != NONE:
            unbook(r, q, w, r.gpus + net, gpu, 1.0, False)
        w.number[1] -= 1
        return
    f[NEXT] = 1
    for g in range(r.gpus):
        w.used[channel, g] = False
    w.inter[channel, 0], w.inter[channel, 1] = net, NONE
    if net != NONE and not book(r, q, w, r.gpus + net, gpu, 1.0, False):
        w.number[1] -= 1
        return
    w.used[channel, gpu] = True
    ring = q.pattern == Pattern.RING
    to_net, to_first = NONE, NONE
    if q.inter:
        to_net = r.gpus - 1 if ring else (1 if q.pattern == Pattern.SPLIT_TREE else 0)
    elif ring:
        to_first = r.gpus - 1
    _push(w, AT, channel, gpu, NONE, 0, to_net, to_first, f[ORDER])


@helper
def _next_inside(r, q, w, f):
    """Begin the next channel of a host that is by itself: as numbered or as before, then anywhere."""
    channel, turn = f[CHANNEL], f[NEXT]
    f[NEXT] += 1
    if q.pattern == Pattern.NVLS:
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
    heads = q.pattern == Pattern.NVLS or (q.pattern == Pattern.COLLNET_DIRECT and q.heads_once)
    if f[HELD] != NONE and _next_gpu(r, q, w, f, heads):
        return
    if f[HELD] != NONE:
        share_net(r, w, f[HELD], -whole)
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
        if paired(q) and channel % 2 == 1 and net != w.inter[channel - 1, 1]:
            continue
        share_net(r, w, net, whole)
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
                if r.kind[r.gpus + net, first] == PathType.DIS:
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
    elif q.pattern == Pattern.NVLS or q.pattern == Pattern.COLLNET_DIRECT:
        if f[NEXT] == 0 and book_legs(r, q, w, gpu):
            if q.pattern == Pattern.COLLNET_DIRECT:
                k = 1
                for other in range(r.gpus):
                    if other != gpu:
                        w.intra[channel, k] = other
                        k += 1
            f[NEXT], f[HELD] = 1, gpu
            _push(w, AT, channel, gpu, NONE, r.gpus, NONE, NONE, SEARCHED)
        else:
            if f[HELD] != NONE:
                unbook_legs(r, q, w, gpu, 2 * r.gpus)
            w.number[1] -= 1
    else:
        _go_on(r, q, w, f)


@helper
def _leave(r, q, w, f):
    """Leave by an adapter, then go on inside the host; the first two GPUs of a balanced tree share its traffic."""
    channel, gpu, step = f[CHANNEL], f[GPU], f[STEP]
    balanced = q.pattern == Pattern.BALANCED_TREE
    if f[NEXT] == 0:
        f[KEPT] = w.inter[channel, 1]
    if f[HELD] != NONE:
        unbook(r, q, w, gpu, r.gpus + f[HELD], 1.0, balanced)
        f[HELD] = NONE
    while f[NEXT] < r.nets and q.try_nets[gpu, f[NEXT]] != NONE:
        net = q.try_nets[gpu, f[NEXT]]
        f[NEXT] += 1
        if may_leave(r, q, w, channel, net, step) and book(r, q, w, gpu, r.gpus + net, 1.0, balanced):
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
            f[FOUND] = following(r, q, w, channel, gpu, step, f[TO_NET])
    back = step == f[TO_FIRST]
    free = step == r.gpus - 1 and not back
    if f[HELD] != NONE:
        if not free:
            unbook(r, q, w, gpu, f[HELD], 1.0, False)
        if not back and not free:
            w.used[channel, f[HELD]] = False
        f[HELD] = NONE
    while f[NEXT] < f[FOUND]:
        other = w.next[channel, step, f[NEXT]]
        f[NEXT] += 1
        if free or book(r, q, w, gpu, other, 1.0, False):
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
