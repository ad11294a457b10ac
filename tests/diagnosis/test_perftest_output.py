"""perftest's tables, connections and JSON in the shapes of its own formats (perftest_parameters.h)."""

from __future__ import annotations

import json

import pytest

from fabrictwin.diagnosis.diagnose import Diagnosis, judged
from fabrictwin.diagnosis.evidence import Evidence, Sink
from fabrictwin.diagnosis.readers import json_documents
from fabrictwin.diagnosis.readers.reading import read_text

RULER = "-" * 87 + "\n"
INFO = (
    RULER + "                    {test} Test\n Dual-port       : {dual}\t\tDevice         : {device}\n"
    " Number of qps   : 1\t\tTransport type : IB\n Connection type : RC\t\tUsing SRQ      : OFF\n"
    " PCIe relax order: ON\t\tLock-free      : OFF\n WARNING: CPU is not PCIe relaxed ordering compliant.\n"
    " WARNING: You should disable PCIe RO with `--disable_pcie_relaxed` for both server and client.\n"
    " ibv_wr* API     : ON\t\tUsing Enhanced Reorder      : OFF\n TX depth        : 128\n CQ Moderation   : 1\n"
    " CQE Poll Batch  : 16\n Mtu             : 4096[B]\n Link type       : {link}\n GID index       : 3\n"
    " Max inline data : 0[B]\n rdma_cm QPs\t : OFF\n Data ex. method : Ethernet\n" + RULER
    + " local address: LID 0000 QPN 0x0126 PSN 0xd1eee2 RKey 0x203f00 VAddr 0x007f2b4f6d0000\n"
    " GID: 00:00:00:00:00:00:00:00:00:00:255:255:10:00:00:01\n"
    " remote address: LID 0000 QPN 0x0127 PSN 0x2f1d3a RKey 0x203f00 VAddr 0x007f41b9f2d000\n"
    " GID: 00:00:00:00:00:00:00:00:00:00:255:255:10:00:00:02\n" + RULER
)  # fmt: skip
BYTES = " #bytes     #iterations    BW peak[{0}]    BW average[{0}]   MsgRate[Mpps]"
LATENCY = (
    " #bytes #iterations    t_min[usec]    t_max[usec]  t_typical[usec]    t_avg[usec]    t_stdev[usec]   "
    "99% percentile[usec]   99.9% percentile[usec] "
)
IBSTAT = (
    "CA '{device}'\n\tCA type: MT4129\n\tNumber of ports: 1\n\tPort 1:\n\t\tState: Active\n"
    "\t\tPhysical state: LinkUp\n\t\tRate: 400\n\t\tLink layer: Ethernet\n"
)


def head(test: str, *, device: str = "mlx5_0", link: str = "Ethernet", dual: str = "OFF") -> str:
    return INFO.format(test=test, device=device, link=link, dual=dual)


def row(size: int, rate: float, *, mpps: float = 0.0, end: str = "\n") -> str:
    return f" {size:<7d}    {5000:<10d}       {rate + 1:<7.2f}            {rate:<7.2f}\t\t     {mpps:<7.6f}{end}"


def rates(evidence: Evidence) -> list[tuple[str, int, float, int]]:
    return [fact.parts for fact in evidence.of("perftest.rate")]  # type: ignore[misc]


def answer(text: str) -> Diagnosis:
    return judged(read_text(text), twin=False)


def test_rates_of_both_units_and_columns_of_other_options_are_one_figure():
    mib, gbits = 44.17e9 / 8 / 2**20, 44.17
    tables = [
        BYTES.format("MiB/sec") + "\n" + row(65536, mib),
        BYTES.format("Gb/sec") + "    CPU_Util[%]\n" + row(65536, gbits, end="\t    12.50\n"),
        " #bytes    #sl      #iterations    BW peak[Gb/sec]    BW average[Gb/sec]   MsgRate[Mpps]\n"
        f" {65536:<7d}    {3}           {5000}           {45:<7.2f}            {gbits:<7.2f}                  0.08\n",
        BYTES.format("Gb/sec")
        + "   BW Port1[Gb/sec]   MsgRate Port1[Mpps]   BW Port2[Gb/sec]   MsgRate Port2[Mpps]\n"
        + row(65536, gbits, end="        22.00   0.04   22.17   0.04\n"),
    ]
    for table in tables:
        found = rates(read_text(head("RDMA_Write BW") + table))
        assert [(one[0], one[1], round(one[2], 2)) for one in found] == [("RDMA_Write BW", 65536, 44.17)]


def test_a_bidirectional_test_is_held_against_both_directions_and_its_halves_are_no_runs():
    def ran(rate: float) -> Diagnosis:
        table = BYTES.format("Gb/sec") + "\n"
        halves = "".join(
            f"{RULER}\n {side} results: \n{RULER}{table}{row(65536, rate / 2)}" for side in ("Local", "Remote")
        )
        text = head("RDMA_Write Bidirectional BW") + table + row(65536, rate) + halves
        return answer(IBSTAT.format(device="mlx5_0") + text)

    assert [one.id for one in ran(730.0).roots] == []
    slow = ran(390.0)
    assert slow.roots[0].id == "bandwidth-low"
    assert slow.roots[0].expected == "720 Gb/s"


