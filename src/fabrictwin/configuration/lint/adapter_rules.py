"""Rules about a host's adapters: classes, buffers, congestion control, firmware, PCI Express."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from fabrictwin.base.whole_numbers import whole_or_none
from fabrictwin.configuration.lint.findings import Finding
from fabrictwin.configuration.model.cluster import Configuration
from fabrictwin.configuration.model.hosts import Adapter, Host

ROCE_MTU = 4200
IPOIB_MTU = 4092
CONNECTED_MTU = 65520
ENOUGH_RING = 1024
ENOUGH_READS = 44
ROCE_V2 = 2


def _each(configuration: Configuration) -> Iterator[tuple[Host, Adapter]]:
    for host in configuration.hosts.values():
        for adapter in host.adapters.values():
            yield host, adapter


def _found(
    host: Host, adapter: Adapter, rule: str, *, got: str, expected: str, effect: str, **more: Any
) -> Finding:
    where = f"{host.name}/{adapter.device or adapter.netdev}"
    severity = more.pop("severity", "error")
    return Finding(rule, severity, where, got, expected, effect, host.file, **more)


def classes(configuration: Configuration) -> Iterator[Finding]:
    """RoCE's packets get the priority that is paused."""
    for host, adapter in _each(configuration):
        if adapter.link.technology != "ethernet":
            continue
        dev = adapter.netdev
        if adapter.qos.trust == "pcp":
            yield _found(
                host,
                adapter,
                "adapter-trust-pcp",
                got="trust pcp",
                expected="trust dscp",
                effect="untagged packets are all of priority 0, which is lossy",
                fix=f"mlnx_qos -i {dev} --trust dscp",
            )
        if adapter.qos.pfc is not None and not adapter.qos.pfc and adapter.qos.priority_to_buffer:
            yield _found(
                host,
                adapter,
                "adapter-pfc-missing",
                got="PFC on no priority",
                expected="PFC on RoCE's priority",
                effect="the adapter neither pauses nor is paused",
            )
        if adapter.driver.global_pause and adapter.qos.pfc:
            yield _found(
                host,
                adapter,
                "pause-and-pfc",
                got="global pause together with PFC",
                expected="PFC alone",
                effect="the driver turns one of them off",
                fix=f"ethtool -A {dev} rx off tx off",
            )
        yield from _traffic_classes(host, adapter)
        yield from _buffers(host, adapter)


def _traffic_classes(host: Host, adapter: Adapter) -> Iterator[Finding]:
    named = [("traffic_class", adapter.roce.traffic_class), ("rdma_cm's tos", adapter.roce.tos)]
    said = host.nccl.get("NCCL_IB_TC", "")
    if said.isdecimal() and len(said) <= 3:
        named.append(("NCCL_IB_TC", int(said)))
    for name, value in named:
        if value is None or not adapter.qos.dscp_to_priority or not adapter.qos.pfc:
            continue
        dscp = value >> 2
        priority = adapter.qos.dscp_to_priority.get(dscp, dscp >> 3)
        if priority not in adapter.qos.pfc:
            yield _found(
                host,
                adapter,
                "traffic-class-lossy",
                got=f"{name} {value}: DSCP {dscp}, priority {priority}",
                expected=f"a DSCP of priority {', '.join(map(str, sorted(adapter.qos.pfc)))}",
                effect="the data travels in a class that is dropped",
            )
    if said and not said.isdecimal():
        yield _found(
            host,
            adapter,
            "traffic-class-lossy",
            got=f"NCCL_IB_TC {said[:20]}",
            expected="0 to 255",
            effect="NCCL takes its default, class 0",
        )
    if adapter.qos.pfc and host.nccl and "NCCL_IB_TC" not in host.nccl and adapter.roce.traffic_class is None:
        yield _found(
            host,
            adapter,
            "traffic-class-missing",
            got="no NCCL_IB_TC and no traffic class of the adapter",
            expected="the DSCP of RoCE times four",
            effect="NCCL's data has DSCP 0, a class that is dropped",
        )


