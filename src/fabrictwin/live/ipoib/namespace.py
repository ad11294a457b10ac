"""Network namespaces with an interface of their own (netns, TUN: network_namespaces(7), tuntap.rst of the kernel).

Everything is done by a thread that ends with it: `unshare` concerns the calling thread alone, and the namespace
lives as long as its descriptor and the programs in it.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import os
import socket
import struct
import threading
from pathlib import Path

from fabrictwin.base.errors import ConfigError
from fabrictwin.base.records import record

_NEW_NETWORK = 0x40000000  # CLONE_NEWNET
_TUN = "/dev/net/tun"
_SET_INTERFACE, _SET_LINK = 0x400454CA, 0x400454CD  # TUNSETIFF, TUNSETLINK
_IP_PACKETS = 0x0001 | 0x1000  # IFF_TUN, IFF_NO_PI
_INFINIBAND = 32  # ARPHRD_INFINIBAND
_ADDRESS, _NETMASK, _MTU, _QUEUE = 0x8916, 0x891C, 0x8922, 0x8943  # SIOCSIF...
_GET_FLAGS, _FLAGS = 0x8913, 0x8914
_UP = 1
_QUEUE_PACKETS = 256  # as an IPoIB interface has them
_NAME_BYTES = 16


@record
class Settings:
    """An interface as it comes up."""

    name: str
    ip: bytes
    prefix: int
    mtu: int


@record
class Namespace:
    """Descriptors of a network namespace, and of the interface in it that gives IP packets."""

    network: int
    tun: int

    def enter(self) -> None:
        """Put the calling thread into the namespace. Raises OSError."""
        _call(_libc().setns, self.network, _NEW_NETWORK)

    def close(self) -> None:
        os.close(self.network)
        os.close(self.tun)


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def _call(function: ctypes._NamedFuncPointer, *arguments: int) -> None:
    if function(*arguments):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def create(settings: Settings) -> Namespace:
    """Make a network namespace with an interface. Raises ConfigError, saying what is missing."""
    made: list[Namespace] = []
    failed: list[OSError] = []

    def work() -> None:
        try:
            made.append(_create(settings))
        except OSError as error:
            failed.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    if not failed:
        return made[0]
    error = failed[0]
    if error.errno in (errno.EPERM, errno.EACCES):
        raise ConfigError(
            "network namespaces are not permitted, expected root, or: unshare --map-root-user fabrictwin exec ...",
            key="--netns",
        )
    if error.errno in (errno.ENOENT, errno.ENODEV, errno.ENXIO):
        raise ConfigError(f"{_TUN} is missing, expected the kernel's module tun", key="--netns")
    raise ConfigError(f"no network namespace with {settings.name}: {error.strerror}", key="--netns")


def _create(settings: Settings) -> Namespace:
    _call(_libc().unshare, _NEW_NETWORK)
    with contextlib.ExitStack() as stack:
        network = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
        stack.callback(os.close, network)
        tun = os.open(_TUN, os.O_RDWR | os.O_CLOEXEC | os.O_NONBLOCK)
        stack.callback(os.close, tun)
        fcntl.ioctl(tun, _SET_INTERFACE, _request(settings.name, struct.pack("=H", _IP_PACKETS)))
        fcntl.ioctl(tun, _SET_LINK, _INFINIBAND)
        with contextlib.suppress(FileNotFoundError):  # a kernel without IPv6
            Path(f"/proc/sys/net/ipv6/conf/{settings.name}/disable_ipv6").write_text("1")
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
            _set_up(control, settings)
        stack.pop_all()
    return Namespace(network, tun)


def _set_up(control: socket.socket, settings: Settings) -> None:
    mask = (0xFFFFFFFF << (32 - settings.prefix) & 0xFFFFFFFF).to_bytes(4, "big")
    for request, value in (
        (_MTU, struct.pack("=i", settings.mtu)),
        (_ADDRESS, _socket_address(settings.ip)),
        (_NETMASK, _socket_address(mask)),
    ):
        fcntl.ioctl(control, request, _request(settings.name, value))
    with contextlib.suppress(PermissionError):  # the machine's root alone may, not a namespace's
        fcntl.ioctl(control, _QUEUE, _request(settings.name, struct.pack("=i", _QUEUE_PACKETS)))
    for name in ("lo", settings.name):
        flags = struct.unpack_from("=H", fcntl.ioctl(control, _GET_FLAGS, _request(name)), _NAME_BYTES)[0]
        fcntl.ioctl(control, _FLAGS, _request(name, struct.pack("=H", flags | _UP)))


def _request(name: str, value: bytes = b"") -> bytes:
    """Return a `struct ifreq`."""
    return name.encode().ljust(_NAME_BYTES, b"\0") + value.ljust(24, b"\0")


def _socket_address(ip: bytes) -> bytes:
    return struct.pack("=HH4s", socket.AF_INET, 0, ip)
