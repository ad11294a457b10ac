"""Rules about who is served when: traffic classes of adapters, weights of switches' queues."""

from __future__ import annotations

from collections.abc import Iterator

from fabrictwin.configuration.lint.findings import Finding, Severity
from fabrictwin.configuration.model.cluster import Configuration
from fabrictwin.configuration.model.hosts import Adapter, Host


def adapters(configuration: Configuration) -> Iterator[Finding]:
    """RoCE's class is its own and weighted, CNPs' class is served first."""
    for host in configuration.hosts.values():
        for adapter in host.adapters.values():
            if adapter.link.technology == "ethernet":
                yield from _classes(host, adapter)
                yield from _cnps(host, adapter)


def _found(
    host: Host,
    adapter: Adapter,
    rule: str,
    *,
    got: str,
    expected: str,
    effect: str,
    severity: Severity = "warning",
) -> Finding:
    where = f"{host.name}/{adapter.device or adapter.netdev}"
    return Finding(rule, severity, where, got, expected, effect, host.file)


def _classes(host: Host, adapter: Adapter) -> Iterator[Finding]:
    qos = adapter.qos
    if len(qos.priority_to_tc) == 8:
        for priority in sorted(qos.pfc or ()):
            tc = qos.priority_to_tc[priority]
            shared = [p for p in range(8) if p not in (qos.pfc or ()) and qos.priority_to_tc[p] == tc]
            if shared:
                yield _found(
                    host,
                    adapter,
                    "tc-shared",
                    got=f"priority {priority} in traffic class {tc} with {shared}",
                    expected="a class of its own",
                    effect="a pause of RoCE stops the rest with it, and RoCE shares its bandwidth",
                )
            if tc < len(qos.scheduler) and qos.scheduler[tc] == "strict":
                yield _found(
                    host,
                    adapter,
                    "adapter-roce-strict",
                    got=f"priority {priority} in strict traffic class {tc}",
                    expected="ets with a weight",
                    effect="all other traffic of the host starves under load",
                )
    if qos.scheduler and len(qos.weights) == len(qos.scheduler):
        weights = [weight for kind, weight in zip(qos.scheduler, qos.weights, strict=True) if kind == "ets"]
        if weights and sum(weights) != 100:
            yield _found(
                host,
                adapter,
                "bandwidth-sum",
                got=f"weights {', '.join(map(str, weights))} of ets classes, {sum(weights)} in all",
                expected="100 in all",
                effect="mlnx_qos refuses them",
                severity="error",
            )


def _cnps(host: Host, adapter: Adapter) -> Iterator[Finding]:
    qos, priority = adapter.qos, adapter.roce.cnp_priority
    dscp = adapter.roce.cnp_dscp
    if priority is not None and len(qos.priority_to_tc) == 8:
        tc = qos.priority_to_tc[priority]
        if tc < len(qos.scheduler) and qos.scheduler[tc] != "strict":
            yield _found(
                host,
                adapter,
                "adapter-cnp-not-strict",
                got=f"CNPs (priority {priority}) in traffic class {tc}, served by {qos.scheduler[tc]}",
                expected="strict",
                effect="CNPs come late, and congestion control overshoots",
            )
    if priority is not None and dscp is not None and qos.trust == "dscp" and qos.dscp_to_priority:
        mapped = qos.dscp_to_priority.get(dscp, dscp >> 3)
        if mapped != priority:
            yield _found(
                host,
                adapter,
                "cnp-priority-differs",
                got=f"CNPs of priority {priority} and of DSCP {dscp}, which is priority {mapped}",
                expected="one priority",
                effect="CNPs are in one class on the way out and in another on the way in",
            )


def switches(configuration: Configuration) -> Iterator[Finding]:
    """Percentages of NVUE's queues are of one whole."""
    for switch in configuration.switches.values():
        port = next((port for port in switch.ports.values() if port.qos.queues), None)
        if port is None or switch.box.os != "nvue":
            continue
        weights = [
            queue.weight for queue in port.qos.queues.values() if queue.scheduler == "dwrr" and queue.weight
        ]
        if sum(weights) > 100:
            yield Finding(
                "bandwidth-sum",
                "error",
                switch.name,
                f"bw-percent {', '.join(map(str, weights))}, {sum(weights)} in all",
                "at most 100 in all",
                "NVUE refuses the configuration",
                switch.file,
            )
