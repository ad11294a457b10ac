"""Programs of infiniband-diags over a served twin, beside what they do over ibsim.

The twin is under its own manager, ibsim under OpenSM; both serve the same drawn fabric with the same LIDs. A row
says with which code a program ended and how many lines it printed, and how many of them are the same, numbers and
all. Needs opensm, infiniband-diags, ibsim-utils and libumad2sim0.

    python benchmarks/subnet_programs.py --out programs.md
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from support.odd_fabrics import draw
from support.over_ibsim import OverIbsim, lids, run_tool
from support.real_tools import Up

from fabrictwin.subnet.manager.settings.manager_settings import Settings

PROGRAMS = (
    *("saquery", "saquery -s", "saquery -g", "saquery -m", "saquery -c", "saquery -x", "saquery -S", "saquery -I"),
    *("saquery PR --src-to-dst {host}:{far}", "saquery SL2VL {leaf}/1/2", "saquery VLAR {leaf}/1/1"),
    *("saquery LFTR {leaf}/0", "saquery MFTR", "saquery GIR {host}", "saquery SWIR {leaf}", "saquery SMIR"),
    *("saquery PKTR {host}/1/0 --smkey 1", "saquery LR {leaf}/1", "saquery PIR {leaf}/1", "saquery IIR"),
    *("ibstat", "ibstat -p", "ibaddr {host}", "ibaddr -g {leaf}", "sminfo", "smpquery nodeinfo {host}"),
    *("smpquery nodedesc {leaf}", "smpquery portinfo {leaf} 1", "smpquery portinfo {host}"),
    *("smpquery switchinfo {leaf}", "smpquery pkeys {host}", "smpquery pkeys {leaf} 1", "smpquery sl2vl {leaf}"),
    *("smpquery vlarb {leaf} 1", "smpquery guidinfo {host}", "smpquery mlnxextportinfo {leaf} 1"),
    *("smpquery -D nodeinfo 0,1", "smpdump {host} 0x11", "smpdump -D 0,1 0x12"),
    *("ibnetdiscover", "ibnetdiscover -p", "ibnetdiscover -l", "ibnetdiscover -H", "ibnetdiscover -S"),
    *(
        "ibhosts",
        "ibswitches",
        "ibnodes",
        "ibrouters",
        "iblinkinfo",
        "iblinkinfo -l",
        "iblinkinfo --switches-only",
    ),
    *("ibroute {leaf}", "ibroute -a {leaf}", "ibroute -M {leaf}", "ibtracert {host} {far}"),
    *("ibtracert -m 0xc000 {host} {far}", "dump_lfts", "dump_mfts", "dump_fts", "dump_fts -M"),
    *("check_lft_balance", "ibfindnodesusing {leaf_name} 1", "ibidsverify"),
    *("perfquery {host}", "perfquery -x {host} 1", "perfquery -a {leaf}", "perfquery -l {leaf}"),
    *("perfquery -R {host} 1", "perfquery --rcverr {host} 1", "perfquery --xmtdisc {host} 1"),
    *("perfquery --oprcvcounters {host} 1", "perfquery --flowctlcounters {host} 1"),
    *("perfquery --vloppackets {host} 1", "perfquery --vlopdata {host} 1", "perfquery --vlxmitwait {host} 1"),
    *("perfquery --vlxmitflowctlerrors {host} 1", "perfquery --extended_speeds {host} 1", "perfquery -c {host} 1"),
    *("perfquery --xmtsl {host} 1", "perfquery --rcvsl {host} 1", "perfquery --swportvlcong {leaf} 1"),
    *("perfquery --rcvcc {host} 1", "perfquery --slrcvfecn {host} 1", "perfquery --slrcvbecn {host} 1"),
    *("perfquery --xmitcc {host} 1", "perfquery --vlxmittimecc {host} 1", "perfquery --smplctl {host} 1"),
    *("ibqueryerrors", "ibqueryerrors --counters", "ibqueryerrors --data", "ibqueryerrors -r --details"),
    *("ibportstate {leaf} 1 query", "ibportstate {host} 1 query", "ibportstate -D 0 1 query"),
    *(
        "vendstat -N {leaf}",
        "vendstat -N {host}",
        "vendstat -w {leaf}",
        "vendstat -i {leaf}",
        "vendstat -R {leaf} 0x100",
    ),
    *("ibccquery CongestionInfo {host}", "ibccquery CongestionKeyInfo {leaf}", "ibccquery CongestionLog {leaf}"),
    *("ibccquery SwitchCongestionSetting {leaf}", "ibccquery SwitchPortCongestionSetting {leaf} 1"),
    *("ibccquery CACongestionSetting {host}", "ibccquery CongestionControlTable {host}"),
    *("ibping -c 1 {far}", "ibsysstat {far}", "ibstatus"),
)
ALONE = ("saquery", "ibqueryerrors")  # a table longer than a datagram leaves OpenSM over ibsim without answers
TIMEOUT_S = 20
INTRODUCTION = """# Programs of infiniband-diags

