"""Integers that compiled code and Python both speak: sentinels, and what a kernel is asked, tells and answers.

Members of an IntEnum compile as the integers that they are. numba is not imported here.
"""

from __future__ import annotations

from enum import IntEnum

NONE = -1  # no port, no packet, no operation
NEVER = 2**62  # a time that does not come, in picoseconds; sums of two still fit
PS_PER_S = 10**12


class OpKind(IntEnum):
    """Kinds of operations of a program."""

    COMPUTE = 0
    COMMUNICATE = 1


class EventKind(IntEnum):
    """Kinds of what an engine tells about a single message."""

    BEGUN = 0  # the first packet is at the receiving adapter, not yet taken (of messages that asked to be told)
    ARRIVED = 1  # the last byte is in the receiver's memory; of a request, the adapter has it
    ENDED = 2  # the sender knows: acknowledged, or of an unreliable service, sent
    FAILED = 3  # retries are used up; the flow sends nothing more
    NOT_READY_FAILED = 4  # the receiver had no receive posted as often as RNR retries allow
    LOST = 5  # an unreliable message that did not arrive whole, or a datagram that found no receive


class Pattern(IntEnum):
    """Patterns of channels inside a host, as NCCL's search numbers them (NCCL_TOPO_PATTERN_*)."""

    BALANCED_TREE = 1  # a chain; adapter traffic spread over its first two GPUs
    SPLIT_TREE = 2  # a chain; in at its first GPU, out at its second
    TREE = 3  # a chain; in and out at its first GPU
    RING = 4
    NVLS = 5
    COLLNET_DIRECT = 6


class PathType(IntEnum):
    """How far two devices of a host are apart, nearest first, in NCCL's order (PATH_*)."""

    LOC = 0
    NVL = 1
    NVB = 2
    C2C = 3
    PIX = 4
    PXB = 5
    P2C = 6
    PXN = 7
    PHB = 8
    SYS = 9
    NET = 10
    DIS = 11
