"""Faults injected through the twin: how many the doctor finds, and whether healthy clusters raise alarms.

    python benchmarks/doctor_injected.py [--platforms N] [--releases N] [--healthy N] [--wrong]

Each case is a spec with one fault (`faults:` of hosts and links) or one setting, run by the twin's nccl-tests with
its log on. What shows in no log is shown by a tool: the real ibstat and iblinkinfo (infiniband-diags) over
`fabrictwin up` where the fabric is InfiniBand, the twin's own ibstat and show_gids. What these print goes to the
doctor as files would. Renderings come from `nccl/log`, `tools/` and real programs, readings from
`diagnosis/readers`: they share no formats. A case counts as found when the FIRST finding has the fault's id, is
about the hosts where the fault is and the adapter that it is at, and, of a setting, its fix names the variable.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "src"))
sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from support.cluster_prints import printed

from fabrictwin import catalog
from fabrictwin.base.errors import FabrictwinError
from fabrictwin.cluster.spec.spec import load_cluster
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
    """A fault of the spec or a setting, the id that names it, its hosts, and where it can occur."""

    name: str
    right: str
    faults: tuple[dict[str, Any], ...] = ()
    environment: dict[str, str] = field(default_factory=dict)
    fabrics: tuple[str, ...] = BOTH
    hosts: frozenset[str] = frozenset({"host-1"})  # none: the finding is about the job
    object: str = ""  # words of the finding's object
    fix: str = ""  # words of its fix
    tool: str = ""  # the tool that shows it, instead of NCCL's log
    needs: str = ""  # nvls: only where GPUs have it


EVERY = frozenset({"host-0", "host-1"})


def host(cause: str, **rest: str) -> dict[str, Any]:
    """A fault of one host."""
    return {"host": "host-1", "cause": cause, **rest}


def setting(name: str, value: str, *, needs: str = "") -> Injected:
    """A setting left over in the environment: the finding has to name the variable."""
    return Injected(
        f"{name}={value}", "setting-forced", environment={name: value}, hosts=EVERY, fix=name, needs=needs
    )


IB = ("infiniband",)
CASES = (
    Injected("no peer memory module", "gdr-off", (host("no-gpudirect-module"),)),
    Injected(
        "no peer memory module anywhere", "gdr-off", ({"host": "*", "cause": "no-gpudirect-module"},), hosts=EVERY
    ),
    Injected("locked memory", "locked-memory", (host("locked-memory"),)),
    Injected("no RDMA devices on one host", "socket-fallback", (host("no-rdma-devices"),)),
    Injected("no RDMA devices anywhere", "socket-fallback", ({"host": "*", "cause": "no-rdma-devices"},),
             hosts=EVERY),
    Injected("link-local GID", "gid-unreachable", (host("wrong-gid"),), fabrics=("ethernet",)),
    Injected("RoCE v1 GID", "gid-unreachable", (host("wrong-gid", gid="roce-v1"),), fabrics=("ethernet",)),
    Injected("link-local GID, by show_gids", "no-roce-v2-gid", (host("wrong-gid"),), fabrics=("ethernet",),
             tool="show_gids"),
    Injected("RoCE v1 GID, by show_gids", "no-roce-v2-gid", (host("wrong-gid", gid="roce-v1"),),
             fabrics=("ethernet",), tool="show_gids"),
    Injected("interface filter", "no-socket-interface", (host("interface-filter"),)),
    Injected(
        "interface filter of another name", "no-socket-interface", (host("interface-filter", interfaces="eth9"),)
    ),
    Injected("dead link, by NCCL's log", "rails-missing", ({"link": "host-1/{hca}", "rate": "0 Gb/s"},)),
    Injected("dead link, by ibstat", "port-down", ({"link": "host-1/{hca}", "rate": "0 Gb/s"},), object="{hca}",
             tool="ibstat"),
    Injected("slow link, by ibstat", "link-slow", ({"link": "host-1/{hca}", "rate": "100 Gb/s"},), object="{hca}",
             tool="ibstat"),
    Injected("slow link, by iblinkinfo", "link-slow", ({"link": "host-1/{hca}", "rate": "100 Gb/s"},),
             fabrics=IB, hosts=frozenset(), object="host-1 {hca}", tool="real iblinkinfo"),
    Injected("dead link, by the real ibstat", "port-down", ({"link": "host-1/{hca}", "rate": "0 Gb/s"},),
             fabrics=IB, tool="real ibstat"),
    Injected("no subnet manager, by the real ibstat", "no-subnet-manager", fabrics=IB,
             tool="real ibstat without a manager"),
    Injected("PCIe access control", "acs-redirects", ({"host": "host-1", "cause": "acs"},)),
    setting("NCCL_IB_DISABLE", "1"),
    setting("NCCL_NET", "Socket"),
    setting("NCCL_P2P_DISABLE", "1"),
    setting("NCCL_P2P_LEVEL", "LOC"),
    setting("NCCL_NET_GDR_LEVEL", "LOC"),
    setting("NCCL_IB_HCA", "=mlx5_0"),
    setting("NCCL_MAX_NCHANNELS", "1"),
    setting("NCCL_MAX_NCHANNELS", "4"),
    setting("NCCL_NVLS_ENABLE", "0", needs="nvls"),
    setting("NCCL_ALGO", "Tree"),
    setting("NCCL_ALGO", "Ring"),
    setting("NCCL_PROTO", "LL"),
    setting("NCCL_NTHREADS", "64"),
    setting("NCCL_BUFFSIZE", "65536"),
    setting("NCCL_PXN_DISABLE", "1"),
    # the job ends before other hosts have written theirs
    replace(setting("NCCL_SOCKET_IFNAME", "lo"), hosts=frozenset()),
    setting("NCCL_IB_GID_INDEX", "0"),
    setting("NCCL_IB_TIMEOUT", "5"),
)  # fmt: skip


def spec(platform: Platform, faults: tuple[dict[str, Any], ...], hosts: int = 2) -> dict[str, Any]:
    """A spec of a platform with faults; `{hca}` in a name is its first adapter."""
    kind, fabric, switch = platform
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


def healthy_environment(data: dict[str, Any], release: str) -> dict[str, str]:
    """Return the variables that a host of this release needs where nothing is wrong."""
    old = int(release.split(".")[1]) < 21 and data["cluster"]["network"]["technology"] == "ethernet"
    return {"NCCL_IB_GID_INDEX": "3"} if old else {}


def cases(platforms: int, releases: int) -> Iterator[tuple[Injected, Platform, str]]:
    """Every case on every platform and release where it can occur."""
    for injected in CASES:
        for platform in PLATFORMS[:platforms]:
            for release in RELEASES[:releases]:
                if platform[1] not in injected.fabrics or (injected.needs == "nvls" and "a100" in platform[0]):
                    continue
                if injected.tool and release != RELEASES[0]:
                    continue  # these tools are not NCCL's
                if "GID_INDEX" in injected.name and (platform[1] != "ethernet" or release < "2.21"):
                    continue
                yield injected, platform, release


def seen(injected: Injected, platform: Platform, release: str) -> Diagnosis:
    """The doctor's answer to what a case prints."""
    data = spec(platform, injected.faults)
    if injected.tool:
        return judged(read_text(_shown(data, injected.tool), name=f"{injected.tool}.txt", host="host-1"))
    environment = healthy_environment(data, release) | injected.environment
    return judged(read_text(printed(data, release, environment), name="nccl.log"))


