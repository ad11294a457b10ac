"""Compiled: a host's links, and the bandwidth that channels under way have booked on them.

Ends are numbered GPUs first, then adapters, then the NVLink switch. Bandwidth is booked on the way down of the
search (`kernel.nccl.channel_search`) and given back on the way up; thousandths of a GB/s are the grain, as in
NCCL.

Source: NCCL 2.30.7, 2.21.5 and 2.18.3, src/graph/search.cc.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from fabrictwin.kernel.codes import NONE, PathType, Pattern
from fabrictwin.kernel.jit.decorators import helper, outlined


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
def _count_hops(w, multiple, count):
    # NCCL holds hops as an integer and adds in single precision, so that parts of a hop are cut off each time
    w.hops[0] = np.trunc(np.float32(w.hops[0]) + np.float32(multiple) * np.float32(count))


@helper
def _speed(r, q, a, b, multiple, halved):
    return (q.bw_intra if _inside(r, a, b) else q.bw_inter) * multiple * (0.5 if halved else 1.0)


@helper
def book(r, q, w, a, b, multiple, halved):
    """Take a multiple of a channel's speed (half of it where `halved`) from the path a to b.

    False where it has not enough left or, of a whole channel, where it is of a farther kind than is asked for.
    """
    at = a * (r.gpus + r.nets + r.switches) + b
    allowed = q.type_intra if _inside(r, a, b) else q.type_inter
    if r.kind[a, b] >= PathType.DIS or (multiple == 1.0 and r.kind[a, b] > allowed):
        return False
    if multiple == 1.0 and q.pattern <= Pattern.TREE and r.kind[b, a] > allowed:
        return False
    bw = _speed(r, q, a, b, multiple, halved)
    if not _take(w.left, r.link, r.pcie, r.back, r.start[at], r.start[at + 1], bw, r.overhead[a, b]):
        return False
    _count_hops(w, multiple, r.start[at + 1] - r.start[at])
    return True


@helper
def unbook(r, q, w, a, b, multiple, halved):
    at = a * (r.gpus + r.nets + r.switches) + b
    bw = _speed(r, q, a, b, multiple, halved)
    _give_back(w.left, r.link, r.pcie, r.back, r.start[at], r.start[at + 1], bw, r.overhead[a, b])
    _count_hops(w, -multiple, r.start[at + 1] - r.start[at])


@helper
def share_net(r, w, net, bw):
    """Count a channel on an adapter, and on what else its card's port is known as."""
    for other in range(r.nets):
        if r.card[other] == r.card[net]:
            w.net_left[other] -= bw


@helper
def _leg(r, q, gpu, leg):
    """Ends of a head's leg and its multiple: through the NVLink switch each GPU once, itself twice; else pairs."""
    nvls = q.pattern == Pattern.NVLS
    other = leg % r.gpus
    hub = r.gpus + r.nets if nvls else gpu
    share = (2.0 if other == gpu else 1.0) if nvls else 1.0 / (r.gpus - 1)
    if leg < r.gpus:
        return hub, other, share
    return other, hub, share


@helper
def book_legs(r, q, w, gpu):
    """Take what a head needs, or nothing where it is not to be had."""
    for leg in range(2 * r.gpus):
        a, b, share = _leg(r, q, gpu, leg)
        if not book(r, q, w, a, b, share, False):
            unbook_legs(r, q, w, gpu, leg)
            return False
    return True


@helper
def unbook_legs(r, q, w, gpu, count):
    """Give back the first `count` legs, the last one first, as parts of hops are cut off in that order."""
    for leg in range(count - 1, -1, -1):
        a, b, share = _leg(r, q, gpu, leg)
        unbook(r, q, w, a, b, share, False)
