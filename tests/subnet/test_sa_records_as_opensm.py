"""Records that the twin's manager answers beside OpenSM's, of every type that saquery knows, as it prints them.

OpenSM manages the same served fabric, where all fields must be equal, and the fabric over ibsim, whose switches
and adapters say other things of themselves.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import pytest
from support.odd_fabrics import draw
from support.over_ibsim import OverIbsim, lids, run_tool
from support.real_tools import JUDGED_BY_REAL_TOOLS, Up

from fabrictwin.subnet.manager.settings.manager_settings import Settings

pytestmark = JUDGED_BY_REAL_TOOLS

# What the two answer differently on purpose: counts of sweeps and process numbers; what the twin's manager does
# not offer (MultiPathRecord, alias GUIDs, multicast services, send-only members) and OpenSM 3.3.23 does not know
# (NDR). OpenSM hands out the block of a P_KeyTableRecord in the byte order of its machine, which 15.2.5.11 does
# not.
_OTHER = re.compile(r"ActCount|ibwarn|ibpanic|Capability mask")
_BLOCK = re.compile(r"(Block\.+)(\d+)")
# Fields that switches and adapters of ibsim fill otherwise than the twin's.
_HARDWARE = re.compile(
    r"CapabilityMask2|partition_cap|revision|FDBCap|LifeTimeValue|EnforcementCap|flags|CapMask|capability_mask|\bIs[A-Z]|MkeyLease|LinkWidth|"
    r"LinkSpeed|MTU|MtuCap|mtu|rate\.|GidPrefix|LocalPort|DefState|VLHighLimit|DiagCode|GuidCap|RespTime|SubnetT|"
    r"Overrun|LocalPhys|VLArb|InitReply|NodeDesc|MulticastFDBTop|Fec|FEC|MaxCreditHint|LinkRoundTrip|VLCap|OperVLs|"
    r"PortState|StallCount|HoqLife|PartEnforce"
)


@dataclass(frozen=True)
class Asked:
    """A fabric, where tools run, and queries."""

    text: str
    host: str
    queries: tuple[tuple[str, ...], ...]


def asked() -> Asked:
    """Queries of every record type: of switches, adapters, ports with and without a link, absent blocks."""
    text = draw("uneven_leaves", 5, lid_gap=2)
    switch = {m[1]: m[2] for m in re.finditer(r'^Switch.*# "MF0;(\S+):MQM\S+" .* lid (\d+)', text, re.MULTILINE)}
    lid = lids(text)
    ends = [str(lid[int(guid, 16)]) for guid in re.findall(r'^\[1\]\(([0-9a-f]+)\)\t"S-', text, re.MULTILINE)]
    leaf, spine, a, b = switch["leaf-0"], switch["spine-1"], ends[0], ends[7]
    queries: list[tuple[str, ...]] = [("CPI",)]
    for one in (leaf, spine, a, b):
        queries += [("NR", one), ("SWIR", one), ("SMIR", one)]
    ports = {
        "PIR": (f"{leaf}/0", f"{leaf}/1", f"{leaf}/10", f"{leaf}/30", f"{spine}/1", f"{a}/1", f"{b}/1"),
        "SL2VL": (
            *(f"{leaf}/{pair}" for pair in ("1/10", "0/1", "10/1", "0/0", "30/1", "1/30")),
            f"{a}/1/1",
            f"{b}/0/0",
        ),
        "VLAR": (*(f"{leaf}/{pair}" for pair in ("1/1", "10/3", "0/1", "1/2", "30/1")), f"{a}/1/1", f"{a}/1/3"),
        "PKTR": (f"{leaf}/0/0", f"{leaf}/1/0", f"{leaf}/10/0", f"{a}/1/0", f"{a}/1/1"),
        "LFTR": (f"{leaf}/0", f"{spine}/0", f"{spine}/1", f"{leaf}/9"),
        "GIR": (f"{leaf}/0", f"{a}/0", f"{a}/1"),
        "LR": (f"{leaf}/1", f"{leaf}/10", f"{a}/1", f"{spine}/1"),
    }
    queries += [
        (kind, where, *(("--smkey", "1") if kind == "PKTR" else ())) for kind in ports for where in ports[kind]
    ]
    queries += [("PKTR", f"{leaf}/0/0"), ("SR",), ("IIR",), ("MCMR",), ("-g",), ("-m",), ("-m", "--smkey", "1")]
    queries += [("MFTR", "0xC000/0/0"), ("MFTR",), ("-s",), ("-N",), ("--list",), ("-O", a)]
    for pair in ((a, b), (a, leaf), (leaf, ends[3]), (b, b), (spine, leaf), (a, "4000")):
        queries += [("PR", "--src-to-dst", ":".join(pair))]
    queries += [
        ("PR", "--slid", a, "--dlid", b, "--numpath", "3"),
        ("PR", "--slid", a, "--dlid", b, "--reversible", "0"),
    ]
    host = re.search(r'^Ca.*"(H-[0-9a-f]+)"', text, re.MULTILINE)
    assert host is not None
    return Asked(text, host[1], tuple(queries))


def fields(printed: tuple[int, str], *, hardware: bool) -> list[str]:
    """The exit code and lines that both must print."""
    code, text = printed
    lines = [line.strip() for line in text.splitlines() if not _OTHER.search(line)]
    if not hardware:
        lines = [line for line in lines if not _HARDWARE.search(line)]
    return [str(code), *(_BLOCK.sub(lambda m: f"{m[1]}{int(m[2]) % 255}", line) for line in lines)]


@pytest.fixture(scope="module")
def of_the_twin(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, ...], tuple[int, str]]:
    """Return the answers of the twin's manager, routed as OpenSM routes."""
    ask, folder = asked(), tmp_path_factory.mktemp("twin")
    with Up(_cluster(ask, folder), folder, manage=True, settings=Settings(engine="minhop")) as up:
        environment = up.environment(ask.host)
        return {query: run_tool(("saquery", *query), environment, folder, 60) for query in ask.queries}


