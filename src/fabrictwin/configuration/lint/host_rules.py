"""Rules about a host: limits, modules, services, containers, the kernel, and hosts that differ."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator

from fabrictwin.base.units import parse_size
from fabrictwin.configuration.lint.findings import Finding, Severity
from fabrictwin.configuration.model.cluster import Configuration
from fabrictwin.configuration.model.hosts import Host

ENOUGH_FILES = 65_536
ENOUGH_SHM = 1 << 30


def _found(
    host: Host, rule: str, *, got: str, expected: str, effect: str, severity: Severity = "error"
) -> Finding:
    return Finding(rule, severity, host.name, got, expected, effect, host.file)


def limits(configuration: Configuration) -> Iterator[Finding]:
    """Verbs may lock memory, and open a socket for each peer."""
    for host in configuration.hosts.values():
        if not host.kernel.limits:
            continue
        locked = {key: value for key, value in host.kernel.limits.items() if key.endswith(" memlock")}
        if not locked:
            yield _found(
                host,
                "memlock-missing",
                got="no limit of memlock",
                expected="unlimited",
                effect="registering memory fails beyond the default of a few megabytes",
            )
        for key, value in locked.items():
            if value not in ("unlimited", "infinity", "-1"):
                yield _found(
                    host,
                    "memlock-limited",
                    got=f"{key} {value}",
                    expected="unlimited",
                    effect="ibv_reg_mr and ibv_create_qp fail",
                )
        for key, value in host.kernel.limits.items():
            if key.endswith(" nofile") and value.isdecimal() and len(value) < 12 and int(value) < ENOUGH_FILES:
                yield _found(
                    host,
                    "nofile-small",
                    got=f"{key} {value}",
                    expected=f"at least {ENOUGH_FILES}",
                    effect="large jobs run out of sockets",
                    severity="warning",
                )


def modules(configuration: Configuration) -> Iterator[Finding]:
    """The modules of GPUDirect and of verbs are loaded."""
    for host in configuration.hosts.values():
        gpus = "nvidia-persistenced" in host.services or any("--gpus" in arg for arg in host.container)
        if host.kernel.modules and gpus and not {"nvidia_peermem", "nv_peer_mem"} & set(host.kernel.modules):
            yield _found(
                host,
                "peermem-missing",
                got="GPUs and no nvidia_peermem",
                expected="the module",
                effect="GPUDirect is off unless DMA-BUF is there: data goes through host memory",
            )
        wanted = {"mlx5_ib", "mlx4_ib", "irdma", "efa", "bnxt_re", "rdma_rxe", "siw"}
        if host.kernel.modules and not wanted & set(host.kernel.modules):
            yield _found(
                host,
                "verbs-module-missing",
                got="no module of verbs",
                expected="mlx5_ib",
                effect="there are no RDMA devices",
                severity="warning",
            )
        for name, options in host.kernel.module_options.items():
            if name == "nvidia" and "NVreg_EnablePCIeRelaxedOrderingMode=0" in options:
                yield _found(
                    host,
                    "relaxed-ordering-off",
                    got=options[:60],
                    expected="the default",
                    effect="PCIe writes of GPUs wait for each other",
                    severity="warning",
                )
    yield from _services(configuration)


def _services(configuration: Configuration) -> Iterator[Finding]:
    for host in configuration.hosts.values():
        rules: tuple[tuple[str, bool, str, Severity], ...] = (
            ("nvidia-fabricmanager", False, "CUDA does not start on hosts with NVSwitches", "error"),
            ("irqbalance", True, "interrupts wander from the cores near the adapter", "warning"),
            ("fabric-adapters", False, "the adapters' settings are gone after a reboot", "error"),
            ("lldpd", False, "the switch does not see who is there", "warning"),
        )
        for name, wrong, effect, severity in rules:
            if host.services.get(name) is wrong:
                yield _found(
                    host,
                    f"service-{name}",
                    got="on" if wrong else "off",
                    expected="off" if wrong else "on",
                    effect=effect,
                    severity=severity,
                )
    managers = [host.name for host in configuration.hosts.values() if host.services.get("opensm")]
    if len(managers) > 2:
        yield Finding(
            "opensm-everywhere",
            "warning",
            f"{len(managers)} hosts",
            "opensm on each",
            "one or two managers",
            "managers take over from each other",
        )


def kernel(configuration: Configuration) -> Iterator[Finding]:
    """Kernel arguments and sysctls do not stand in the way."""
    for host in configuration.hosts.values():
        arguments = set(host.kernel.kernel_arguments)
        if arguments & {"intel_iommu=on", "amd_iommu=on", "iommu=force"} and "iommu=pt" not in arguments:
            yield _found(
                host,
                "iommu-on",
                got="the IOMMU on without iommu=pt",
                expected="iommu=pt, or off",
                effect="peer-to-peer traffic is translated: slow or hung",
            )
        for name in host.kernel.sysctl:
            value = host.kernel.sysctl[name]
            if re.fullmatch(r"net\.ipv4\.conf\.\w+\.rp_filter", name) and value == "1" and len(host.adapters) != 1:
                yield _found(
                    host,
                    "rp-filter-strict",
                    got=f"{name} = 1",
                    expected="2 or 0",
                    effect="answers that come in by another rail are dropped",
                )
            if name == "kernel.numa_balancing" and value == "1":
                yield _found(
                    host,
                    "numa-balancing",
                    got=f"{name} = 1",
                    expected="0",
                    effect="pages that adapters use are moved",
                    severity="warning",
                )
        if host.kernel.sysctl.get("net.ipv4.conf.all.arp_ignore") == "0":
            yield _found(
                host,
                "arp-flux",
                got="arp_ignore = 0",
                expected="1",
                effect="several rails answer for one address",
                severity="warning",
            )


def containers(configuration: Configuration) -> Iterator[Finding]:
    """A container sees the devices, may lock memory and has room for NCCL's buffers."""
    for host in configuration.hosts.values():
        if not host.container:
            continue
        text = " ".join(host.container)
        privileged = "--privileged" in text
        if "/dev/infiniband" not in text and not privileged:
            yield _found(
                host,
                "container-devices",
                got="no /dev/infiniband",
                expected="--device=/dev/infiniband",
                effect="NCCL finds no device and takes sockets",
            )
        if not re.search(r"--ulimit[ =]memlock=-1", text):
            yield _found(
                host,
                "container-memlock",
                got="no unlimited memlock",
                expected="--ulimit memlock=-1:-1",
                effect="registering memory fails",
            )
        if "--ipc=host" not in text and "--ipc host" not in text:
            yield from _shared_memory(host, text)
        if not re.search(r"--net(work)?[ =]host", text) and not privileged:
            yield _found(
                host,
                "container-network",
                got="a network namespace of its own",
                expected="--network=host",
                effect="the adapters' RoCE GIDs are not there",
                severity="warning",
            )


