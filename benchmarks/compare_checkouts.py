"""What two checkouts say to the same questions: every file and every line of output, byte for byte.

    python benchmarks/compare_checkouts.py BEFORE AFTER [--only WORD]... [--expect NAME]... [--quick]

Each question is a command line, run in a folder of its own with the examples of BEFORE beside it, once by each
checkout's sources and with this interpreter. The questions are those below and every command on a page of BEFORE's
docs. Compared are exit code, standard output and all files written; `environment.json` (times and versions) is
left out, durations on the wall and the version are masked. `--expect report.html` names a file whose bytes may
differ; it is listed apart. Exits with 1 where something else differs.
"""

from __future__ import annotations

import argparse
import difflib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

LEFT_OUT = {"environment.json"}
VOLATILE = re.compile(rb"\b\d+(\.\d+)? (s|ms|min)( of)? (wall|CPU)\b|in \d+(\.\d+)? s\b|fabrictwin \d+\.\d+\.\d+")
BLOCK = re.compile(r"^```console\n(.*?)^```", re.MULTILINE | re.DOTALL)

TRAFFIC = "".join(
    [
        "Nodes 32\nConnections 31\n",
        *(f"{n}->{(7 * n + 3) % 32} id {n + 1} start 0 size {50_000 + 1_000 * n}\n" for n in range(31)),
    ]
)
SMALL = """\
schema: 1
name: small
cluster:
  hosts: {type: dgx-h100, count: 2}
  network: {technology: TECHNOLOGY, switch: SWITCH, topology: {kind: rail-optimised}}
workload:
  training:
    model: examples/models/llama-3-8b.json
    parallel: {tp: 8, pp: 2}
    micro_batch_size: 1
    global_batch: 2
    sequence: 512
    precision: bf16
"""
NETWORKS = {"infiniband": "qm9700", "ethernet": "spectrum-4"}
QUICK = (
    "run infiniband.yaml --fidelity packet --out out --pcap out.pcapng --snaplen 64 --pcap-at host-0",
    "run ethernet.yaml --fidelity packet --out out",
    "run examples/laptop.yaml --fidelity analytic --out out",
    "run examples/laptop.yaml --fidelity flow --out out",
    "run examples/llama-3-8b-fsdp.yaml --fidelity flow --out out",
    "run examples/mixtral-8x7b.yaml --fidelity flow --out out",
    "run examples/llama-3-70b.yaml --fidelity analytic --out out",
    "nccl-tests all_reduce_perf -b 8 -e 256M -f 4 --cluster examples/laptop.yaml -J out.json",
    "nccl-tests alltoall_perf -b 1K -e 16M -f 16 --cluster examples/laptop.yaml --fidelity analytic",
    "nccl-tests all_reduce_perf -b 4M -e 4M --cluster examples/laptop.yaml --fidelity packet --hosts 2",
    "traffic traffic.cm --cluster examples/laptop.yaml --json --pcap out.pcapng",
    "traffic traffic.cm --cluster examples/laptop.yaml --balance adaptive --seed 3 --json",
    "perftest ib_write_bw -a --from host-0 --to host-1 examples/laptop.yaml --json",
    "perftest ib_read_lat -s 64 --from host-0 --to host-3 examples/laptop.yaml --json --pcap out.pcapng",
    "plan examples/laptop.yaml --fidelity analytic --json",
    "cost examples/laptop.yaml --json",
    "jitter examples/laptop.yaml --steps 200 --fidelity analytic --json --out out.html",
    "routes check examples/laptop.yaml",
    "topology show examples/selene-shape.yaml",
    "topology matrix examples/laptop.yaml --host host-0",
    "schema",
)
LONG = (
    "run examples/llama-3-405b-16k.yaml --out out",
    "run examples/llama-3.1-405b.yaml --fidelity flow --out out",
    "run examples/selene-shape.yaml --fidelity flow --out out",
    "compare examples/laptop.yaml --out out --json",
    "jitter examples/laptop.yaml --json",
    "claims --json",
    "validate training --json",
    "validate collectives --json",
)


@dataclass
class Answer:
    """One checkout's answer to a command."""

    code: int
    files: dict[str, bytes] = field(default_factory=dict)  # by path in the folder; standard output as "stdout"
    complaint: str = ""


