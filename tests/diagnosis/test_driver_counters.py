"""Counters of EFA, ENA, bnxt, irdma, ice and ionic: those that tell of trouble, and those that do not."""

from __future__ import annotations

import json

import pytest

from fabrictwin.diagnosis.diagnose import Diagnosis, judged
from fabrictwin.diagnosis.evidence import Evidence, Sink
from fabrictwin.diagnosis.readers import json_documents
from fabrictwin.diagnosis.readers.reading import read_text


def answer(text: str) -> Diagnosis:
    return judged(read_text(text), twin=False)


def told(text: str) -> list[tuple[str, str]]:
    return [(one.id, one.severity.name) for one in answer(text).roots]


EFA = {
    "tx_bytes": 91827364550000, "tx_pkts": 22418790000, "rx_bytes": 91827364550000, "rx_pkts": 22418790000,
    "rx_drops": 0, "send_wrs": 1200, "rdma_read_wr_err": 0, "rdma_write_wr_err": 0, "retrans_bytes": 41000000,
    "retrans_pkts": 10012, "retrans_timeout_events": 31, "unresponsive_remote_events": 0,
    "impaired_remote_conn_events": 0,
}  # fmt: skip
ENA = {
    "total_resets": 0, "reset_fail": 0, "tx_timeout": 0, "wd_expired": 0, "suspend": 0, "interface_up": 1,
    "bw_in_allowance_exceeded": 214, "bw_out_allowance_exceeded": 0, "pps_allowance_exceeded": 0,
    "conntrack_allowance_exceeded": 0, "linklocal_allowance_exceeded": 0, "conntrack_allowance_available": 136812,
    "queue_0_tx_cnt": 90000000, "queue_0_rx_cnt": 80000000, "ena_admin_q_completed_cmd": 412,
}  # fmt: skip


@pytest.mark.parametrize(
    ("changed", "found"),
    [
        ({}, []),
        ({"impaired_remote_conn_events": 812}, [("efa-loss", "WARNING")]),
        ({"retrans_timeout_events": 190000}, [("efa-loss", "QUESTION")]),
        ({"unresponsive_remote_events": 44}, [("efa-unreachable", "QUESTION")]),
        ({"rx_drops": 41000}, [("receive-queue-empty", "WARNING")]),
    ],
)
@pytest.mark.parametrize("form", ["line", "rows", "sysfs", "json"])
def test_counters_of_efa_in_each_form(changed: dict[str, int], found: list[tuple[str, str]], form: str):
    counters = EFA | changed
    if form == "json":
        document = [{"ifindex": 0, "ifname": "rdmap16s27", "port": 1, **counters}]
        evidence = Evidence()
        assert json_documents.read(json.dumps(document).encode(), Sink(evidence, "f")) == "rdma"
        roots = judged(evidence, twin=False).roots
    else:
        rows = " ".join(f"{name} {value}" for name, value in counters.items())
        text = {
            "line": f"link rdmap16s27/1 {rows}\n",
            "rows": "link rdmap16s27/1 \n" + "".join(f"    {name} {value}\n" for name, value in counters.items()),
            "sysfs": "".join(
                f"/sys/class/infiniband/rdmap16s27/ports/1/hw_counters/{name}:{value}\n"
                for name, value in counters.items()
            ),
        }[form]
        roots = answer(text).roots
    assert [(one.id, one.severity.name) for one in roots] == found


@pytest.mark.parametrize(
    ("changed", "found"),
    [
        ({}, []),
        ({"conntrack_allowance_exceeded": 91827}, [("instance-limits", "WARNING")]),
        ({"pps_allowance_exceeded": 4000000}, [("instance-limits", "WARNING")]),
        ({"bw_out_allowance_exceeded": 40000}, [("instance-limits", "QUESTION")]),
        ({"wd_expired": 2}, [("adapter-error", "QUESTION")]),
    ],
)
def test_allowances_of_an_instance(changed: dict[str, int], found: list[tuple[str, str]]):
    rows = "".join(f"     {name}: {value}\n" for name, value in (ENA | changed).items())
    assert told(f"# ethtool -S ens5\nNIC statistics:\n{rows}") == found


@pytest.mark.parametrize(
    ("device", "counters", "found"),
    [
        # bnxt_re's count of recoverable errors holds broadcast packets
        ("bnxt_re0", "rx_pkts 900000 recoverable_errors 81234 dup_req 3", []),
        ("bnxt_re0", "rx_pkts 900000 to_retransmits 8123 seq_err_naks_rcvd 400", [("roce-loss", "WARNING")]),
        ("bnxt_re0", "rx_pkts 900000 res_tx_pci_err 2", [("pci-errors", "WARNING")]),
        ("rocep226s0", "rx_rdma_ucast_pkts 90000000 tx_rdma_ack_timeout 8123", [("roce-loss", "WARNING")]),
        ("rocep226s0", "rx_rdma_ucast_pkts 90000000 req_rx_cqe_flush 91234 tx_rdma_cnp_pkts 44", []),
        (
            "rocep226s0",
            "rx_rdma_ucast_pkts 90000000 resp_rx_outof_buf 91234",
            [("receive-queue-empty", "WARNING")],
        ),
        ("rocep9s0", "ip4InPkts 90000000 ip4InDiscards 41000", [("discards", "QUESTION")]),
        ("iwp9s0", "tcpOutSegs 90000000 tcpRetransSegs 91000", [("roce-loss", "QUESTION")]),
        ("iwp9s0", "tcpOutSegs 9000000000 tcpRetransSegs 91000", []),
    ],
)
def test_counters_of_other_adapters(device: str, counters: str, found: list[tuple[str, str]]):
    assert told(f"link {device}/1 {counters}\n") == found


@pytest.mark.parametrize(
    ("counters", "found"),
    [
        ({"continuous_roce_pause_events": 41}, [("pause-storm", "WARNING")]),
        ({"rx_fec_corrected_blocks": 91827364, "rx_corrected_bits": 91827}, []),
        ({"rx_fec_uncorrectable_blocks": 9182}, [("link-errors", "WARNING")]),
        ({"mac_remote_faults.nic": 412}, [("link-flapping", "QUESTION")]),
        ({"rx_icrc_encapsulated": 9123}, [("link-errors", "WARNING")]),
    ],
)
def test_counters_of_interfaces(counters: dict[str, int], found: list[tuple[str, str]]):
    rows = "".join(f"     {name}: {value}\n" for name, value in counters.items())
    assert told(f"NIC statistics:\n     rx_octets: 5\n{rows}") == found


@pytest.mark.parametrize("kind", ["text", "json"])
def test_queue_pairs_are_no_ports(kind: str):
    if kind == "text":
        assert told("link mlx5_4/1 lqpn 8 type UD state RTS sq-psn 58 comm [mlx5_ib]\n") == []
        return
    document = [{"ifindex": 2, "ifname": "mlx5_4", "port": 1, "lqpn": 8, "type": "UD", "state": "RTS"}]
    assert json_documents.read(json.dumps(document).encode(), Sink(Evidence(), "f")) == ""
