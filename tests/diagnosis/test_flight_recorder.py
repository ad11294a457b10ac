"""Flight recorders' dumps in the shapes that PyTorch writes: numbers as strings, batches, sends and receives.

Shapes after pytorch's test/distributed/flight_recorder/test_fr_analysis.py, torch/distributed/flight_recorder and
ProcessGroupNCCL::startCoalescing; written afresh.
"""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import pytest

from fabrictwin.diagnosis.diagnose import Diagnosis, diagnose

Entry = dict[str, Any]


def call(
    verb: str, number: int, state: str = "completed", *, group: str = "0", sizes: Any = None, **more: Any
) -> Entry:
    """An entry of a collective."""
    size = [[64, 64]] if sizes is None else sizes
    return {
        "process_group": (group, "default_pg"), "collective_seq_id": number, "p2p_seq_id": 0, "is_p2p": False,
        "profiling_name": f"nccl:{verb}", "input_sizes": size, "output_sizes": size, "input_dtypes": ["Float"],
        "output_dtypes": ["Float"], "state": state, "retired": state == "completed", **more,
    }  # fmt: skip


def transfer(verb: str, number: int, state: str = "completed", *, after: int = 0) -> Entry:
    """An entry of a send or a receive; `after` is the collectives' number at that time."""
    return call(verb, after, state) | {"is_p2p": True, "p2p_seq_id": number}


def judged(folder: Path, ranks: list[list[Entry]], *, as_json: bool = False, first: int = 0) -> Diagnosis:
    """The verdict on the dumps of ranks."""
    config = {"0": {"name": "0", "desc": "default_pg", "ranks": str(list(range(len(ranks))))}}
    for rank, entries in enumerate(ranks):
        numbered = [entry | {"record_id": first + i} for i, entry in enumerate(entries)]
        dump = {"version": "2.9", "pg_config": config, "entries": numbered}
        data = json.dumps(dump).encode() if as_json else pickle.dumps(dump)
        (folder / f"nccl_trace_rank_{rank}").write_bytes(data)
    return diagnose([folder], twin=False)


@pytest.mark.parametrize("as_json", [False, True])
def test_sequence_numbers_may_be_strings(tmp_path: Path, as_json: bool):
    ranks = [[call("all_reduce", 1), call("all_reduce", 2, "started")] for _ in range(3)]
    ranks.append([call("all_reduce", 1)])
    for entries in ranks:
        for entry in entries:
            entry["collective_seq_id"] = str(entry["collective_seq_id"])
    found = judged(tmp_path, ranks, as_json=as_json)
    assert (found.findings[0].id, found.findings[0].object) == ("rank-late", "rank 3")


def test_roots_of_gather_and_scatter_differ_by_right(tmp_path: Path):
    def entries(rank: int) -> list[Entry]:
        whole, none = [[4], [4]], []
        return [
            call("gather", 1) | {"output_sizes": none if rank else whole},
            call("scatter", 2) | {"input_sizes": none if rank else whole},
            call("all_to_all", 3, sizes=[[rank + 1]]),
            call("all_gather_v", 4, sizes=[[rank + 1]]),
            call("all_reduce", 5, "started"),
        ]

    assert [f.id for f in judged(tmp_path, [entries(0), entries(1)]).roots] == ["collective-stuck"]


@pytest.mark.parametrize("verb", ["broadcast", "_broadcast_oop", "reduce", "all_reduce_barrier"])
def test_sizes_of_broadcasts_and_reductions_must_agree(tmp_path: Path, verb: str):
    ranks = [[call(verb, 1, "started", sizes=[[4 if rank == 1 else 8]])] for rank in range(3)]
    found = judged(tmp_path, ranks)
    assert (found.findings[0].id, found.findings[0].object) == ("collective-mismatch", "rank 1")


def pipeline(rank: int, last: int, batches: int) -> list[Entry]:
    """A stage: batches of sends and receives, then a collective, whose number the batches have raised."""
    entries: list[Entry] = []
    for one in range(1, batches + 1):
        # members of a batch stay scheduled in their own entries though they are done
        if rank > 0:
            entries.append(transfer(f"recv {rank}<-{rank - 1}", one, "scheduled", after=one))
        if rank < last:
            entries.append(transfer(f"send {rank}->{rank + 1}", one, "scheduled", after=one))
        entries.append(call("coalesced", one, sizes=[]))
    return entries


def test_batches_do_not_count_among_the_collectives(tmp_path: Path):
    # the last stage's batches are one fewer; all call the same two collectives
    ranks = [pipeline(rank, 2, 3 - (rank == 2)) for rank in range(3)]
    for entries in ranks:
        number = sum("coalesced" in entry["profiling_name"] for entry in entries)
        entries += [call("all_gather", number + 1), call("all_reduce", number + 2)]
    assert judged(tmp_path, ranks).verdict == "clean"


def test_a_rank_that_left_the_batches_is_late(tmp_path: Path):
    ranks = [[*pipeline(rank, 2, 3), call("all_reduce", 4, "started")] for rank in range(3)]
    ranks[1].pop()
    found = judged(tmp_path, ranks)
    assert (found.findings[0].id, found.findings[0].object) == ("rank-late", "rank 1")


def test_where_entries_were_dropped_batches_hide_numbers(tmp_path: Path):
    ranks = [[*pipeline(0, 1, 3), call("all_reduce", 4)], [*pipeline(1, 1, 2), call("all_gather", 4, "started")]]
    found = judged(tmp_path, ranks, first=5000)
    assert not [finding for finding in found.findings if finding.id == "collective-mismatch"]


def test_a_receive_that_nobody_sends_names_the_sender(tmp_path: Path):
    ranks = [
        [call("all_reduce", 1)],
        [call("all_reduce", 1), transfer("recv 1<-0", 1, "started", after=1)],
        [call("all_reduce", 1), transfer("recv 2<-1", 1, "started", after=1)],
    ]
    found = judged(tmp_path, ranks)
    assert (found.findings[0].id, found.findings[0].object) == ("rank-late", "rank 0")
    assert "rank 2 waits in nccl:recv 2<-1 1 of group 0 for rank(s) 1" in found.waiting


def test_a_batch_that_does_not_end_names_who_is_absent(tmp_path: Path):
    ranks = [pipeline(rank, 3, 2) for rank in range(4)]
    # in the third batch rank 2 is absent
    for rank in (0, 1, 3):
        ranks[rank] += pipeline(rank, 3, 3)[-(2 + (0 < rank < 3)) :]
        ranks[rank][-1] |= {"state": "started", "retired": False}
    found = judged(tmp_path, ranks)
    assert (found.findings[0].id, found.findings[0].object) == ("rank-late", "rank 2")
