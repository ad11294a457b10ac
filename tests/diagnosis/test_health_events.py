"""What monitors of clusters hand on: health events, DCGM's names of errors, states without the tool's heads."""

from __future__ import annotations

import json

import pytest

from fabrictwin.diagnosis.diagnose import judged
from fabrictwin.diagnosis.finding import Severity
from fabrictwin.diagnosis.readers.reading import read_text


def told(text: str) -> list[str]:
    return [one.id for one in judged(read_text(text), twin=False).roots if not one.instead_of]


def event(check: str, *codes: str, said: str = "", healthy: bool = False) -> dict[str, object]:
    return {"checkName": check, "isFatal": not healthy, "isHealthy": healthy, "errorCode": codes, "message": said}


EVENTS = [
    (event("SysLogsXIDError", "79"), ["gpu-lost"]),
    (event("SysLogsXIDError", "13"), ["gpu-program"]),
    (event("GpuXidError", "DCGM_FR_GPU_FALLEN_OFF_BUS", said="GPU has fallen off the bus (XID 79)"), ["gpu-lost"]),
    (event("GpuInforomWatch", "DCGM_FR_CORRUPT_INFOROM"), ["gpu-hardware"]),
    (event("GpuMemWatch", "DCGM_FR_VOLATILE_DBE_DETECTED"), ["gpu-memory"]),
    (event("GpuNvlinkWatch", "DCGM_FR_NVLINK_DOWN"), ["nvlink-inactive"]),
    (event("GpuNvlinkWatch", "DCGM_FR_NVLINK_DOWN", healthy=True), []),
]


@pytest.mark.parametrize(("one", "causes"), EVENTS)
@pytest.mark.parametrize("lines", [1, 3])
def test_health_events_are_read_wherever_a_logger_puts_them(one, causes, lines):
    packed = {"time": "2026-03-06T09:34:56Z", "level": "INFO", "msg": "received", "events": {"events": [one]}}
    assert told((json.dumps(packed) + "\n") * lines) == causes


@pytest.mark.parametrize(
    ("label", "causes"),
    [
        ("ERR_2024-11-04_09.32.03UTC_page_retirement_row_remap.0", ["gpu-memory"]),
        ("ERR_2024-11-04_09.32.03UTC_pcie.3", ["pci-errors"]),
        ("PASS_2024-11-04_09.32.03UTC", []),
    ],
)
def test_labels_of_nodes_name_the_test_that_failed(label, causes):
    assert told(f"Labels:  autopilot.ibm.com/dcgm.level.3={label}\n") == causes


def test_links_of_dcgm_need_no_head():
    rows = "    gpuId 0:\n        U U U {} U U\n    gpuId 1:\n        U U U U U U\n"
    assert told(rows.format("D")) == ["nvlink-inactive"]
    assert judged(read_text(rows.format("U")), twin=False).verdict == "clean"
    assert told("gpuId 0: has 1 links down and 0 links disabled.\n") == ["nvlink-inactive"]
    assert told("gpuId 0: has 0 links down and 0 links disabled.\n") == []


@pytest.mark.parametrize("state", ["State: {}\n", ""])
def test_states_of_ibstat_stand_without_their_adapters(state):
    up, down = state.format("Active"), state.format("Down")
    listed = f"{up}Physical state: LinkUp\n{down}Physical state: Polling\n{up}Physical state: LinkUp\n"
    (one,) = [one for one in judged(read_text(listed), twin=False).roots if not one.instead_of]
    assert (one.id, one.severity) == ("port-down", Severity.WARNING)
    assert told(listed.replace("Polling", "LinkUp").replace("Down", "Active")) == []


def test_an_interface_that_is_off_among_others_of_the_fabric_is_told():
    rows = [f"/sys/class/net/ib{one}/operstate:{'down' if one == 4 else 'up'}" for one in range(8)]
    assert told("\n".join(rows) + "\n") == ["port-down"]
    assert told("\n".join(rows[3:6]) + "\n") == []


def test_what_a_logger_has_beside_its_message_counts():
    lines = [
        {"level": "INFO", "msg": "starting"},
        {"level": "ERROR", "msg": "benchmark failed", "error": "exit status 2", "stdout": "# nThread 1\nhost-0: Test CUDA failure common.cu:941 'system not yet initialized'"},
    ]  # fmt: skip
    assert told("\n".join(json.dumps(one) for one in lines) + "\n") == ["cuda-not-initialized"]
    lines[1] = {"level": "ERROR", "msg": "cannot start", "error": "CUDA error: out of memory"}
    assert told("\n".join(json.dumps(one) for one in lines) + "\n") == ["out-of-memory"]
