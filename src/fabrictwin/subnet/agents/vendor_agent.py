"""The general information of Mellanox's and NVIDIA's devices, as infiniband-diags' vendstat reads it.

A class of the vendor's own range (0x0A) with its data from byte 24 on. Told are hardware revision, device and time
on the twin's clock; a twin has no firmware, whose fields are 0. Other attributes of the class (counter
groups, configuration space) are refused.
"""

from __future__ import annotations

from fabrictwin.base.units import PS_PER_S
from fabrictwin.subnet.agents.port_states import PortStates
from fabrictwin.subnet.wire.fields import Attribute, attribute, bits, raw, row
from fabrictwin.subnet.wire.header import START, Method, Status
from fabrictwin.subnet.wire.pm import ClassPortInfo, PerfId

MELLANOX = 0x02C9
GENERAL_INFO = 0x17
DATA_AT = 24
RESPONSE_TIME = 16


@attribute
class GeneralInfo(Attribute, size=136, id=GENERAL_INFO):
    """The layout of devices whose firmware has an extended version: IS4 and later, ConnectX."""

    hw_revision, device_id = row(64, 16, 16)
    uptime_s = bits(288, 32)
    firmware = raw(40, 64)
    software = raw(104, 32)


class VendorAgent:
    """All agents of the vendor's class in a fabric."""

    def __init__(self, state: PortStates) -> None:
        self.state = state

    def answer(self, m: int, mad: bytes, now_ps: int) -> bytes | None:
        """Return the answer of node `m` to a request; None of a node of another vendor."""
        info = self.state.node_info[m]
        if info.vendor_id != MELLANOX:
            return None
        status, data = int(Status.OK), mad[DATA_AT:]
        if mad[3] != Method.GET:
            status = Status.BAD_METHOD
        elif (attribute := START.unpack_from(mad)[7]) == PerfId.CLASS_PORT_INFO:
            data = ClassPortInfo(resp_time_value=RESPONSE_TIME).encode().ljust(256 - DATA_AT, b"\0")
        elif attribute != GENERAL_INFO:
            status = Status.BAD_ATTRIBUTE
        else:
            general = GeneralInfo(
                hw_revision=info.revision & 0xFFFF,
                device_id=info.device_id,
                uptime_s=now_ps // PS_PER_S & 0xFFFFFFFF,
            )
            data = general.encode().ljust(256 - DATA_AT, b"\0")
        return b"".join((mad[:3], b"\x81", int(status).to_bytes(2, "big"), mad[6:DATA_AT], data))