What each does over a served twin under the twin's own manager, beside what it does over ibsim under OpenSM, on one
fabric of uneven leaves with the same LIDs; written by `benchmarks/subnet_programs.py --out FILE`. `{host}`,
`{far}`, `{leaf}` are LIDs. Lines that differ are counters and counts of datagrams, process numbers, what nodes of
ibsim say of themselves (revision, capabilities, table sizes, links of 12X). Most codes other than 0 are those of
programs that both refuse. Answers of saquery end with the first datagram, as libumad2sim passes them on.
"""


@dataclass(frozen=True)
class Result:
    """How a program ended."""

    code: int | None  # None: not within the time
    text: str

    @property
    def lines(self) -> Counter[str]:
        """Lines that it printed, without dates and names of sysfs folders, which have the process's number."""
        kept = [re.sub(r"\s+", " ", line).strip() for line in self.text.splitlines()]
        kept = [re.sub(r"\./sys-\d+|^\w+: ", "", line) for line in kept if "generated" not in line]
        return Counter(line for line in kept if line)

    def __str__(self) -> str:
        if self.code is None:
            return "does not end"
        count = sum(self.lines.values())
        return f"{count} line{'s' if count != 1 else ''}" + (f", code {self.code}" if self.code else "")


def run(command: str, environment: dict[str, str], folder: Path) -> Result:
    """One program to its end, or until its time is over."""
    try:
        return Result(*run_tool(tuple(command.split()), environment, folder, TIMEOUT_S))
    except subprocess.TimeoutExpired:
        return Result(None, "")


def both(folder: Path) -> list[tuple[str, Result, Result]]:
    """(command, over the twin, over ibsim) of all programs."""
    text = draw("uneven_leaves", 5, lid_gap=2)
    (folder / "net").write_text(text)
    (folder / "cluster.yaml").write_text(f"ibnetdiscover: {folder / 'net'}\n")
    switch = {m[1]: m[2] for m in re.finditer(r'^Switch.*# "MF0;(\S+):MQM\S+" .* lid (\d+)', text, re.MULTILINE)}
    ends = [str(lids(text)[int(g, 16)]) for g in re.findall(r'^\[1\]\(([0-9a-f]+)\)\t"S-', text, re.MULTILINE)]
    host = re.search(r'^Ca.*"(H-[0-9a-f]+)"', text, re.MULTILINE)
    assert host is not None
    leaf_guid = re.search(r'^Switch.*"S-([0-9a-f]+)".*MF0;leaf-0:', text, re.MULTILINE)
    assert leaf_guid is not None
    filled = {"host": ends[0], "far": ends[7], "leaf": switch["leaf-0"], "leaf_name": f"0x{leaf_guid[1]}"}
    commands = [(shown, shown.format(**filled)) for shown in PROGRAMS if shutil.which(shown.split()[0])]
    made = folder / "twin"
    made.mkdir()
    settings = Settings(engine="minhop")
    with Up(folder / "cluster.yaml", made, manage=True, settings=settings) as up:
        ours = [run(command, up.environment(host[1]), made) for _, command in commands]
    theirs = []
    several = [command for _, command in commands if not command.startswith(ALONE)]
    for number, group in enumerate(
        [several, *([command] for _, command in commands if command.startswith(ALONE))]
    ):
        made = folder / f"ibsim-{number}"
        made.mkdir()
        with OverIbsim(folder / "net", made, host[1], "-Q", "-R", "minhop") as ibsim:
            theirs += [(command, run(command, ibsim.environment(host[1]), made)) for command in group]
    answered = dict(theirs)
    return [(shown, a, answered[command]) for (shown, command), a in zip(commands, ours, strict=True)]


def table(rows: list[tuple[str, Result, Result]]) -> str:
    """A page of Markdown."""
    out = [INTRODUCTION, "| program | over the twin | over ibsim | lines that are the same |", "|---|---|---|---|"]
    for shown, ours, theirs in rows:
        same = sum((ours.lines & theirs.lines).values())
        out.append(f"| `{shown.replace('|', '/')}` | {ours} | {theirs} | {same} |")
    return "\n".join(out) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--show", action="store_true", help="lines that only one of the two has")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        rows = both(Path(folder))
    arguments.out.write_text(table(rows))
    if arguments.show:
        for shown, ours, theirs in rows:
            print(f"== {shown}: {ours} / {theirs}")
            for line in list((ours.lines - theirs.lines).elements())[:6]:
                print("  twin ", line)
            for line in list((theirs.lines - ours.lines).elements())[:6]:
                print("  ibsim", line)


if __name__ == "__main__":
    main()