def _buffers(host: Host, adapter: Adapter) -> Iterator[Finding]:
    for priority in sorted(adapter.qos.pfc or ()) if adapter.qos.priority_to_buffer else ():
        buffer = adapter.qos.priority_to_buffer[priority]
        shared = [
            other
            for other, at in enumerate(adapter.qos.priority_to_buffer)
            if at == buffer and other not in (adapter.qos.pfc or ())
        ]
        if shared:
            yield _found(
                host,
                adapter,
                "buffer-shared",
                got=f"priority {priority} in buffer {buffer} with {shared}",
                expected="a buffer of its own",
                effect="lossy traffic fills it: pauses hit RoCE",
                severity="warning",
            )
        if adapter.qos.buffer_bytes and adapter.qos.buffer_bytes[buffer] == 0:
            yield _found(
                host,
                adapter,
                "buffer-empty",
                got=f"buffer {buffer} of 0 bytes for priority {priority}",
                expected="headroom and a frame",
                effect="the driver refuses it",
            )


def congestion(configuration: Configuration) -> Iterator[Finding]:
    """DCQCN acts on RoCE's priority, and its CNPs are not stopped with it."""
    for host, adapter in _each(configuration):
        for name, priorities in (
            ("roce_np", adapter.roce.ecn_notification),
            ("roce_rp", adapter.roce.ecn_reaction),
        ):
            missing = (adapter.qos.pfc or frozenset()) - (priorities or frozenset())
            if priorities is not None and missing:
                yield _found(
                    host,
                    adapter,
                    "ecn-off",
                    got=f"{name} off on priority {sorted(missing)}",
                    expected="on",
                    effect="marks are not answered: only pauses slow senders down",
                    severity="warning",
                )
        if adapter.roce.cnp_priority is not None and adapter.roce.cnp_priority in (adapter.qos.pfc or ()):
            yield _found(
                host,
                adapter,
                "adapter-cnp-lossless",
                got=f"CNPs in priority {adapter.roce.cnp_priority}, which is paused",
                expected="a priority of their own",
                effect="CNPs are stopped with the data that they are about",
                severity="warning",
            )
        if adapter.roce.roce_mode is not None and adapter.roce.roce_mode != ROCE_V2:
            yield _found(
                host,
                adapter,
                "roce-v1",
                got=f"RoCE mode {adapter.roce.roce_mode}",
                expected="2",
                effect="connections of rdma_cm are not routed, and carry no DSCP",
                fix=f"cma_roce_mode -d {adapter.device} -p 1 -m 2",
            )


def frames(configuration: Configuration) -> Iterator[Finding]:
    """MTU and rings hold what RDMA sends."""
    for host, adapter in _each(configuration):
        if (
            adapter.link.technology == "ethernet"
            and adapter.link.mtu_bytes is not None
            and adapter.link.mtu_bytes < ROCE_MTU
        ):
            yield _found(
                host,
                adapter,
                "mtu-small",
                got=f"MTU {adapter.link.mtu_bytes}",
                expected=f"at least {ROCE_MTU}",
                effect="RDMA falls back to packets of 1024 bytes",
                fix=f"ip link set {adapter.netdev} mtu 9100",
            )
        waits = "bursts over TCP are dropped (rx_out_of_buffer)", "senders over TCP wait"
        rings = ("receive", adapter.driver.ring_rx, waits[0]), ("send", adapter.driver.ring_tx, waits[1])
        for what, ring, effect in rings:
            if ring is not None and ring < ENOUGH_RING:
                yield _found(
                    host,
                    adapter,
                    "ring-small",
                    got=f"a {what} ring of {ring}",
                    expected=f"at least {ENOUGH_RING}",
                    effect=effect,
                    severity="warning",
                )
        if adapter.link.ipoib_mode is not None and adapter.link.mtu_bytes is not None:
            most = IPOIB_MTU if adapter.link.ipoib_mode == "datagram" else CONNECTED_MTU
            if adapter.link.mtu_bytes > most:
                yield _found(
                    host,
                    adapter,
                    "ipoib-mtu",
                    got=f"MTU {adapter.link.mtu_bytes} in {adapter.link.ipoib_mode} mode",
                    expected=f"at most {most}",
                    effect="the interface keeps its old MTU",
                )
            elif adapter.link.mtu_bytes < IPOIB_MTU:
                yield _found(
                    host,
                    adapter,
                    "ipoib-mtu-small",
                    got=f"MTU {adapter.link.mtu_bytes}",
                    expected=f"{most}",
                    effect="IPoIB spends twice the packets",
                    severity="warning",
                )


