"""Hold the configurations of random fabrics against SONiC's own YANG models.

    python benchmarks/sonic_fabrics.py [--fabrics 200] [--seed 1] [--judge ../shared/judges/sonic_yang.py]

Each fabric has its own hosts, shape, rates, cables, classes and chip; every switch's config_db.json is converted
to instance data and given to yanglint (Debian: libyang-tools), read back by our own reader, and held by all rules
of lint. Switches of a fabric that differ in their names alone are judged once. Exits with 1 where one is refused.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "src"))

from fabrictwin.base.errors import ConfigError
from fabrictwin.cluster.spec.spec import read_spec
from fabrictwin.configuration.lint.rules import lint
from fabrictwin.configuration.model.cluster import Configuration
from fabrictwin.configuration.policy.cluster_policy import configuration, plan
from fabrictwin.configuration.readers.sonic import read_switch
from fabrictwin.configuration.writers import sonic

CHIPS = (
    None,
    None,
    "spectrum-2",
    "spectrum-3",
    "spectrum-5",
    "spectrum-6",
    "tomahawk",
    "tomahawk-4",
    "tomahawk-5",
)
JUDGE = Path(__file__).parents[2] / "shared" / "judges" / "sonic_yang.py"


def random_spec(draw: random.Random) -> dict[str, Any]:
    """A fabric's spec: some of them cannot be built, which is no fault of theirs."""
    dscp, cnp = draw.sample(range(64), 2)
    priority, cnp_priority = draw.sample(range(1, 8), 2)
    qos: dict[str, Any] = {"lossless": draw.random() < 0.85, "dscp": dscp, "priority": priority}
    qos |= {"cnp_dscp": cnp, "cnp_priority": cnp_priority}
    chip = draw.choice(CHIPS)
    if chip is not None:
        qos["chip"] = chip
    rate = draw.choice((100, 200, 400))
    kind = draw.choice(("dgx-h100", "dgx-b200", "dgx-h200"))
    shape = draw.choice(
        ({"kind": "rail-optimised"}, {"kind": "fat-tree", "tiers": 2}, {"kind": "single-switch"},
         {"kind": "rail-optimised", "oversubscription": 2})
    )  # fmt: skip
    network = {
        "technology": "ethernet",
        "switch": "spectrum-4",
        "topology": shape,
        "link_rate": f"{rate} Gb/s",
        "trunk_rate": f"{rate * draw.choice((1, 2)) if rate < 400 else draw.choice((400, 800))} Gb/s",
        "host_cable": f"{draw.choice((1, 3, 5, 30))} m",
        "trunk_cable": f"{draw.choice((5, 20, 40, 100, 300))} m",
        "qos": qos,
    }
    return {"schema": 1, "cluster": {"hosts": {"type": kind, "count": draw.randint(1, 16)}, "network": network}}


def refusals(spec: dict[str, Any], judge: Path, folder: Path) -> tuple[int, list[str]]:
    """(switches judged, what was refused) of a fabric. Raises ConfigError where it cannot be built."""
    switches = configuration(plan(read_spec(spec)), "sonic").switches
    found, judged, seen = [], 0, set()
    for switch in switches.values():
        shape = (len(switch.ports), switch.name.split("-")[0])
        tables = sonic.config_db(switch)
        text = json.dumps(tables)
        back, problems = read_switch(text, switch.name)
        if replace(back, file="") != switch or problems.found:
            found.append(f"{switch.name}: reads back otherwise")
        errors = [f for f in lint(Configuration(switches={switch.name: back})) if f.severity == "error"]
        found += [str(error) for error in errors[:1]]
        if shape in seen:
            continue
        seen.add(shape)
        judged += 1
        path = folder / "config_db.json"
        path.write_text(text)
        done = subprocess.run([sys.executable, str(judge), str(path)], capture_output=True, text=True, check=False)
        if done.returncode or "no-model []" not in done.stdout:
            found.append(f"{switch.name}: {done.stdout.strip()[:300]}")
    return judged, found


def main() -> int:
    """Judge fabrics and print how many passed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--fabrics", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--judge", type=Path, default=JUDGE)
    options = parser.parse_args()
    draw, begun = random.Random(options.seed), time.monotonic()
    fabrics = switches = refused = skipped = 0
    with tempfile.TemporaryDirectory() as folder:
        while fabrics < options.fabrics:
            try:
                judged, found = refusals(random_spec(draw), options.judge, Path(folder))
            except ConfigError:
                skipped += 1
                continue
            fabrics += 1
            switches += judged
            refused += bool(found)
            for line in found:
                print(f"fabric {fabrics}: {line}", flush=True)
    took = time.monotonic() - begun
    left = f"({skipped} cannot be built)"
    print(f"{fabrics} fabrics {left}, {switches} switches judged: {refused} refused")
    print(f"{took:.0f} s")
    return 1 if refused else 0


if __name__ == "__main__":
    raise SystemExit(main())
