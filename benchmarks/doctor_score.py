"""Score the doctor on samples of what real clusters printed.

    python benchmarks/doctor_score.py [--samples DIR] [--only NAME,NAME | --except NAME,NAME] [--wrong]

DIR (default `../shared/data/doctor`) holds the samples and `index.csv`: for each file its kind, symptom and the
cause that its source names. A cause in words becomes the ids that name it by the table below, which knows
mechanisms and no files. A sample with a fault counts when the first finding is the right one, and when one of the
first three is; a clean one when nothing is an error; an unclear one when the verdict says that evidence does not
suffice, or nothing is found.
"""

from __future__ import annotations

import argparse
import csv
import re
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "src"))

from fabrictwin.diagnosis.diagnose import CLEAN, UNCLEAR, Diagnosis, diagnose
from fabrictwin.diagnosis.finding import Severity

SAMPLES = Path(__file__).parents[2] / "shared/data/doctor"
# words of a cause, and the ids that name it; the first that matches holds
CAUSES = (
    (r"congestion or dead receiver|discards", {"discards"}),
    (r"module info|cannot be read", {"switch-unreadable"}),
    (r"lacks numpy|No module named", {"check-dependency"}),
    (r"NVLink count|degraded NVLink", {"nvlink-degraded"}),
    (r"NVSwitch link error|SXid", {"sxid"}),
    (r"GSP", {"gpu-gsp"}),
    (r"crash inside NCCL|segfault", {"library-crash"}),
    (r"peermem", {"peermem-broken"}),
    (r"counter saturated|flapp", {"link-flapping"}),
    (r"is dead|process .* died", {"rank-died"}),
    (r"counts differ|normal while a communicator", {"unclear"}),
    (r"GPU ?Direct|GDR", {"gdr-off", "gdr-far", "gdr-unused", "peermem-missing", "peermem-broken"}),
    (r"ACS|access control", {"acs-redirects", "protection"}),
    (r"GID", {"gid-unreachable", "no-roce-v2-gid", "transport-retry"}),
    (r"[Ss]ocket fallback|no RDMA device|IB_DISABLE", {"socket-fallback", "setting-forced", "efa-absent"}),
    (r"shm", {"shared-memory", "limit-shm"}),
    (r"memlock|locked memory", {"locked-memory", "limit-locked"}),
    (r"fabric ?manager", {"fabric-manager", "cuda-not-initialized"}),
    (r"[Xx]id", {"xid", "gpu-lost", "gpu-gsp", "gpu-memory", "nvlink-error", "gpu-program"}),
    (r"order or size|mismatch", {"collective-mismatch", "size-mismatch"}),
)


@dataclass(frozen=True)
class Sample:
    """A sample and what its source says of it. `right` is empty where it is clean."""

    file: str
    right: frozenset[str]
    harmless: bool  # the source says that nothing is wrong, or nothing that can be told


def wanted(row: dict[str, str]) -> Sample:
    """The sample of a row of the index."""
    words, symptom = row["diagnosed_cause"], row["symptom"]
    told_clean = ("clean", "monitor", "vendor", "documentation")
    if symptom.startswith(told_clean) or words.startswith(told_clean) or "(harmless)" in words:
        return Sample(row["file"], frozenset(), True)
    for pattern, ids in CAUSES:
        if re.search(pattern, words):
            return Sample(row["file"], frozenset(ids), "unclear" in ids)
    # "judge from counters", "unknown": nothing that a finding could be held against
    return Sample(row["file"], frozenset({"unclear"}), True)


def outcome(sample: Sample, found: Diagnosis) -> str:
    """One of first, third, missed, clean, warned, alarm, unclear."""
    shown = [one for one in found.findings if one.severity > Severity.NOTE]
    if not sample.harmless:
        for place, one in enumerate(shown[:3]):
            if sample.right & {one.id, *(below.id for below in one.consequences)}:
                return "third" if place or one.id not in sample.right else "first"
        return "missed"
    worst = max((one.severity for one in shown), default=Severity.NOTE)
    if worst == Severity.ERROR:
        return "alarm"
    if worst == Severity.WARNING:
        return "warned"
    if sample.right:
        return "unclear" if found.verdict in (UNCLEAR, CLEAN) else "alarm"
    return "clean"


def main() -> int:
    """Score all samples, or some."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", type=Path, default=SAMPLES)
    parser.add_argument("--only", default="")
    parser.add_argument("--except", dest="left_out", default="")
    parser.add_argument("--wrong", action="store_true", help="print those that were missed or raised an alarm")
    arguments = parser.parse_args()
    if not (arguments.samples / "index.csv").exists():
        print(f"no samples at {arguments.samples}: nothing scored")
        return 0
    only, left_out = set(filter(None, arguments.only.split(","))), set(filter(None, arguments.left_out.split(",")))
    with (arguments.samples / "index.csv").open(encoding="utf-8", newline="") as stream:
        rows = list(csv.DictReader(stream))
    counts: Counter[str] = Counter()
    for row in rows:
        number = row["file"].split("-")[0]
        if (only and number not in only) or number in left_out:
            continue
        sample = wanted(row)
        found = diagnose([arguments.samples / sample.file])
        result = outcome(sample, found)
        counts[result] += 1
        if arguments.wrong and result in ("missed", "alarm", "warned", "third"):
            got = [f"{one.severity.name} {one.id}: {one.object}: {one.seen[:80]}" for one in found.findings[:3]]
            print(f"{result:7} {sample.file}: wanted {sorted(sample.right)}, got {found.verdict}: {got}")
    faults = counts["first"] + counts["third"] + counts["missed"]
    clean = counts["clean"] + counts["warned"] + counts["alarm"]
    three = counts["first"] + counts["third"]
    print(f"faults {faults}: right cause first {counts['first']}, among the first three {three}")
    print(f"clean {clean}: errors {counts['alarm']}, warnings {counts['warned']}")
    print(f"unclear and left so {counts['unclear']}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
