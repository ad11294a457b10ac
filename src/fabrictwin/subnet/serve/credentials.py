"""Senders of datagrams on abstract unix sockets, as the kernel names them (unix(7), SO_PASSCRED).

A name in the abstract namespace has no owner and no mode: any process of the network namespace may send to it. The
kernel attaches the sender's credentials to each datagram of a socket that asks for them.
"""

from __future__ import annotations

import os
import socket
import struct

_CREDENTIALS = struct.Struct("iII")  # struct ucred: process, user, group
_SPACE = socket.CMSG_SPACE(_CREDENTIALS.size)  # no room for descriptors: the kernel closes those that come along
_KERNEL = -1  # a user that nobody is


def bind_abstract(name: str) -> socket.socket:
    """Return a datagram socket bound to an abstract name, which asks for credentials before anybody can send.

    Raises OSError where the name is taken. The trailing zero byte is part of a simulator's names.
    """
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        sock.bind(f"\0{name}\0".encode())
    except OSError:
        sock.close()
        raise
    return sock


def receive_with_sender(sock: socket.socket, size: int) -> tuple[bytes, bytes, int]:
    """Return a datagram, the address it came from, and its sender's user. Raises OSError as `recv` does."""
    data, ancillary, _, address = sock.recvmsg(size, _SPACE)
    for level, kind, content in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_CREDENTIALS) and len(content) >= _CREDENTIALS.size:
            return data, address, _CREDENTIALS.unpack_from(content)[1]
    return data, address, _KERNEL


def is_own_user(uid: int) -> bool:
    """Return whether a sender is of this process's user."""
    return uid == os.getuid()
