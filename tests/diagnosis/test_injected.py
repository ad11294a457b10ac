"""Faults of specs, rendered by the twin: found by cause; healthy ones raise nothing."""

from __future__ import annotations

import pytest
from support.cluster_prints import nccl_log

from fabrictwin.diagnosis.diagnose import Diagnosis, judged
from fabrictwin.diagnosis.finding import Severity
from fabrictwin.diagnosis.readers.reading import read_text


def answer(text: str) -> Diagnosis:
    return judged(read_text(text))


CASES = [
    ("gdr-off", {"fault": "no-gpudirect-module"}),
    ("locked-memory", {"fault": "locked-memory"}),
    ("socket-fallback", {"fault": "no-rdma-devices", "at": "*"}),
    ("network-differs", {"fault": "no-rdma-devices"}),
    ("no-socket-interface", {"fault": "interface-filter"}),
    ("gid-unreachable", {"fault": "wrong-gid", "technology": "ethernet", "release": "2.28.9"}),
    ("setting-forced", {"setting": "NCCL_P2P_DISABLE=1"}),
    ("socket-fallback", {"setting": "NCCL_IB_DISABLE=1"}),
    ("nvls-off", {"setting": "NCCL_NVLS_ENABLE=0"}),
    ("rails-missing", {"setting": "NCCL_IB_HCA==mlx5_0"}),
    ("channels-few", {"setting": "NCCL_MAX_NCHANNELS=1"}),
]


@pytest.mark.parametrize(("right", "how"), CASES, ids=[f"{right}-{n}" for n, (right, _) in enumerate(CASES)])
def test_an_injected_fault_is_among_the_first_three(right, how):
    found = answer(nccl_log(**how))
    top = [one.id for one in found.findings[:3]]
    top += [below.id for one in found.findings[:3] for below in one.consequences]
    assert right in top
    assert found.verdict == "faults"
    assert found.exit_code == 1


@pytest.mark.parametrize("host", ["dgx-a100", "dgx-h100", "dgx-b200"])
@pytest.mark.parametrize("hosts", [1, 2])
def test_healthy_clusters_raise_nothing(host, hosts):
    found = answer(nccl_log(host, hosts, release="2.28.9"))
    assert [one for one in found.findings if one.severity > Severity.NOTE] == []
    assert found.verdict == "clean"
    assert found.hardware is not None
    assert found.hardware.host == host


def test_a_leftover_setting_is_the_root_and_what_follows_stands_beneath():
    found = answer(nccl_log(setting="NCCL_IB_DISABLE=1"))
    root = found.findings[0]
    assert root.id == "setting-forced"
    assert "NCCL_IB_DISABLE" in root.cause.fix
    assert "socket-fallback" in [below.id for below in root.consequences]
    assert "GB/s on the twin" in root.gain


def test_a_setting_explains_what_it_acts_on_and_nothing_else():
    root = answer(nccl_log(setting="NCCL_SOCKET_IFNAME=lo")).findings[0]
    assert root.seen == "NCCL_SOCKET_IFNAME=lo"
    assert "no-socket-interface" in [below.id for below in root.consequences]
    other = "h:1:2 [0] NCCL INFO NCCL_IB_DISABLE set by environment to 1.\n"
    other += "h:1:2 [0] bootstrap.cc:45 NCCL WARN Bootstrap : no socket interface found\n"
    assert "no-socket-interface" in [one.id for one in answer(other).findings]


def test_a_fault_of_one_host_names_that_host_with_its_line():
    found = answer(nccl_log(fault="no-gpudirect-module"))
    (one,) = [finding for finding in found.findings if finding.id == "gdr-off"]
    assert one.hosts == {"host-1"}
    assert all("Disabled" in place.text and place.line for place in one.evidence)


def test_access_control_is_no_fault_that_a_log_shows_and_lspci_is_asked_for():
    """Peers' traffic takes the way through the processor: bandwidth is lost, and no line says why."""
    found = answer(nccl_log("dgx-b200", fault="acs"))
    assert found.verdict == "not enough evidence"
    assert [one.id for one in found.roots] == ["bandwidth-low"]
    assert any("lspci -vvv" in file for file in found.to_collect)
