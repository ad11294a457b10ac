"""The address plan: loopbacks and AS numbers of switches, a link of two addresses for each adapter.

Links to hosts have 10.64.0.0/10, two addresses each (RFC 3021): the even one is the switch's. Loopbacks have
10.255.0.0/16, management 10.0.0.0/16 as in the twin. Leaves have an AS each, all other switches of a tier and pod
share one (RFC 7938 5.2.1), of the private range of four bytes.
"""

from __future__ import annotations

from ipaddress import IPv4Address

from fabrictwin.base.errors import ConfigError
from fabrictwin.cluster.blueprint import Blueprint

_LINKS, _LOOPBACKS, _MANAGEMENT = (int(IPv4Address(start)) for start in ("10.64.0.0", "10.255.0.0", "10.0.0.0"))
MOST_LINKS = 1 << 21
MOST_SWITCHES = (1 << 16) - 2
_LEAF_AS, _UPPER_AS, _PODS = 4_200_000_000, 4_280_000_000, 4096


def link(adapter: int) -> tuple[str, str]:
    """Return (the switch's, the adapter's) address of an adapter's link, without prefix length (31)."""
    if adapter >= MOST_LINKS:
        raise ConfigError(f"got more than {MOST_LINKS} adapters, which the address plan has no room for")
    return str(IPv4Address(_LINKS + 2 * adapter)), str(IPv4Address(_LINKS + 2 * adapter + 1))


def loopback(switch: int) -> str:
    """Return the loopback address of a switch."""
    if switch > MOST_SWITCHES:
        raise ConfigError(f"got more than {MOST_SWITCHES} switches, which the address plan has no room for")
    return str(IPv4Address(_LOOPBACKS + switch + 1))


def mac(switch: int) -> str:
    """Return the MAC address of a switch, of those that nobody assigns: link-local addresses are made from it."""
    return ":".join(f"{byte:02x}" for byte in (0x02, 0, *IPv4Address(loopback(switch)).packed))


def management(host: int) -> str:
    """Return the management address of a host, with its prefix length."""
    return f"{IPv4Address(_MANAGEMENT + (host + 1) // 256 * 256 + (host + 1) % 256)}/16"


def as_number(blueprint: Blueprint, switch: int) -> int:
    """Return the AS of a switch."""
    site = blueprint.switches[switch]
    if site.tier <= 1:
        return _LEAF_AS + switch + 1
    return _UPPER_AS + site.tier * _PODS + site.pod + 1