@pytest.mark.parametrize(("stalls", "causes"), [(1, ["bandwidth-collapse"]), (0, [])])
def test_a_test_that_runs_on_is_held_against_its_own_samples(stalls: int, causes: list[str]):
    samples = [391.0 + n / 10 for n in range(20)] + [12.0] * stalls
    text = head("RDMA_Write BW") + BYTES.format("Gb/sec") + "\n" + "".join(row(65536, one) for one in samples)
    assert [one.id for one in answer(text).roots] == causes


def test_latencies_with_each_iteration_before_them_and_of_a_given_time():
    text = head("Send Latency") + "#, usec\n" + "".join(f"{n}, {2 + n / 100:g}\n" for n in range(1, 9))
    text += RULER + LATENCY + "\n 2       1000          1.98           9.11         2.05     \t       2.10 "
    text += "    \t0.31   \t\t2.60    \t\t7.02   \n"
    text += head("RDMA_Read Latency") + " #bytes        #iterations       t_avg[usec]    tps average\n"
    text += " 8             421337            3.42            292397.66\n" + RULER
    evidence = read_text(text)
    assert [fact.parts for fact in evidence.of("perftest.latency-us")] == [
        ("Send Latency", 2, 2.05),
        ("RDMA_Read Latency", 8, 3.42),
    ]
    assert judged(evidence, twin=False).verdict == "clean"


def test_a_path_whose_latency_is_far_above_the_others_is_asked_about():
    def run(device: str, typical: float) -> str:
        return (
            head("RDMA_Write Latency", device=device)
            + LATENCY
            + f"\n 2  1000  1.0  9.0  {typical}  1.9  0.1  2.0  7.0\n"
        )

    text = "".join(run(f"mlx5_{n}", 6.4 if n == 3 else 1.9 + n / 50) for n in range(8))
    assert [(one.id, one.object, one.severity.name) for one in answer(text).roots] == [
        ("slow-node", "mlx5_3", "QUESTION")
    ]


@pytest.mark.parametrize("gbits", [True, False])
@pytest.mark.parametrize("qos", [True, False])
def test_json_is_read_in_either_unit_and_with_the_key_that_stands_without_quotes(gbits: bool, qos: bool):
    rate, size = 183.2, 65536
    printed = rate if gbits else rate * 1e9 / 8 / 2**20
    info = {
        "test": "RDMA_Write_Bidirectional_BW_Test", "Dual_port": "OFF", "Device": "mlx5_2", "Number_of_qps": 2,
        "Transport_type": "IB", "Connection_type": "RC", "Using_SRQ": "OFF", "Mtu": 4096, "Link_type": "Ethernet",
    }  # fmt: skip
    level = "sl: 3,\n" if qos else ""
    text = (
        f'{{\n"test_info": {json.dumps(info)[:-1]}\n}},\n"results": {{\n"MsgSize": {size},\n{level}'
        f'"n_iterations": 5000,\n"BW_peak": {printed:.2f},\n"BW_average": {printed:.2f},\n'
        f'"MsgRate": {rate * 1e9 / 8 / size / 1e6:.6f}\n}}\n}}\n'
    )
    evidence = Evidence()
    assert json_documents.read(text.encode(), Sink(evidence, "f")) == "perftest"
    ((test, at, found, ways),) = rates(evidence)
    assert (test, at, ways) == ("RDMA_Write Bidirectional BW", size, 2)
    assert found == pytest.approx(rate, rel=1e-3)
    assert str(evidence.of("perftest.rate")[0].subject) == "mlx5_2"


def test_json_of_a_latency():
    text = {
        "test_info": {"test": "Send_Latency_Test", "Device": "mlx5_2"},
        "results": {"MsgSize": 2, "n_iterations": 1000, "t_min": 1.9, "t_typical": 2.0, "percentile_99.9": 7.0},
    }
    evidence = Evidence()
    assert json_documents.read(json.dumps(text).encode(), Sink(evidence, "f")) == "perftest"
    assert [fact.parts for fact in evidence.of("perftest.latency-us")] == [("Send Latency", 2, 2.0)]


@pytest.mark.parametrize(
    ("message", "cause"),
    [
        ("Bad wc status -- 12 -- 129 \n", "transport-retry"),
        ("Couldn't post send: qp 0 scnt=128 \n", "adapter-limits"),
        ("VALIDATION: FAILED - 3 error(s), first at QP 0, Chunk 1, Offset 64 \n", "data-wrong"),
        ("Couldn't Register the Mcast group on the SM\n", "no-subnet-manager"),
        ("cuMemGetHandleForAddressRange error=801\n", "peermem-missing"),
        ("Received 20 times ADDR_ERROR - aborting\n", "rdma-connection"),
        ("  WARNING: BW peak won't be measured in this run.\n", ""),
        ("Conflicting CPU frequency values detected: 2200.000000 != 3000.000000. CPU Frequency is not max.\n", ""),
        ("\x1b[31mThe QP failed to accept HW rate limit, providing SW rate limit \x1b[0m\n", ""),
    ],
)
def test_messages_of_perftest_between_its_head_and_its_rows(message: str, cause: str):
    text = head("RDMA_Write BW") + BYTES.format("MiB/sec") + "\n" + message
    found = answer(text if cause else text + row(65536, 5000.0)).roots
    assert (found[0].id if found else "") == cause


def test_words_behind_a_row_that_are_no_numbers_end_nothing():
    assert (
        rates(read_text(head("RDMA_Write BW") + BYTES.format("MiB/sec") + "\n 65536 5000 44.2 44.17\\t 0.08\n"))
        == []
    )
