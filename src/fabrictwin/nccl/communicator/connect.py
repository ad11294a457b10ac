"""From channels inside hosts to rings and trees across them.

Ring c leaves a host at the last GPU of its channel c and enters the next at the first. Where hosts leave by
another adapter than they enter by, every second host exchanges its channels in pairs, so that rails are not
crossed. A tree is a chain inside every host and a binary tree over hosts between the heads of the chains; twice
the channels carry two complementary ones.

Source: NCCL 2.30.7 and 2.18.3, src/graph/connect.cc.
"""

from __future__ import annotations

import numpy as np

from fabrictwin.base.arrays import I32
from fabrictwin.base.errors import InvariantError
from fabrictwin.fabric.fabric import NONE
from fabrictwin.nccl.constants import TREE_CHILDREN
from fabrictwin.nccl.topology.graph_types import Pattern
from fabrictwin.program.binary_trees import NodeTree, double_binary_tree


def ring_order(intra: I32, cross_nic: I32) -> I32:
    """[channels, ranks] ranks of each ring, from rank 0 on, of a ring graph's channels; `cross_nic` by host."""
    nodes, channels, _ = intra.shape
    which = np.broadcast_to(np.arange(channels), (nodes, channels)).copy()
    if channels % 2 == 0:
        swapped = (cross_nic == 2) & (np.arange(nodes) % 2 == 1)
        which[swapped] ^= 1
    ordered = np.take_along_axis(intra, which[:, :, None], axis=1)
    rings = ordered.transpose(1, 0, 2).reshape(channels, -1)
    rings = rings[rings != NONE].reshape(channels, -1)  # each has every rank
    ranks = rings.shape[1]
    turned = (np.argmax(rings == 0, axis=1)[:, None] + np.arange(ranks)) % ranks
    return np.take_along_axis(rings, turned, axis=1).astype(np.int32)


def connect_trees(intra: I32, patterns: list[Pattern], ranks: int) -> tuple[I32, I32]:
    """(up [2 channels, ranks], down [2 channels, ranks, 3]) of a tree graph's channels.

    `patterns` is what each host's tree looks like inside.
    """
    nodes, channels, _ = intra.shape
    up = np.full((2 * channels, ranks), NONE, np.int32)
    down = np.full((2 * channels, ranks, TREE_CHILDREN), NONE, np.int32)
    split = np.array([p == Pattern.SPLIT_TREE for p in patterns])
    simple = np.array([p == Pattern.TREE for p in patterns])
    trees = double_binary_tree(nodes)
    near, far = intra[:, :, :-1], intra[:, :, 1:]
    real = (near != NONE) & (far != NONE)
    near, far, channel = near[real], far[real], np.nonzero(real)[1]
    for half in (channel, channel + channels):
        up[half, far] = near
        down[half, near, 0] = far
    parent = intra[:, :, 0]
    second = intra[:, :, 1] if intra.shape[2] > 1 else parent
    second = np.where(second == NONE, parent, second)
    children = np.stack([np.where(simple[:, None], parent, second), np.where(split[:, None], second, parent)])
    for half, tree in ((slice(channels), trees[0]), (slice(channels, None), trees[1])):
        _over_hosts(up[half], down[half], parent, children, tree)
    return up, down


def _over_hosts(up: I32, down: I32, parent: I32, children: I32, tree: NodeTree) -> None:
    """Join hosts along one tree, on all channels.

    `parent` [hosts, channels] is the GPU of each host that connects to the host above, `children` [2, hosts,
    channels] those to which its two children connect.
    """
    has, channel = tree.up != NONE, np.arange(len(up))
    up[channel, parent[has]] = children[tree.side[has], tree.up[has]]
    for side in (0, 1):
        child = tree.down[:, side]
        here = np.flatnonzero(child != NONE)
        at, below = children[side, here], parent[child[here]]
        free = (down[channel, at] != NONE).sum(axis=2)
        if (free >= TREE_CHILDREN).any():
            raise InvariantError("a tree has more children than a rank can have")
        down[channel, at, free] = below


def nvls_trees(heads: I32, ranks: int) -> tuple[I32, I32]:
    """(up [2, ranks], down [2, ranks, 2]) between hosts, of the heads [nodes, heads] of NVLink SHARP."""
    up = np.full((2, ranks), NONE, np.int32)
    down = np.full((2, ranks, 2), NONE, np.int32)
    for half, tree in enumerate(double_binary_tree(len(heads))):
        for head in heads.T:
            up[half, head] = np.where(tree.up == NONE, NONE, head[tree.up])
            down[half, head] = np.where(tree.down == NONE, NONE, head[tree.down])
    return up, down


def copied(rows: I32, count: int) -> I32:
    """The first `count` channels, going round where there are fewer."""
    taken: I32 = rows[np.arange(count) % len(rows)]
    return taken
