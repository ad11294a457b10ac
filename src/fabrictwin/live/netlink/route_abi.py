"""Messages of route netlink that say what an adapter's network interface is (rtnetlink(7), uapi linux/if_link.h).

Written into a host's folder, where the preloaded library finds them; sequence and port id are the asker's.
"""

from __future__ import annotations

import struct

from fabrictwin.live.netlink.nldev_abi import F_MULTI, HEADER, attribute

_NEWLINK, _NEWADDR = 16, 20
_LINK = struct.Struct("=BxHiII")  # family, type, index, flags, change
_ADDRESS = struct.Struct("=BBBBI")  # family, prefix, flags, scope, index
_UP, _CAN_BROADCAST, _RUNNING, _MULTICAST, _LOWER_UP = 0x1, 0x2, 0x40, 0x1000, 0x10000  # IFF_...
_HARDWARE, _BROADCAST, _NAME, _MTU, _QUEUE, _QUEUEING, _STATE = 1, 2, 3, 4, 13, 6, 16  # IFLA_...
_IP, _LOCAL, _LABEL, _IP_BROADCAST, _LIFE, _IP_FLAGS = 1, 2, 3, 4, 6, 8  # IFA_...
_OPERATES, _IS_DOWN = 6, 2  # IF_OPER_UP, IF_OPER_DOWN
_INET, _PERMANENT, _FOR_EVER = 2, 0x80, 0xFFFFFFFF
QUEUE_PACKETS = 256


def link(index: int, name: str, kind: int, hardware: bytes, mtu: int, *, active: bool) -> bytes:
    """Return RTM_NEWLINK of an interface; `kind` is its ARPHRD number, `hardware` its link-layer address."""
    everybody = (
        b"\xff" * 6 if len(hardware) == 6 else bytes.fromhex("00ffffffff12401bffff") + bytes(6) + b"\xff" * 4
    )
    flags = _UP | _CAN_BROADCAST | _MULTICAST | (_RUNNING | _LOWER_UP if active else 0)
    body = _LINK.pack(0, kind, index, flags, 0)
    body += attribute(_NAME, name.encode() + b"\0") + attribute(_QUEUE, struct.pack("=I", QUEUE_PACKETS))
    body += attribute(_STATE, bytes([_OPERATES if active else _IS_DOWN])) + attribute(_MTU, struct.pack("=I", mtu))
    body += attribute(_QUEUEING, b"mq\0") + attribute(_HARDWARE, hardware) + attribute(_BROADCAST, everybody)
    return HEADER.pack(HEADER.size + len(body), _NEWLINK, F_MULTI, 0, 0) + body


def address(index: int, name: str, ip: bytes, prefix: int) -> bytes:
    """Return RTM_NEWADDR of an interface's IPv4 address."""
    rest = (1 << 32 - prefix) - 1
    everybody = (int.from_bytes(ip, "big") | rest).to_bytes(4, "big")
    body = _ADDRESS.pack(_INET, prefix, _PERMANENT, 0, index)
    body += attribute(_IP, ip) + attribute(_LOCAL, ip) + attribute(_IP_BROADCAST, everybody)
    body += attribute(_LABEL, name.encode() + b"\0") + attribute(_IP_FLAGS, struct.pack("=I", _PERMANENT))
    body += attribute(_LIFE, struct.pack("=4I", _FOR_EVER, _FOR_EVER, 0, 0))
    return HEADER.pack(HEADER.size + len(body), _NEWADDR, F_MULTI, 0, 0) + body
