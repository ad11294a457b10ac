"""Kinds of nodes and links, and the types of a fabric's arrays."""

from __future__ import annotations

from enum import IntEnum


class NodeKind(IntEnum):
    GPU = 0
    NVSWITCH = 1
    PCIE_SWITCH = 2
    CPU = 3
    NIC = 4
    SWITCH = 5
    AGGREGATION = 6


class LinkKind(IntEnum):
    """The wire of a port; decides packet overhead and flow control."""

    NVLINK = 0
    PCIE = 1
    CPU = 2  # the links between sockets
    INFINIBAND = 3
    ETHERNET = 4


NETWORK = (LinkKind.INFINIBAND, LinkKind.ETHERNET)