def documented(checkout: Path) -> Iterator[str]:
    """Command lines on the pages, without those that pipe, serve or write elsewhere."""
    for page in sorted((checkout / "docs").glob("*.md")):
        for block in BLOCK.findall(page.read_text(encoding="utf-8")):
            for line in block.splitlines():
                if line.startswith("$ fabrictwin ") and not set(line) & set("|&;<>"):
                    yield line.removeprefix("$ fabrictwin ").strip()


def ask(checkout: Path, examples: Path, command: str, cache: Path) -> Answer:
    """Run a command with the sources of a checkout."""
    with tempfile.TemporaryDirectory() as folder:
        here = Path(folder)
        shutil.copytree(examples, here / "examples")
        (here / "traffic.cm").write_text(TRAFFIC, encoding="utf-8")
        for technology, switch in NETWORKS.items():
            text = SMALL.replace("TECHNOLOGY", technology).replace("SWITCH", switch)
            (here / f"{technology}.yaml").write_text(text, encoding="utf-8")
        given = {path.relative_to(here) for path in here.rglob("*")}
        environment = os.environ | {
            "PYTHONPATH": str(checkout / "src"),
            "FABRICTWIN_CACHE": str(cache),
            "COLUMNS": "100",
        }
        done = subprocess.run(
            ["bash", "-c", f"{sys.executable} -m fabrictwin {command}"],
            cwd=here,
            env=environment,
            capture_output=True,
            check=False,
        )
        answer = Answer(done.returncode, {"stdout": VOLATILE.sub(b"#", done.stdout)}, done.stderr.decode()[-400:])
        for path in sorted(here.rglob("*")):
            name = path.relative_to(here)
            if path.is_file() and name not in given and path.name not in LEFT_OUT:
                answer.files[str(name)] = VOLATILE.sub(b"#", path.read_bytes())
        return answer


def differences(before: Answer, after: Answer, expected: set[str]) -> tuple[list[str], list[str]]:
    """(what differs, what differs and was expected to), a line each."""
    found, declared = [], []
    if before.code != after.code:
        found.append(f"exit code {before.code}, now {after.code}: {after.complaint.strip()}")
    for name in sorted(before.files.keys() | after.files.keys()):
        one, other = before.files.get(name), after.files.get(name)
        if one == other:
            continue
        line = f"{name}: only before" if other is None else f"{name}: only after" if one is None else f"{name}"
        if one is not None and other is not None:
            lines = difflib.unified_diff(
                one.decode("utf-8", "replace").splitlines(),
                other.decode("utf-8", "replace").splitlines(),
                lineterm="",
                n=0,
            )
            shown = [text[:160] for text in lines if text[:3] not in ("---", "+++") and text[:2] != "@@"]
            line += (
                "\n      "
                + "\n      ".join(shown[:6])
                + (f"\n      (+{len(shown) - 6})" if len(shown) > 6 else "")
            )
        (declared if Path(name).name in expected else found).append(line)
    return found, declared


def main() -> int:
    """Ask both checkouts everything and print what differs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("before", type=Path)
    parser.add_argument("after", type=Path)
    parser.add_argument("--only", action="append", default=[], metavar="WORD", help="commands with this word")
    parser.add_argument("--expect", action="append", default=[], metavar="NAME", help="a file that may differ")
    parser.add_argument(
        "--quick", action="store_true", help="leave out what takes minutes and the pages' commands"
    )
    asked = parser.parse_args()
    before, after = asked.before.resolve(), asked.after.resolve()
    commands = [*QUICK] if asked.quick else [*QUICK, *LONG, *documented(before)]
    commands = [c for c in dict.fromkeys(commands) if not asked.only or any(word in c for word in asked.only)]
    wrong = 0
    with tempfile.TemporaryDirectory() as caches:
        for number, command in enumerate(commands, 1):
            answers = [
                ask(checkout, before / "examples", command, Path(caches) / name)
                for name, checkout in (("before", before), ("after", after))
            ]
            found, declared = differences(*answers, set(asked.expect))
            wrong += bool(found)
            verdict = "DIFFERS" if found else "declared" if declared else "same"
            files = len(answers[0].files)
            print(f"{number:3}/{len(commands)} {verdict:8} {files:2} files  {command}", flush=True)
            for line in (*found, *(d.splitlines()[0] + " (declared)" for d in declared)):
                print(f"    {line}")
    print(f"{len(commands) - wrong} of {len(commands)} the same")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
