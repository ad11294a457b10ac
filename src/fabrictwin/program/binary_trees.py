"""Double binary trees over nodes: in two trees, nobody but the two roots is an inner node of both.

The first tree alternates leaves and inner nodes by their number's lowest set bit. The second mirrors it where the
number of nodes is even and shifts it by one where it is odd.

Source: NCCL, src/graph/trees.cc; Sanders, Speck and Träff, "Two-tree algorithms for full bandwidth broadcast,
reduction and scan", Parallel Computing 35 (2009).
"""

from __future__ import annotations

from functools import cache

import numpy as np

from fabrictwin.base.arrays import I32
from fabrictwin.base.records import record
from fabrictwin.program.program import NONE


@record
class NodeTree:
    """A binary tree over n nodes; NONE where there is no parent or child."""

    up: I32  # [n]
    down: I32  # [n, 2]
    side: I32  # [n] which child of its parent a node is: 0 below it in number, 1 above


def binary_tree(n: int) -> NodeTree:
    """The tree whose root is node 0."""
    up, side = np.full(n, NONE, np.int32), np.zeros(n, np.int32)
    down = np.full((n, 2), NONE, np.int32)
    for node in range(n):
        bit = 1
        while bit < n and not bit & node:
            bit <<= 1
        if node == 0:
            # its only child is above it
            down[0, 1] = bit >> 1 if n > 1 else NONE
            continue
        parent = (node ^ bit) | (bit << 1)
        up[node] = parent if parent < n else node ^ bit
        side[node] = int(node > up[node])
        step = bit >> 1
        if step:
            down[node, 0] = node - step
            while step and node + step >= n:
                step >>= 1
            down[node, 1] = node + step if step else NONE
    return NodeTree(up, down, side)


@cache
def double_binary_tree(n: int) -> tuple[NodeTree, NodeTree]:
    """Both trees over n nodes."""
    first = binary_tree(n)
    nodes = np.arange(n)
    moved = (nodes - 1) % n if n % 2 else n - 1 - nodes  # where a node stands in the first tree's numbers

    def back(number: I32) -> I32:
        there = (number + 1) % n if n % 2 else n - 1 - number
        return np.where(number == NONE, NONE, there).astype(np.int32)

    second = NodeTree(back(first.up[moved]), back(first.down[moved]), first.side[moved])
    for tree in (first, second):
        for column in (tree.up, tree.down, tree.side):
            column.flags.writeable = False  # all who ask share them
    return first, second
