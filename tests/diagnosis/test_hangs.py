"""Hangs: simulated cases name the culprit; pickles that would run code are refused."""

from __future__ import annotations

import pickle
import re
from pathlib import Path

import pytest
from support.hang_cases import KINDS, simulated

from fabrictwin.base.errors import ConfigError
from fabrictwin.diagnosis.diagnose import Diagnosis, diagnose
from fabrictwin.interchange.plain_pickle import unpickled

CASES = 200
WANTED = {
    "missing": {"rank-missing"},
    "order": {"collective-mismatch"},
    "size": {"collective-mismatch"},
    "stopped": {"rank-late"},
    "dead-link": {"collective-stuck"},
}


def named(found: Diagnosis) -> set[int]:
    """Ranks that the first finding is about."""
    ranks: set[int] = set()
    for first, last in re.findall(r"(\d+)(?:-(\d+))?", found.findings[0].object):
        ranks |= set(range(int(first), int(last or first) + 1))
    return ranks


def test_the_culprit_of_simulated_hangs_is_named(tmp_path: Path):
    right = dict.fromkeys(KINDS, 0)
    for seed in range(CASES):
        case = simulated(seed)
        folder = tmp_path / str(seed)
        folder.mkdir()
        case.write(folder)
        found = diagnose([folder], twin=False)
        assert found.findings, (seed, case.kind)
        hit = found.findings[0].id in WANTED[case.kind]
        # of two ranks that differ, either may be wrong: both are named
        ranks = named(found)
        right[case.kind] += hit and (ranks == case.culprits or (case.culprits < ranks and len(ranks) == 2))
    assert sum(right.values()) >= 0.95 * CASES, right


def test_who_waits_for_whom_is_said(tmp_path: Path):
    case = simulated(KINDS.index("stopped"))
    case.write(tmp_path)
    (culprit,) = case.culprits
    found = diagnose([tmp_path], twin=False)
    assert found.waiting
    assert all(f"for rank(s) {culprit}" in line or "group" in line for line in found.waiting)
    assert any(line.endswith(f"for rank(s) {culprit}") for line in found.waiting)


def test_a_complete_run_raises_nothing(tmp_path: Path):
    for rank in range(2):
        entry = {
            "process_group": ("0", "default_pg"), "collective_seq_id": 1, "profiling_name": "nccl:all_reduce",
            "input_sizes": [[4]], "output_sizes": [[4]], "state": "completed", "is_p2p": False,
        }  # fmt: skip
        dump = {"version": "2.5", "rank": rank, "entries": [entry], "pg_config": {"0": {"ranks": "[0, 1]"}}}
        (tmp_path / f"dump{rank}").write_bytes(pickle.dumps(dump))
    assert diagnose([tmp_path], twin=False).verdict == "clean"


class Runs:
    """Would run a command where it is unpickled."""

    def __reduce__(self):
        return (print, ("this must not be printed",))


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_a_pickle_that_runs_code_is_refused_and_named(tmp_path: Path, capsys, protocol: int):
    data = pickle.dumps({"entries": [Runs()], "version": "2.5"}, protocol=protocol)
    with pytest.raises(ConfigError, match="plain data"):
        unpickled(data, "dump")
    file = tmp_path / "trace_rank_0"
    file.write_bytes(data)
    found = diagnose([file], twin=False)
    assert found.evidence.unread[0][0] == str(file)
    assert capsys.readouterr().out == ""


def test_plain_containers_come_through():
    data = {"a": [1, 2.5, "x", None, True], "b": (1, {"c": b"d"})}
    assert unpickled(pickle.dumps(data), "dump") == data
