"""Rules about NCCL's variables: which adapters they choose, what they leave switched off, values out of range."""

from __future__ import annotations

from collections.abc import Iterator
from ipaddress import ip_interface

from fabrictwin.base.whole_numbers import whole_or_none
from fabrictwin.configuration.lint.findings import Finding, Severity
from fabrictwin.configuration.model.cluster import Configuration
from fabrictwin.configuration.model.hosts import Host

_LEFT_OVER = {  # of NCCL's debugging group: what each costs
    "NCCL_IB_DISABLE": ("1", "error", "traffic goes over TCP sockets"),
    "NCCL_P2P_DISABLE": ("1", "error", "GPUs of a host do not use NVLink"),
    "NCCL_SHM_DISABLE": ("1", "warning", "ranks of a host go over the network"),
    "NCCL_NVLS_ENABLE": ("0", "warning", "NVSwitch does not reduce"),
    "NCCL_NET_GDR_LEVEL": ("LOC", "error", "GPUDirect is off"),  # 0 is LOC, too
    "NCCL_NET_GDR_READ": ("0", "warning", "sends go through host memory"),
}
_FIXED = ("NCCL_ALGO", "NCCL_PROTO", "NCCL_MIN_NCHANNELS", "NCCL_MAX_NCHANNELS")


_RANGES = {  # least, least that is enough, most; what less than enough does (InfiniBand 9.7, NCCL user guide)
    "NCCL_IB_TIMEOUT": (0, 14, 31, "a queue pair gives up before a link that flaps is back"),
    "NCCL_IB_RETRY_CNT": (0, 3, 7, "one lost packet or short flap ends the job"),
    "NCCL_IB_SL": (0, 0, 15, ""),
    "NCCL_IB_TC": (0, 0, 255, ""),
    "NCCL_IB_QPS_PER_CONNECTION": (1, 1, 128, ""),
}


def _found(
    host: Host, rule: str, *, got: str, expected: str, effect: str, severity: Severity = "error"
) -> Finding:
    return Finding(rule, severity, host.name, got, expected, effect, host.file)


def _ranges(host: Host) -> Iterator[Finding]:
    for name, (least, enough, most, effect) in _RANGES.items():
        text = host.nccl.get(name)
        if text is None:
            continue
        value = whole_or_none(text.strip(), least=least, most=most)
        if value is None:
            yield _found(
                host,
                "nccl-range",
                got=f"{name}={text[:20]}",
                expected=f"{least} to {most}",
                effect="verbs refuses it, or the adapter takes other bits of it",
            )
        elif value < enough:
            yield _found(
                host,
                name.lower().replace("_", "-"),
                got=f"{name}={value}",
                expected=f"at least {enough}",
                effect=effect,
                severity="warning",
            )


def _family(host: Host) -> Iterator[Finding]:
    family = host.nccl.get("NCCL_IB_ADDR_FAMILY", "").strip()
    ours = [a.link.address for a in host.adapters.values() if a.link.technology == "ethernet" and a.link.address]
    versions = set()
    for address in ours:
        try:
            versions.add(ip_interface(address).version)
        except ValueError:
            continue
    wanted = {"AF_INET": 4, "AF_INET6": 6}.get(family)
    if wanted is not None and versions and wanted not in versions:
        yield _found(
            host,
            "address-family",
            got=f"NCCL_IB_ADDR_FAMILY={family}, and adapters with addresses of the other family alone",
            expected="the family of the adapters' addresses",
            effect="link-local GIDs are taken: connections between subnets time out",
        )


def nccl(configuration: Configuration) -> Iterator[Finding]:
    """NCCL's variables choose the right adapters, and none of its debugging is left."""
    for host in configuration.hosts.values():
        said = host.nccl
        for name, (value, severity, effect) in _LEFT_OVER.items():
            if said.get(name, "").strip() in (value, "0" if value == "LOC" else value):
                yield _found(
                    host,
                    name.lower().replace("_", "-"),
                    got=f"{name}={value}",
                    expected="nothing said",
                    effect=effect,
                    severity="error" if severity == "error" else "warning",
                )
        for name in _FIXED:
            if name in said:
                yield _found(
                    host,
                    "nccl-fixed",
                    got=f"{name}={said[name][:30]}",
                    expected="nothing said",
                    effect="NCCL no longer chooses by size and topology",
                    severity="warning",
                )
        yield from _ranges(host)
        yield from _family(host)
        if "NCCL_IB_GID_INDEX" in said:
            index = said["NCCL_IB_GID_INDEX"]
            low = index.strip() in ("0", "1", "2")
            yield _found(
                host,
                "gid-index",
                got=f"NCCL_IB_GID_INDEX={index[:10]}",
                expected="nothing said (2.21 and later choose RoCE v2 by family)",
                effect="that GID is link-local or of RoCE v1: connections time out"
                if low
                else "the index may differ from host to host",
                severity="error" if low else "warning",
            )
        yield from _adapters(host)
        yield from _interfaces(host)


def _adapters(host: Host) -> Iterator[Finding]:
    text = host.nccl.get("NCCL_IB_HCA")
    if text is None:
        return
    names = [part.partition(":")[0] for part in text.lstrip("^=").split(",") if part]
    known = {adapter.device for adapter in host.adapters.values() if adapter.device}
    if text.startswith("^"):
        return
    if not text.startswith("=") and any(
        other != name and other.startswith(name) for name in names for other in known
    ):
        yield _found(
            host,
            "hca-prefix",
            got=f"NCCL_IB_HCA={text[:40]}",
            expected="an exact match, beginning with =",
            effect="mlx5_1 also takes mlx5_10 and mlx5_11",
            severity="warning",
        )
    unknown = [name for name in names if known and not any(device.startswith(name) for device in known)]
    if unknown:
        yield _found(
            host,
            "hca-unknown",
            got=f"NCCL_IB_HCA names {', '.join(unknown[:3])}",
            expected="adapters that are there",
            effect="NCCL falls back to fewer adapters or to sockets",
        )
    elif text.startswith("=") and known - set(names):
        yield _found(
            host,
            "hca-missing",
            got=f"NCCL_IB_HCA leaves out {', '.join(sorted(known - set(names))[:3])}",
            expected="all compute adapters",
            effect="rails are not used",
            severity="warning",
        )


def _interfaces(host: Host) -> Iterator[Finding]:
    text = host.nccl.get("NCCL_SOCKET_IFNAME")
    if text is None:
        return
    names, said = text.lstrip("^=").split(","), f"NCCL_SOCKET_IFNAME={text[:40]}"
    if text.startswith("^") and "lo" not in names:
        effect = "lo may be chosen: ranks of other hosts are not reached"
        yield _found(
            host, "socket-interface", got=said, expected="^docker0,lo or a name", effect=effect, severity="warning"
        )
    if not text.startswith("^") and any(name.startswith(("lo", "docker", "virbr")) for name in names):
        yield _found(
            host, "socket-interface", got=said, expected="the management network", effect="bootstrap hangs"
        )