def _shown(data: dict[str, Any], tool: str) -> str:
    """A tool's output: the real one's over the served fabric where there is one, else the twin's own."""
    from tempfile import TemporaryDirectory

    import yaml

    from fabrictwin.tools.rdma.rdma_tools import ibstat, open_world, pick, show_gids

    with TemporaryDirectory() as folder:
        file = Path(folder) / "spec.yaml"
        file.write_text(yaml.safe_dump(data), encoding="utf-8")
        if tool.startswith("real "):
            return _served(file, tool[5:])
        make = {"ibstat": ibstat, "show_gids": show_gids}[tool]
        return make(pick(open_world(file), "host-1", None))


PRELOAD = "/usr/lib/x86_64-linux-gnu/umad2sim/libumad2sim.so"


def _served(spec_file: Path, command: str) -> str:
    """Output of a program of infiniband-diags on host-1's first adapter, `fabrictwin up` serving the fabric."""
    name, _, manager = command.partition(" without ")
    socket = f"fabrictwin-doctor-{os.getpid()}"
    hca = catalog.host(yaml_kind(spec_file)).nics[0].hca
    serve = [sys.executable, "-m", "fabrictwin", "up", str(spec_file), "--socket", socket]
    environment = os.environ | {
        "PYTHONPATH": str(Path(__file__).parents[1] / "src"),
        "IBSIM_SOCKNAME": socket,
        "SIM_HOST": f"host-1 {hca}",
    }
    served = subprocess.Popen(
        [*serve, "--sm", "none" if manager else "auto"],
        stdout=subprocess.PIPE, env=environment, cwd=spec_file.parent, text=True,
    )  # fmt: skip
    try:
        assert served.stdout is not None
        for line in served.stdout:
            if line.startswith("up:"):
                break
        done = subprocess.run(
            [name], env=environment | {"LD_PRELOAD": PRELOAD}, cwd=spec_file.parent, timeout=60, check=True,
            capture_output=True, text=True,
        )  # fmt: skip
        return done.stdout
    finally:
        served.terminate()
        served.wait()


def yaml_kind(spec_file: Path) -> str:
    """The type of a spec's hosts."""
    return load_cluster(spec_file).cluster.hosts[0].type or ""


def right(injected: Injected, platform: Platform, found: Diagnosis) -> bool:
    """Return true where the first finding is the fault's cause, on its hosts, with its object and its fix."""
    if not found.findings:
        return False
    first = found.findings[0]
    named = injected.object.replace("{hca}", catalog.host(platform[0]).nics[0].hca)
    return (
        first.id == injected.right
        and (not injected.hosts or first.hosts == injected.hosts)
        and named in first.object
        and injected.fix in first.cause.fix
    )


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
        good = right(injected, platform, found)
        counts["found" if good else "missed"] += 1
        if not good:
            missed[injected.name] += 1
            if arguments.wrong:
                top = [
                    (one.id, one.object, [below.id for below in one.consequences]) for one in found.findings[:3]
                ]
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
        data = spec(platform, (), hosts)
        log = printed(data, release, healthy_environment(data, release))
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