def _shared_memory(host: Host, text: str) -> Iterator[Finding]:
    found = re.search(r"--shm-size[ =](\d{1,9}) ?([kKmMgGtT]?)[bB]?", text)
    unit = {"": "B", "k": "KiB", "m": "MiB", "g": "GiB", "t": "TiB"}
    size = parse_size(f"{found[1]} {unit[found[2].lower()]}") if found else 64 << 20
    if size < ENOUGH_SHM:
        yield _found(
            host,
            "container-shm",
            got=f"{size >> 20} MiB of shared memory",
            expected="at least 1 GiB",
            effect="NCCL cannot create its shared memory segments",
        )


def differing(configuration: Configuration) -> Iterator[Finding]:
    """Hosts of a cluster are alike in what must be alike."""
    hosts = list(configuration.hosts.values())
    if len(hosts) < 3:
        return
    told: dict[str, Callable[[Host], object]] = {
        "PFC": lambda host: sorted(
            {tuple(sorted(a.qos.pfc)) for a in host.adapters.values() if a.qos.pfc is not None}
        ),
        "DSCP map": lambda host: sorted(
            {
                tuple(sorted(a.qos.dscp_to_priority.items()))
                for a in host.adapters.values()
                if a.qos.dscp_to_priority
            }
        ),
        "trust": lambda host: sorted({a.qos.trust for a in host.adapters.values() if a.qos.trust is not None}),
        "MTU": lambda host: sorted(
            {a.link.mtu_bytes for a in host.adapters.values() if a.link.mtu_bytes is not None}
        ),
        "RoCE mode": lambda host: sorted(
            {a.roce.roce_mode for a in host.adapters.values() if a.roce.roce_mode is not None}
        ),
        "NCCL's variables": lambda host: sorted(host.nccl.items()),
    }
    for name, of in told.items():
        seen = Counter(repr(of(host)) for host in hosts)
        usual, count = seen.most_common(1)[0]
        if count < len(hosts) and count > len(hosts) // 2:
            for host in hosts:
                if repr(of(host)) != usual:
                    yield _found(
                        host,
                        "host-differs",
                        got=f"{name} {of(host)!s:.80}",
                        expected=f"{usual[:80]} as {count} of {len(hosts)} hosts have",
                        effect="collectives go at the pace of the host that differs",
                    )
