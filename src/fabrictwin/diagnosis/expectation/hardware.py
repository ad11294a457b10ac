"""Which hardware files show: GPU, hosts, adapters, fabric; and the catalog's host that fits it."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace

from fabrictwin import catalog
from fabrictwin.base.errors import ConfigError, did_you_mean
from fabrictwin.base.records import record
from fabrictwin.diagnosis.evidence import Evidence

# what nvidia-smi and CUDA call GPUs that the catalog does not have, some of them much like those that it has
_OTHERS = r"A100.*PCI.*|H[1-8]00.*NVL|H800.*PCI|A800|A30|L40|V100|RTX|GeForce|GH200"
SWITCHES = {("infiniband", 200): "qm8700", ("infiniband", 400): "qm9700", ("infiniband", 800): "q3400"}
ETHERNET_SWITCH = "spectrum-4"
PART = 0.45  # sure of a host of the catalog where fewer GPUs are seen than it has


@record
class Hardware:
    """Hosts of one type of the catalog on one fabric. `confidence`: how sure it is that files show it."""

    host: str
    hosts: int = 1
    fabric: str = "infiniband"
    gpus_per_host: int = 0  # in use; 0 is all
    release: str = ""
    settings: tuple[tuple[str, str], ...] = ()
    confidence: float = 0.9

    def __post_init__(self) -> None:
        known = catalog.names("host")
        if self.host not in known:
            raise ConfigError(
                f"got {self.host!r}, which is no host of the catalog{did_you_mean(self.host, known)}",
                key="hardware",
            )
        if self.fabric not in ("infiniband", "ethernet"):
            raise ConfigError(f"got {self.fabric!r}, expected infiniband or ethernet", key="fabric")

    @classmethod
    def stated(cls, name: str, hosts: int, fabric: str, *, gpus_per_host: int = 0, release: str = "") -> Hardware:
        """Return hardware that somebody names, for sure. Raises ConfigError, for an unknown release too."""
        from fabrictwin.nccl.settings.version import version

        if release:  # a log's may be one that the twin does not know; a stated one may not
            version(release)
        return cls(name, hosts, fabric, gpus_per_host=gpus_per_host, release=release, confidence=1.0)

    @property
    def gpus(self) -> int:
        """GPUs of a host that take part."""
        return self.gpus_per_host or catalog.host(self.host).nodes.gpu

    def cluster(self) -> dict[str, object]:
        """The cluster's section of a spec."""
        rate = _rail_gbps(self.host)
        tall = self.hosts > 32
        switch = ETHERNET_SWITCH if self.fabric == "ethernet" else SWITCHES.get(("infiniband", rate), "qm9700")
        kind: dict[str, object] = {"kind": "single-switch"} if self.hosts == 1 else {"kind": "rail-optimised"}
        if (self.hosts > 1 and tall) or catalog.host(self.host).trays > 1:
            kind = {"kind": "fat-tree"}
        return {
            "hosts": {"type": self.host, "count": self.hosts},
            "network": {"technology": self.fabric, "topology": kind, "switch": switch},
        }


def _rail_gbps(host: str) -> int:
    return round(catalog.nic(catalog.host(host).nics[0].type).port_rate.value / 1e9)


def recognised(evidence: Evidence) -> Hardware | None:
    """The hardware that files show; None where they do not name a GPU of the catalog."""
    names = [fact.text for fact in evidence.of("bench.gpu", "smi.gpu", "topo.gpu-model")]
    gpu = gpu_of(names[0]) if names else ""
    efa = any("efa" in fact.text for fact in evidence.of("nccl.ofi-provider", "nccl.network"))
    host = host_of(gpu, efa=efa)
    if host is None:
        return None
    devices = Counter(fact.subject.host for fact in evidence.of("bench.gpu"))
    placed = evidence.first("nccl.placed")
    hosts = len(devices) or 1
    used = max(devices.values(), default=0)
    if placed is not None:
        hosts, used = max(hosts, int(placed.parts[1] or 1)), int(placed.parts[2] or 0)
    row = evidence.first("bench.row")
    if row is not None and used and int(row.parts[1] or 0) > hosts * used:
        hosts = -(-int(row.parts[1] or 0) // used)
    confidence = 0.8
    fabric, seen = _fabric(evidence)
    if hosts > 1 and not seen:
        confidence = 0.55
    rates = {
        int(fact.parts[0] or 0) // max(int(fact.parts[1] or 1), 1) // 1000
        for fact in evidence.of("nccl.hca-speed")
    }
    if hosts > 1 and rates and max(rates) * 1.5 < _rail_gbps(host):
        confidence = 0.3  # adapters of another generation than the catalog's host has
    here = catalog.host(host).nodes.gpu
    listed = {len(fact.parts) for fact in evidence.of("nccl.hcas") if fact.parts and fact.parts != ("",)}
    if 0 < used < here and not any(one >= len(catalog.host(host).nics) for one in listed):
        confidence = min(confidence, PART)  # of a machine that may have no more GPUs than these, and no NVSwitch
    release = evidence.first("nccl.version")
    given = tuple((str(f.parts[0]), str(f.parts[1])) for f in evidence.of("nccl.setting"))
    if used > here:
        return None
    return replace(
        Hardware(host, hosts, fabric if not efa else "ethernet"),
        gpus_per_host=used if 0 < used < here else 0,
        release=release.text if release is not None else "",
        settings=given,
        confidence=confidence,
    )


def gpu_of(name: str) -> str:
    """Return the catalog's GPU of a product name, the one that matches most of it; empty where it has none."""
    patterns = {"": _OTHERS} | {gpu: catalog.gpu(gpu).product_names for gpu in catalog.names("gpu")}
    found = {
        gpu: max(len(one[0]) for one in matches)
        for gpu, pattern in patterns.items()
        if pattern and (matches := list(re.finditer(pattern, name, re.IGNORECASE)))
    }
    return max(found, key=found.__getitem__, default="")


def host_of(gpu: str, *, efa: bool) -> str | None:
    """Return the catalog's first host with a GPU, with EFA adapters or without; None where no host has it."""
    hosts = [name for name in catalog.names("host") if catalog.host(name).gpu == gpu]
    with_efa = [
        name for name in hosts if any(catalog.nic(nic.type).transport == "srd" for nic in catalog.host(name).nics)
    ]
    without = [name for name in hosts if name not in with_efa]
    first, second = (with_efa, without) if efa else (without, with_efa)
    return next(iter(first + second), None)


def _fabric(evidence: Evidence) -> tuple[str, bool]:
    """The fabric's technology, and whether a file says so."""
    for fact in evidence.of("nccl.hcas"):
        if fact.parts:
            roce = sum(str(name).endswith("RoCE") for name in fact.parts)
            return ("ethernet" if roce * 2 > len(fact.parts) else "infiniband"), True
    for fact in evidence.of("hca.layer"):
        return ("ethernet" if "ethernet" in fact.text.lower() else "infiniband"), True
    return "infiniband", False