def _cluster(ask: Asked, folder: Path) -> Path:
    (folder / "net").write_text(ask.text)
    cluster = folder / "cluster.yaml"
    cluster.write_text(f"ibnetdiscover: {folder / 'net'}\n")
    return cluster


def test_every_field_is_that_of_opensm_over_the_same_switches(of_the_twin, tmp_path):
    ask = asked()
    with Up(_cluster(ask, tmp_path), tmp_path, manage=False) as up:
        # its first sweep sets every MulticastFDBTop to the highest MLID that tables held before it: none
        up.sweep_again(up.opensm(ask.host, "-Q", "-R", "minhop"))
        environment = up.environment(ask.host)
        theirs = {query: run_tool(("saquery", *query), environment, tmp_path, 60) for query in ask.queries}
    for query in ask.queries:
        ours = fields(of_the_twin[query], hardware=True)
        assert ours == fields(theirs[query], hardware=True), " ".join(query)
    assert sum(code == 0 and "ump:" in text for code, text in theirs.values()) > 40


def test_what_the_manager_decides_is_what_opensm_decides_over_ibsim(of_the_twin, tmp_path):
    ask = asked()
    _cluster(ask, tmp_path)
    with OverIbsim(tmp_path / "net", tmp_path, ask.host, "-Q", "-R", "minhop") as ibsim:
        theirs = {query: ibsim.run("saquery", *query) for query in ask.queries}
    differing = {}
    for query in ask.queries:
        if query[0] in ("GIR", "PKTR") and query[1].endswith("/1"):
            continue  # how many blocks of GUIDs and P_Keys a port has is ibsim's to say
        ours, opensms = (fields(answers[query], hardware=False) for answers in (of_the_twin, theirs))
        if ours != opensms:
            differing[" ".join(query)] = sorted(set(ours) ^ set(opensms))
    assert not differing
