"""Parts of steering rules (`pyverbs.spec`): can be written down, since a program may; nothing takes them."""

from __future__ import annotations

from fabrictwin.verbs.attributes.unsupported import Bag


class Spec(Bag):
    """A part of a steering rule."""


class EthSpec(Spec):
    """Ethernet addresses and types."""


class Ipv4ExtSpec(Spec):
    """Fields of an IPv4 header."""


class Ipv6Spec(Spec):
    """Fields of an IPv6 header."""


class TcpUdpSpec(Spec):
    """TCP or UDP ports."""