def firmware(configuration: Configuration) -> Iterator[Finding]:
    """Firmware speaks the right link layer, and relaxes ordering only where it is asked to."""
    wanted = {
        "PCI_WR_ORDERING": ({"per_mkey", "0"}, "error", "control data is overtaken: collectives hang or corrupt"),
        "LLDP_NB_DCBX_P1": ({"FALSE", "False", "0"}, "warning", "the switch's DCBX overrides what is set here"),
        "ROCE_CC_PRIO_MASK_P1": ({"255"}, "warning", "congestion control is off on some priorities"),
    }
    for host, adapter in _each(configuration):
        for name, (good, severity, effect) in wanted.items():
            value = adapter.card.firmware.get(name)
            if value is not None and value not in good:
                yield _found(
                    host,
                    adapter,
                    f"firmware-{name.lower().replace('_', '-')}",
                    got=f"{name}={value[:30]}",
                    expected=sorted(good)[-1],
                    effect=effect,
                    severity=severity,
                )
        reads = whole_or_none(adapter.card.firmware.get("MAX_ACC_OUT_READ", ""), most=255)
        if reads is not None and 0 < reads < ENOUGH_READS:  # 0: the firmware's own
            yield _found(
                host,
                adapter,
                "firmware-max-acc-out-read",
                got=f"MAX_ACC_OUT_READ={reads}",
                expected=f"{ENOUGH_READS} (nccl-tests issue 152: half the bandwidth with less)",
                effect="too few PCIe reads are under way to keep the link busy",
                severity="warning",
            )
        kind = adapter.card.firmware.get("LINK_TYPE_P1")
        right = {"ethernet": ("ETH", "2"), "infiniband": ("IB", "1")}[adapter.link.technology]
        if kind is not None and kind not in right:
            yield _found(
                host,
                adapter,
                "firmware-link-type",
                got=f"LINK_TYPE_P1={kind[:30]}",
                expected=right[0],
                effect="the port does not come up",
            )
        if adapter.card.max_read_request is not None and adapter.card.max_read_request < 4096:
            yield _found(
                host,
                adapter,
                "read-request-small",
                got=f"{adapter.card.max_read_request} bytes",
                expected="4096",
                effect="PCIe reads do not keep the link busy",
                severity="warning",
            )


def access_control(configuration: Configuration) -> Iterator[Finding]:
    """Peers reach each other without the root complex, where a script sets adapters up at all."""
    for host in configuration.hosts.values():
        set_up = [
            a for a in host.adapters.values() if a.qos.pfc is not None or a.card.max_read_request is not None
        ]
        if set_up and not any(adapter.card.acs_disabled for adapter in host.adapters.values()):
            yield Finding(
                "acs-on",
                "warning",
                host.name,
                "nothing that turns ACS off",
                "ACS off on all bridges (on bare metal)",
                "GPUDirect goes up to the root complex and back: a fraction of the bandwidth",
                host.file,
                'setpci -s "$bridge" ECAP_ACS+6.w=0000',
            )
