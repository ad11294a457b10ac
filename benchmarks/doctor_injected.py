"""Faults injected through the twin: how many the doctor finds, and whether healthy clusters raise alarms.

    python benchmarks/doctor_injected.py [--platforms N] [--releases N] [--healthy N] [--wrong]

Each case is a spec with one fault (`faults:` of hosts and links) or one setting, run by the twin's nccl-tests with
its log on, and by its ibstat where a link is down. What these print goes to the doctor as files would. Renderings
come from `nccl/log` and `tools/`, readings from `diagnosis/readers`: they share no formats. A case counts as found
when one of the ids that name its cause is among the first three findings or their consequences.
"""

from __future__ import annotations

import argparse
import io
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "src"))

import fabrictwin as ft
from fabrictwin.base.errors import FabrictwinError, SimulatedError
from fabrictwin.diagnosis.diagnose import Diagnosis, judged
from fabrictwin.diagnosis.finding import Severity
from fabrictwin.diagnosis.readers.reading import read_text

PLATFORMS = (
    ("dgx-a100", "infiniband", "qm8700"),
    ("dgx-h100", "infiniband", "qm9700"),
    ("dgx-h200", "ethernet", "spectrum-4"),
    ("dgx-b200", "infiniband", "qm9700"),
)
RELEASES = ("2.18.6", "2.21.5", "2.23.4", "2.26.5", "2.28.9")
Platform = tuple[str, str, str]
BOTH = ("infiniband", "ethernet")


@dataclass(frozen=True)
class Injected:
    """A fault of the spec or a setting, the ids that name it, and where it can occur."""

    name: str
    right: tuple[str, ...]
    faults: tuple[dict[str, Any], ...] = ()
    environment: dict[str, str] = field(default_factory=dict)
    fabrics: tuple[str, ...] = BOTH
    ibstat: bool = False  # the file that shows it
    needs: str = ""  # nvls: only where GPUs have it


def host(cause: str, **rest: str) -> dict[str, Any]:
    """A fault of one host."""
    return {"host": "host-1", "cause": cause, **rest}


def setting(name: str, value: str, right: str = "setting-forced", *, needs: str = "") -> Injected:
    """A setting left over in the environment."""
    return Injected(f"{name}={value}", (right, "setting-forced"), environment={name: value}, needs=needs)


_GID = ("gid-unreachable", "transport-retry")
_ACS = ("acs-redirects", "bandwidth-low", "gdr-far", "gdr-unused")
CASES = (
    Injected("no peer memory module", ("gdr-off",), (host("no-gpudirect-module"),)),
    Injected("no peer memory module anywhere", ("gdr-off",), ({"host": "*", "cause": "no-gpudirect-module"},)),
    Injected("locked memory", ("locked-memory",), (host("locked-memory"),)),
    Injected("no RDMA devices on one host", ("socket-fallback", "network-differs"), (host("no-rdma-devices"),)),
    Injected("no RDMA devices anywhere", ("socket-fallback",), ({"host": "*", "cause": "no-rdma-devices"},)),
    Injected(
        "link-local GID", ("gid-unreachable", "transport-retry"), (host("wrong-gid"),), fabrics=("ethernet",)
    ),
    Injected(
        "RoCE v1 GID",
        ("gid-unreachable", "transport-retry"),
        (host("wrong-gid", gid="roce-v1"),),
        fabrics=("ethernet",),
    ),
    Injected("interface filter", ("no-socket-interface",), (host("interface-filter"),)),
    Injected(
        "interface filter of another name",
        ("no-socket-interface",),
        (host("interface-filter", interfaces="eth9"),),
    ),
    Injected("dead link", ("rails-missing", "port-down"), ({"link": "host-1/{hca}", "rate": "0 Gb/s"},)),
    Injected("dead link in ibstat", ("port-down",), ({"link": "host-1/{hca}", "rate": "0 Gb/s"},), ibstat=True),
    Injected(
        "PCIe access control",
        ("acs-redirects", "bandwidth-low", "gdr-far", "gdr-unused"),
        ({"host": "*", "cause": "acs"},),
    ),
    setting("NCCL_IB_DISABLE", "1", "socket-fallback"),
    setting("NCCL_NET", "Socket", "socket-fallback"),
    setting("NCCL_P2P_DISABLE", "1", "p2p-off"),
    setting("NCCL_P2P_LEVEL", "LOC", "p2p-off"),
    setting("NCCL_NET_GDR_LEVEL", "LOC", "gdr-far"),
    setting("NCCL_IB_HCA", "=mlx5_0", "rails-missing"),
    setting("NCCL_MAX_NCHANNELS", "1", "channels-few"),
    setting("NCCL_MAX_NCHANNELS", "4", "channels-few"),
    setting("NCCL_NVLS_ENABLE", "0", "nvls-off", needs="nvls"),
    setting("NCCL_ALGO", "Tree"),
    setting("NCCL_ALGO", "Ring"),
    setting("NCCL_PROTO", "LL"),
    setting("NCCL_NTHREADS", "64"),
    setting("NCCL_BUFFSIZE", "65536"),
    setting("NCCL_PXN_DISABLE", "1"),
    setting("NCCL_SOCKET_IFNAME", "lo", "no-socket-interface"),
    setting("NCCL_IB_GID_INDEX", "0", "gid-unreachable"),
    setting("NCCL_IB_TIMEOUT", "5"),
)


