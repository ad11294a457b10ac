"""General information of devices, as vendstat reads it."""

from __future__ import annotations

from support.sm_fabrics import Site

from fabrictwin.subnet.agents.vendor_agent import GeneralInfo
from fabrictwin.subnet.wire.header import START, MadClass, Method, Status


def asked(site: Site, m: int, attribute: int, method: int = Method.GET) -> bytes | None:
    mad = START.pack(1, MadClass.VENDOR, 1, method, 0, 0, 7, attribute, 0, 0).ljust(256, b"\0")
    return site.endpoint.network.vendor.answer(m, mad, 12_500_000_000_000)


def status(answer: bytes | None) -> int:
    assert answer is not None
    assert (len(answer), answer[3]) == (256, 0x81)
    return int.from_bytes(answer[4:6], "big")


def test_a_device_says_what_it_is_and_how_long_it_runs():
    site = Site(manage=False)
    for name in ("leaf-0", "host-3/mlx5_0"):
        m = site.state.find(name)
        answer = asked(site, m, GeneralInfo.ID)
        assert status(answer) == Status.OK
        info = GeneralInfo.decode(answer[24:])
        assert (info.device_id, info.uptime_s) == (site.state.node_info[m].device_id, 12)
        assert info.firmware == bytes(64)


def test_other_attributes_and_other_vendors_are_not_answered_so():
    site = Site(manage=False)
    assert status(asked(site, 0, 0x50)) == Status.BAD_ATTRIBUTE
    assert status(asked(site, 0, GeneralInfo.ID, Method.SET)) == Status.BAD_METHOD
    assert status(asked(site, 0, 1)) == Status.OK
    site.state.node_info[0].vendor_id = 0x1234
    assert asked(site, 0, GeneralInfo.ID) is None
