"""Packed by a container's runtime, a logger or an API: lines in objects, objects of Kubernetes, long lines."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from fabrictwin.diagnosis.diagnose import Diagnosis, judged
from fabrictwin.diagnosis.readers import json_lines, line_router
from fabrictwin.diagnosis.readers.reading import read_paths

NCCL = (
    "NCCL version 2.27.3+cuda12.9",
    "host-0:47:48 [0] NCCL INFO NET/IB : Using [0]mlx5_0:1/IB [RO]; OOB eth0:10.0.0.1<0>",
    "host-0:47:48 [0] NCCL INFO NET/IB : GPU Direct RDMA Disabled for HCA 0 'mlx5_0'",
    "host-0:47:48 [0] NCCL INFO comm 0x1 rank 0 nRanks 16 nNodes 2 localRanks 8 localRank 0 MNNVL 0",
)


def answer(folder: Path, text: str, name: str = "file.txt") -> Diagnosis:
    (folder / name).write_text(text)
    return judged(read_paths([folder / name]), twin=False)


def told(folder: Path, text: str) -> list[tuple[str, str]]:
    return [(one.id, one.seen) for one in answer(folder, text).roots]


PACKINGS = {
    "docker": lambda line: {"log": f"{line}\n", "stream": "stdout", "time": "2026-01-05T17:00:00Z"},
    "journal": lambda line: {"_HOSTNAME": "host-0", "MESSAGE": line, "PRIORITY": "6"},
    "logger": lambda line: {"ts": 1.0, "level": "info", "msg": line, "rank": 0},
}


@pytest.mark.parametrize("packing", PACKINGS)
@pytest.mark.parametrize("large", [False, True])
def test_lines_in_objects_are_read_as_they_were_printed(tmp_path, monkeypatch, packing, large):
    lines = [*NCCL, "RuntimeError: CUDA error: an illegal memory access was encountered"] * 3
    plain = told(tmp_path, "\n".join(lines) + "\n")
    monkeypatch.setattr(line_router, "LARGE", 1 if large else 1 << 30)
    packed = "".join(json.dumps(PACKINGS[packing](line)) + "\n" for line in lines)
    # a logger's level stands before what it says
    assert [(cause, seen.removeprefix("INFO: ")) for cause, seen in told(tmp_path, packed)] == plain
    assert plain


def test_a_level_beside_the_message_counts_and_other_objects_are_documents():
    assert json_lines.unpacked(b'{"level": "warning", "message": "no route"}') == b"WARNING: no route"
    assert json_lines.unpacked(b'{"level": "error", "message": "ERROR no route"}') == b"ERROR no route"
    assert json_lines.unpacked(b'{"rank": 3}') == b'{"rank": 3}'
    assert json_lines.recognises(b'{"log": "a"}\n{"log": "b"}\n')
    assert not json_lines.recognises(b'{"log": "a"}\n')
    assert not json_lines.recognises(b'{"rank": 1}\n{"rank": 2}\n')


def test_a_line_without_an_end_costs_what_its_beginning_does(tmp_path):
    found = answer(tmp_path, '{"step": 3, "loss": 2.31} ' * 100_000)
    assert found.findings == ()


def test_requests_of_users_are_no_evidence(tmp_path):
    asked = "INFO 01-05 17:00:00 [logger.py:39] Received request chatcmpl-1: prompt: 'RuntimeError: Connection refused'"
    said = asked.replace(" prompt: ", " ")
    assert told(tmp_path, f"{asked}, params: SamplingParams(n=1)\n") == []
    assert told(tmp_path, f"{said}\n") != []


def node(ready: str = "True", gpus: int = 8, pressure: str = "False") -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": "gpu-1"},
        "status": {
            "addresses": [{"address": "10.0.0.1", "type": "InternalIP"}, {"address": "gpu-1", "type": "Hostname"}],
            "allocatable": {"cpu": "190", "nvidia.com/gpu": str(gpus)},
            "capacity": {"cpu": "192", "nvidia.com/gpu": "8"},
            "conditions": [
                {"type": "MemoryPressure", "status": "False", "message": "kubelet has sufficient memory available"},
                {"type": "PIDPressure", "status": pressure, "reason": "KubeletHasSufficientPID"},
                {"type": "Ready", "status": ready, "reason": "KubeletReady", "message": "Kubelet stopped posting node status."},
            ],
        },
    }  # fmt: skip


def pod(phase: str = "Running", waiting: str = "", message: str = "", code: int | None = None) -> dict[str, Any]:
    state: dict[str, Any] = {"running": {}}
    if waiting:
        state = {"waiting": {"reason": waiting, "message": message}}
    elif code is not None:
        state = {"terminated": {"exitCode": code, "reason": message}}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "train-0"},
        "status": {"phase": phase, "containerStatuses": [{"name": "main", "ready": True, "restartCount": 0, "state": state}]},
    }  # fmt: skip


def event(reason: str, message: str) -> dict[str, Any]:
    about = {"kind": "Pod", "name": "train-0"}
    return {"apiVersion": "v1", "kind": "Event", "type": "Warning", "reason": reason, "message": message, "involvedObject": about}  # fmt: skip


OBJECTS = [
    (node(), []),
    (node(ready="Unknown"), ["node-failed"]),
    (node(gpus=7), ["resource-unavailable"]),
    (node(pressure="True"), ["thread-limit"]),
    (pod(), []),
    (pod("Succeeded", code=0, message="Completed"), []),
    (pod("Failed", code=137, message="OOMKilled"), ["host-memory"]),
    (pod("Pending", "ImagePullBackOff", "Back-off pulling image"), ["image-pull"]),
    (event("FailedScheduling", "0/4 nodes are available: 4 Insufficient nvidia.com/gpu."), ["resource-unavailable"]),
    ({"apiVersion": "v1", "kind": "List", "items": [node(), node(gpus=7)]}, ["resource-unavailable"]),
    ({"apiVersion": "v1", "kind": "PodList", "items": [{"metadata": pod()["metadata"], "status": pod()["status"]}]}, []),
]  # fmt: skip


@pytest.mark.parametrize("form", ["line", "json", "yaml"])
@pytest.mark.parametrize(("document", "causes"), OBJECTS)
def test_objects_of_kubernetes_in_one_line_or_many(tmp_path, document, causes, form):
    text = {
        "line": json.dumps(document) + "\n",
        "json": json.dumps(document, indent=4) + "\n",
        "yaml": yaml.safe_dump(document),
    }[form]
    found = answer(tmp_path, text)
    assert [one.id for one in found.roots] == causes
    assert found.verdict == ("faults" if causes else "clean")
    assert not found.evidence.unread


def test_yaml_that_holds_itself_or_is_none_is_text(tmp_path):
    for text in ("apiVersion: v1\nitems: &a [*a]\nkind: List\n", "apiVersion: v1\nkind: [Pod\n"):
        assert answer(tmp_path, text).roots == ()


@pytest.mark.parametrize(
    "text", ["apiVersion: v1\nitems:\n- kind: {a: 1}\n- b: !!int ''\nkind: List\n", '{"kind": {"a": 1}}']
)
def test_values_of_other_types_than_the_api_has_end_nothing(tmp_path, text):
    assert answer(tmp_path, text).roots == ()


@pytest.mark.parametrize("indent", [None, 4])
@pytest.mark.parametrize(("state", "causes"), [("Active", []), ("Polling", ["port-down"])])
def test_json_of_mlxlink_in_one_line_or_many(tmp_path, state, causes, indent):
    info = {"State": state, "Physical state": "LinkUp" if state == "Active" else state}
    advice = {
        "Status Opcode": "1024",
        "Recommendation": "No issue was observed" if not causes else "Cable is unplugged",
    }
    output = {"Operational Info": info, "Troubleshooting Info": advice}
    document = {"status": {"code": 0, "message": "success"}, "result": {"output": output}}
    assert [one.id for one in answer(tmp_path, json.dumps(document, indent=indent) + "\n").roots] == causes


@pytest.mark.parametrize("many", [1, 3])
def test_events_of_ras_in_one_line_each(tmp_path, many):
    about = {"host": "host-1", "pid": 4711, "cuda_devs": [0, 1]}
    event = {"timestamp": "2026-01-05 17:00:00", "event": "PEER_DEAD", "peer": about, "details": "no answer"}
    found = answer(tmp_path, (json.dumps(event) + "\n") * many).roots
    assert [(one.id, "host-1" in one.object or "host-1" in one.hosts) for one in found] == [("rank-died", True)]