def spec(platform: Platform, faults: tuple[dict[str, Any], ...], hosts: int = 2) -> dict[str, Any]:
    """A spec of a platform with faults; `{hca}` in a name is its first adapter."""
    kind, fabric, switch = platform
    from fabrictwin import catalog

    hca = catalog.host(kind).nics[0].hca
    network = {
        "technology": fabric,
        "topology": {"kind": "rail-optimised" if hosts > 1 else "single-switch"},
        "switch": switch,
    }
    placed = [
        {key: v.replace("{hca}", hca) if isinstance(v, str) else v for key, v in one.items()} for one in faults
    ]
    return {
        "schema": 1,
        "name": "injected",
        "cluster": {"hosts": {"type": kind, "count": hosts}, "network": network},
        "faults": placed,
    }


def printed(data: dict[str, Any], release: str, environment: dict[str, str]) -> str:
    """What nccl-tests and NCCL print there, to the end or to the error that ends them."""
    out = io.StringIO()
    asked = {
        "NCCL_DEBUG": "INFO",
        "NCCL_DEBUG_SUBSYS": "INIT,ENV,NET,GRAPH,BOOTSTRAP,TUNING,P2P,SHM",
        **environment,
    }
    # NCCL's warning stands in the output where it does not come up
    with suppress(SimulatedError):
        ft.nccl_tests(
            "all_reduce_perf", data, minbytes="64M", maxbytes="1G", stepfactor=4, check=0,
            nccl_version=release, environment=asked, out=out,
        )  # fmt: skip
    return out.getvalue()


def cases(platforms: int, releases: int) -> Iterator[tuple[Injected, Platform, str]]:
    """Every case on every platform and release where it can occur."""
    for injected in CASES:
        for platform in PLATFORMS[:platforms]:
            for release in RELEASES[:releases]:
                if platform[1] not in injected.fabrics or (injected.needs == "nvls" and "a100" in platform[0]):
                    continue
                if "GID_INDEX" in injected.name and (platform[1] != "ethernet" or release < "2.21"):
                    continue
                yield injected, platform, release


def seen(injected: Injected, platform: Platform, release: str) -> Diagnosis:
    """The doctor's answer to what a case prints."""
    data = spec(platform, injected.faults)
    if injected.ibstat:
        return judged(read_text(_ibstat(data), name="ibstat.txt", host="host-1"))
    return judged(read_text(printed(data, release, injected.environment), name="nccl.log"))


def _ibstat(data: dict[str, Any]) -> str:
    from tempfile import TemporaryDirectory

    import yaml

    from fabrictwin.tools.rdma.rdma_tools import ibstat, open_world, pick

    with TemporaryDirectory() as folder:
        file = Path(folder) / "spec.yaml"
        file.write_text(yaml.safe_dump(data), encoding="utf-8")
        return ibstat(pick(open_world(file), "host-1", None))


def main() -> int:
    """Inject, diagnose, count."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--platforms", type=int, default=4)
    parser.add_argument("--releases", type=int, default=5)
    parser.add_argument("--healthy", type=int, default=200)
    parser.add_argument("--wrong", action="store_true", help="print what was missed")
    arguments = parser.parse_args()
    counts: Counter[str] = Counter()
    missed: Counter[str] = Counter()
    for injected, platform, release in cases(arguments.platforms, arguments.releases):
        try:
            found = seen(injected, platform, release)
        except FabrictwinError as error:
            counts["refused"] += 1
            if arguments.wrong:
                print(f"refused: {injected.name} on {platform[0]}, {release}: {error}")
            continue
        top = [one.id for one in found.findings[:3]]
        top += [below.id for one in found.findings[:3] for below in one.consequences]
        right = bool(set(top) & set(injected.right))
        counts["found" if right else "missed"] += 1
        if not right:
            missed[injected.name] += 1
            if arguments.wrong:
                print(f"missed: {injected.name} on {platform[0]}, {release}: {found.verdict} {top}", flush=True)
    whole = counts["found"] + counts["missed"]
    print(f"{whole} cases of {len(CASES)} causes: found {counts['found']} ({counts['found'] / max(whole, 1):.1%})")
    print(f"refused by the twin {counts['refused']}; missed: {dict(missed)}")
    _healthy(arguments.healthy, wrong=arguments.wrong)
    return 0


def _healthy(number: int, *, wrong: bool) -> None:
    alarms = done = 0
    sizes = (1, 2, 3, 4)
    for i in range(number):
        platform = PLATFORMS[i % len(PLATFORMS)]
        release = RELEASES[i // len(PLATFORMS) % len(RELEASES)]
        hosts = sizes[i // (len(PLATFORMS) * len(RELEASES)) % len(sizes)]
        log = printed(spec(platform, (), hosts), release, {})
        found = judged(read_text(log, name="nccl.log"))
        done += 1
        bad = [one for one in found.findings if one.severity >= Severity.WARNING]
        if bad:
            alarms += 1
            if wrong:
                print(
                    f"alarm: {platform[0]} x {hosts}, {release}: {[(one.id, one.seen) for one in bad]}", flush=True
                )
    print(f"{done} healthy renderings: {alarms} flagged")


if __name__ == "__main__":
    raise SystemExit(main())
