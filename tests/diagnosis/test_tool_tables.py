"""Tables of tools (dcgmi, mlxlink, neighbours of switches), and what two lines say together."""

from __future__ import annotations

import textwrap

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fabrictwin.diagnosis.diagnose import Diagnosis, judged
from fabrictwin.diagnosis.finding import Severity
from fabrictwin.diagnosis.readers.reading import read_text


def answer(text: str) -> Diagnosis:
    return judged(read_text(text), twin=False)


def causes(text: str) -> list[str]:
    return [one.id for one in answer(text).findings]


def diagnostic(rows: list[tuple[str, str]], width: int, *, by_words: bool) -> str:
    """A table as `dcgmi diag` prints it: a message goes on below, cut where the column ends or between words."""
    frame = f"+{'-' * 27}+{'-' * (width + 2)}+\n"
    text = f"{frame}| {'Diagnostic':<25} | {'Result':<{width}} |\n{frame.replace('-', '=')}"
    for name, value in rows:
        pieces = (
            textwrap.wrap(value, width)
            if by_words
            else [value[i : i + width] for i in range(0, len(value), width)]
        )
        for number, piece in enumerate(pieces):
            text += f"| {'' if number else name:<25} | {piece:<{width}} |\n"
    return text + frame


@given(width=st.integers(30, 80), by_words=st.booleans())
def test_a_message_of_dcgm_is_read_over_its_rows(width, by_words):
    rows = [
        ("software", "Pass"),
        ("pcie", "Fail"),
        ("", "GPU7: Fail"),
        ("Warning: GPU7", "GPU 7 is running at PCI link width 4X, which is below the minimum allowed of 16X."),
    ]
    found = answer(diagnostic(rows, width, by_words=by_words)).findings[0]
    assert (found.id, found.object) == ("pci-narrow", "GPU 7")


def test_a_diagnostic_that_passes_is_clean_and_one_that_fails_without_a_word_is_of_what_it_tests():
    assert (
        answer(diagnostic([("memory", "Pass - All"), ("sm stress", "Skip - All")], 40, by_words=True)).verdict
        == "clean"
    )
    assert causes(diagnostic([("memory", "Fail - All")], 40, by_words=True))[0] == "gpu-memory"


LINK = """\
# mlxlink -d mlx5_7 -m -c
Operational Info
----------------
State                              : {state}
Physical state                     : LinkUp

Troubleshooting Info
--------------------
Status Opcode                      : 1
Recommendation                     : {advice}

Physical Counters and BER Info
------------------------------
Effective Physical BER             : {rate}
Link Down Counter                  : {downs}

Module Info
-----------
Temperature [C]                    : 54 [-5..75]
Rx Power Current [dBm]             : {light} [-5.2..6]
Cable Type                         : Passive copper cable
"""
GOOD = {"state": "Active", "advice": "No issue was observed", "rate": "15E-255", "downs": 0, "light": "1.1,0.9"}


@pytest.mark.parametrize(
    ("name", "value", "cause"),
    [
        ("light", "1.1,-9.7", "module-fault"),
        ("rate", "4E-10", "link-errors"),
        ("downs", 250, "link-flapping"),
        ("state", "Polling", "port-down"),
    ],
)
def test_mlxlink_names_what_is_wrong_with_a_link(name, value, cause):
    assert answer(LINK.format(**GOOD)).verdict == "clean"
    found = answer(LINK.format(**{**GOOD, name: value})).findings[0]
    assert (found.id, found.object) == (cause, "mlx5_7")


def test_what_mlxlink_recommends_for_a_port_that_is_down_is_told():
    text = LINK.format(**{**GOOD, "state": "Disable", "advice": "Frob is unplugged"})
    assert "Frob is unplugged" in answer(text).findings[0].seen


HEAD = "Neighbor  V  AS  MsgRcvd  MsgSent  TblVer  InQ  OutQ  Up/Down  State/PfxRcd  {last}\n"
RULER = "--------  -  --  -------  -------  ------  ---  ----  -------  ------------  ----\n"


@pytest.mark.parametrize("ruler", ["", RULER])
@pytest.mark.parametrize(
    ("state", "away"),
    [("120", False), ("0", False), ("Connect", True), ("Idle", True), ("(Policy)", True), ("Idle (Admin)", False)],
)
def test_a_neighbour_that_is_not_established_is_told(ruler, state, away):
    text = HEAD.format(last="Name") + ruler + f"10.0.0.7  4  65007  7  7  0  0  0  1d02h11m  {state}  spine7\n"
    assert causes("$ show ip bgp summary\n" + text) == (["bgp-down"] if away else [])


def simple(names: list[str], *rows: list[str]) -> str:
    """A table of SONiC's `show`."""
    widths = [max(len(one[i]) for one in (names, *rows)) for i in range(len(names))]
    lines = [names, ["-" * width for width in widths], *rows]
    return "".join("  ".join(c.ljust(w) for c, w in zip(one, widths, strict=True)) + "\n" for one in lines)


def test_an_interface_that_is_down_with_a_module_in_it_is_told_and_an_empty_one_is_not():
    names = ["Interface", "Lanes", "Speed", "MTU", "FEC", "Oper", "Admin", "Type"]
    one = ["Ethernet8", "9,10", "400G", "9100", "none", "down", "up", "QSFP-DD"]
    found = answer(simple(names, one)).findings
    assert [(each.id, each.object) for each in found] == [("port-down", "Ethernet8")]
    assert "FEC rs" in found[0].expected
    assert causes(simple(names, [*one[:-1], "N/A"])) == []
    assert causes(simple(names, [*one[:-2], "down", "QSFP-DD"])) == []
    assert causes(simple(names, [*one[:5], "up", *one[6:]])) == []


def test_supplies_fans_and_sensors_of_a_switch_that_are_not_well_are_told():
    supplies = ["PSU", "Model", "Voltage (V)", "Status", "LED"]
    assert causes(simple(supplies, ["PSU 1", "M7", "12.01", "OK", "green"])) == []
    found = answer(
        "$ show platform psustatus\n" + simple(supplies, ["PSU 2", "N/A", "N/A", "NOT OK", "red"])
    ).findings
    assert [(one.id, one.object) for one in found] == [("switch-part", "PSU 2")]
    fans = simple(
        ["Drawer", "LED", "FAN", "Speed", "Presence", "Status"],
        ["Drawer1", "red", "FAN7", "0%", "Present", "Not OK"],
    )
    assert [(one.id, one.object) for one in answer("$ show platform fan\n" + fans).findings] == [
        ("switch-part", "FAN7")
    ]
    sensors = ["Sensor", "Temperature", "High TH", "Warning"]
    hot = simple(sensors, ["ASIC", "105.0", "100.0", "True"], ["CPU", "40.0", "100.0", "False"])
    assert [(one.id, one.object) for one in answer("$ show platform temperature\n" + hot).findings] == [
        ("switch-part", "ASIC")
    ]


@pytest.mark.parametrize(("ecn", "cause"), [("ecn_none", ["ecn-off"]), ("ecn_all", [])])
def test_a_profile_that_marks_nothing_is_told(ecn, cause):
    assert (
        causes(f"$ show ecn\nProfile: MINE\n-----  -----\necn  {ecn}\ngreen_min_threshold  7\n-----  -----\n")
        == cause
    )


def test_lines_of_iblinkinfo_stand_alone():
    line = '0x0012340000000007 "leaf7"  11   7[  ] ==( 2X        106.25 Gbps Active/  LinkUp)==>  0x0012340000000008  22   1[  ] "node7 mlx5_0" ( {could})\n'
    found = answer(line.format(could="Could be 4X") + line.format(could="").replace("2X", "4X")).findings
    assert [(one.id, one.object) for one in found] == [("link-narrow", "leaf7/7")]


@pytest.mark.parametrize(
    ("wanted", "listed", "cause"),
    [("mlx5_bond_0", "mlx5_0", ["wrong-hca"]), ("mlx5_9,mlx5_8", "", ["wrong-hca"]), ("mlx5", "mlx5_0", [])],
)
def test_a_filter_that_leaves_no_adapter_is_told(wanted, listed, cause):
    text = f"n1:7:7 [0] NCCL INFO NCCL_IB_HCA set by environment to {wanted}.\nn1:7:7 [0] NCCL INFO NET/IB : No device found.\n"
    if listed:
        text += f"    device          \t   node GUID\n    ------          \t----------------\n    {listed}          \t0012340000000007\n"
    assert [one for one in causes(text) if one == "wrong-hca"] == cause


def test_corrected_errors_of_pcie_are_told_and_their_details_are_no_errors_of_an_adapter():
    head = "[ 7.1] pcieport 0000:40:01.1: AER: Multiple Corrected error received: 0000:41:00.0\n"
    rows = (
        "[ 7.1] mlx5_core 0000:41:00.0: PCIe Bus Error: severity=Corrected, type=Physical Layer, (Receiver ID)\n"
        "[ 7.1] mlx5_core 0000:41:00.0:   device [15b3:1021] error status/mask=00000001/00002000\n"
        "[ 7.1] mlx5_core 0000:41:00.0:    [ 0] RxErr                  (First)\n"
    )
    assert causes(head + rows + head) == ["pci-replays"]
    assert causes((head + rows).replace("Multiple Corrected", "Corrected")) == []


def pinged(peer: str, size: int, received: int) -> str:
    return (
        f"PING {peer} ({peer}) {size}({size + 28}) bytes of data.\n\n--- {peer} ping statistics ---\n"
        f"7 packets transmitted, {received} received, 0% packet loss, time 7ms\n"
    )


@pytest.mark.parametrize(
    ("small", "large", "cause"),
    [(7, 0, ["mtu-differs"]), (7, 7, []), (7, 1, []), (0, 0, []), (0, 7, [])],
)
def test_large_packets_alone_that_get_no_answer_are_of_an_mtu(small, large, cause):
    text = pinged("10.0.0.7", 56, small) + pinged("10.0.0.7", 8972, large)
    assert [one for one in causes(text) if one == "mtu-differs"] == cause


def test_a_peer_that_answers_no_ping_is_told_and_one_large_packet_says_nothing():
    assert causes(pinged("10.0.0.7", 56, 0)) == ["connect-refused"]
    assert causes(pinged("10.0.0.7", 8972, 0)) == []
    assert causes("$ ping -c 7 10.0.0.8\n" + pinged("10.0.0.7", 56, 7)) == []


def test_a_section_of_remapped_rows_stands_alone():
    text = "    Remapped Rows\n        Uncorrectable Error               : 7\n        Pending                           : {}\n"
    assert causes(text.format("Yes"))[0] == "gpu-memory"
    assert "gpu-memory" not in causes(text.format("No"))


PERFTEST = """\
                    RDMA_Write BW Test
 Dual-port       : OFF\t\tDevice         : mlx5_2
 Link type       : Ethernet
 local address: LID 0000 QPN 0x00aa PSN 0x12
 GID: {mine}
 remote address: LID 0000 QPN 0x00ab PSN 0x34
 GID: {theirs}
 Completion with error at client
 Failed status 12: wr_id 0 syndrom 0x81
"""
LOCAL, ROUTED = (
    "254:128:00:00:00:00:00:00:18:52:86:255:254:07:07:07",
    "00:00:00:00:00:00:00:00:00:00:255:255:10:00:00:02",
)


@pytest.mark.parametrize(("mine", "theirs"), [(LOCAL, ROUTED), (ROUTED, LOCAL)])
def test_gids_of_two_kinds_at_the_ends_of_perftest_explain_its_time_out(mine, theirs):
    found = answer(PERFTEST.format(mine=mine, theirs=theirs)).findings[0]
    assert found.id == "gid-unreachable"
    assert "transport-retry" in {below.id for below in found.consequences}
    assert causes(PERFTEST.format(mine=mine, theirs=mine))[0] == "transport-retry"


def gave_up(rank: int, called: int, done: int, group: str = "tp") -> str:
    return (
        f"[rank{rank}]:[E311 ProcessGroupNCCL.cpp:7] [PG ID 1 PG GUID 7({group}) Rank {rank}]  failure detected by "
        f"watchdog at work sequence id: {done + 1} PG status: last enqueued work: {called}, last completed work: {done}\n"
    )


def test_a_rank_that_has_not_called_what_others_wait_in_is_late():
    text = gave_up(0, 77, 70) + gave_up(1, 64, 64) + gave_up(2, 76, 70)
    found = answer(text).findings[0]
    assert (found.id, found.object) == ("rank-late", "rank 1")
    assert "rank-late" not in causes(gave_up(0, 77, 70) + gave_up(1, 71, 70))  # it has called it
    assert "rank-late" not in causes(gave_up(0, 77, 70) + gave_up(1, 64, 64, group="dp"))  # another group


def test_a_function_without_a_guid_is_why_its_port_is_down():
    text = "hca_id:\tmlx5_9\n\tnode_guid:\t\t{guid}\n\tport:\t1\n\t\tstate:\t\tPORT_DOWN (1)\n\t\tlink_layer:\tInfiniBand\n"
    assert causes(text.format(guid="0000:0000:0000:0000")) == ["virtual-function"]
    assert causes(text.format(guid="0012:3400:0000:0007")) == ["port-down"]


def test_what_a_program_calls_a_warning_is_no_error():
    said = "frob failed: No such file or directory: /etc/frob\n"
    assert answer(f"ERROR: {said}").findings[0].severity == Severity.ERROR
    assert answer(f"WARNING: {said}").findings[0].severity == Severity.WARNING
    assert answer(f"frobd: WARNING: {said}").findings[0].severity == Severity.WARNING


def test_hosts_of_ec2_without_an_adapter_miss_the_plugin():
    text = "".join(
        f"{host}:7:7 [0] NCCL INFO NET/IB : No device found.\n{host}:7:7 [0] NCCL INFO Using network Socket\n"
        f"{host}:7:7 [0] NCCL INFO Channel 00/0 : 1[0] -> 0[0] [receive] via NET/Socket/0\n"
        for host in ("{0}-1", "{0}-2")
    )
    assert causes(text.format("ip-10-0-7"))[0] == "efa-absent"
    assert causes(text.format("node"))[0] == "socket-fallback"


@pytest.mark.parametrize(
    ("beneath", "above", "text"),
    [
        ("protection", "iommu-on", "DMAR: [DMA Read NO_PASID] Request device [17:00.0] fault addr 0x7 [fault reason 0x06]\n"),
        ("adapter-limits", "host-settings", "WARN: frob requires nvidia driver option FrobMapping=1\n"),
        ("launch-failed", "clock-skew", "error: Munge decode failed: Expired credential\n"),
        ("transport-retry", "interfaces-share-subnet", "IPv4: martian source 10.0.0.7 from 10.0.0.9, on dev net1\n"),
        ("no-gpu", "gpu-driver", "NVRM: GPU 0000:41:00.0: RmInitAdapter failed! (0x62:0x40:7)\n"),
        ("locked-memory", "adapter-limits", "mlx5_core 0000:3b:00.0: mlx5_cmd_out_err:7:(pid 7): CREATE_QP(0x500) op_mod(0x0) failed, status bad resource(0x5)\n"),
        ("transport-none", "port-down", "hfi1 0000:af:00.0: hfi1_0: set_link_state: current ARMED, new OFFLINE\n"),
        ("rendezvous", "model-access", "frob: 503 Server Error: Service Unavailable for url: https://frob/api\n"),
        ("fabric-manager", "sxid-fatal", "nv-fabricmanager: detected NVSwitch fatal error 7 on fid:0\n"),
    ],
)  # fmt: skip
def test_a_cause_stands_above_what_it_leads_to(beneath, above, text):
    symptoms = {
        "protection": "n1:1:2 [0] NCCL WARN NET/IB : Got completion from peer 10.0.0.7<7> with error 4, opcode 0\n",
        "no-gpu": "No devices were found\n",
        "locked-memory": "n1:1:2 [0] NCCL WARN Call to ibv_create_qp failed\n",
        "transport-none": "n7.7 PSM2 was unable to open endpoint\n",
        "rendezvous": "retrieving ncclUniqueId from [0] via store, but store->get('0') got error: Connection reset by peer\n",
        "adapter-limits": "frob.cpp:7: NULL value mlx5dv_devx_alloc_uar failed with error 121\n",
        "launch-failed": "error: slurm_receive_msg: Protocol authentication error\n",
        "transport-retry": "n1:1:2 [0] NCCL WARN NET/IB : Got completion from peer 10.0.0.9<7> with error 12, opcode 0\n",
        "fabric-manager": "Failed to start NVIDIA fabric manager service.\n",
    }
    found = answer(text + symptoms[beneath]).findings[0]
    assert (found.id, {below.id for below in found.consequences}) == (above, {beneath})


def matrix(alone: int) -> str:
    """`nvidia-smi topo -m` of four GPUs of which the last `alone` have no NVLink."""
    names = [f"GPU{n}" for n in range(4)]
    rows = [
        [a] + ["X" if a == b else "PHB" if max(i, j) >= 4 - alone else "NV12" for j, b in enumerate(names)]
        for i, a in enumerate(names)
    ]
    return "\n".join("\t".join(row) for row in [["", *names, "CPU Affinity"], *rows]) + "\n"


@pytest.mark.parametrize(("alone", "found"), [(0, []), (1, ["nvlink-degraded"]), (2, [])])
def test_a_gpu_alone_without_nvlink_is_told_and_pairs_of_bridges_are_not(alone, found):
    assert causes(matrix(alone)) == found


@pytest.mark.parametrize(("speed", "found"), [(100000, []), (50000, ["link-slow"]), (25000, ["link-slow"])])
def test_a_port_far_below_what_it_advertises_is_told(speed, found):
    text = f"""
    Settings for ens7f1np1:
    \tSupported link modes:   25000baseCR/Full
    \t                        100000baseCR4/Full
    \tSpeed: {speed}Mb/s
    \tLink detected: yes
    """
    assert causes(textwrap.dedent(text)) == found


def test_heat_stands_above_the_gpu_that_it_took():
    text = "[1.0] NVRM: GPU 0000:5e:00.0: GPU temperature exceeds critical threshold, shutting down\n"
    found = answer(text + "[1.1] NVRM: Xid (PCI:0000:5e:00): 79, pid=1, GPU has fallen off the bus.\n").findings
    assert found[0].id == "gpu-hot"
    assert found[0].consequences[0].id == "gpu-lost"


def test_a_warning_of_a_server_that_came_up_is_nothing_to_look_for():
    warning = "WARNING 07-01 10:00:00 [frob.py:9] frobs were given in an odd order\n"
    assert answer(warning).verdict == "not enough evidence"
    assert answer(warning + "INFO:     Application startup complete.\n").verdict == "clean"


def test_a_vague_word_for_a_failed_connection_does_not_stand_above_what_says_why():
    text = "[1.5] [n1:3:0] sock.c:9 UCX  ERROR connect(fd=3, dest_addr=192.0.2.1:7) failed: Connection timed out\n"
    assert causes(text + "[n1:3] pml_ucx.c:9  Error: ucp_ep_create(proc=7) failed: Destination is unreachable\n")[
        0
    ] == ("connect-refused")


TABLE = """\
| NVIDIA-SMI 550.90.07              Driver Version: 550.90.07      CUDA Version: 12.4     |
|   0  NVIDIA H100 80GB HBM3          On  |   00000000:1B:00.0 Off |                    0 |
| N/A   31C    P0              {power:>4}W / 700W |      4MiB / 81559MiB |      0%      Default |
|   1  NVIDIA H100 80GB HBM3          On  |   00000000:43:00.0 Off |               {errors:>6} |
"""


@pytest.mark.parametrize(
    ("errors", "power", "wanted"),
    [("0", "71", []), ("3", "71", ["gpu-memory"]), ("N/A", "71", []), ("0", "ERR!", ["gpu-hardware"])],
)
def test_the_plain_table_counts_errors_of_memory_and_shows_what_cannot_be_read(errors, power, wanted):
    assert causes(TABLE.format(errors=errors, power=power))[:1] == wanted


QUERIED = """\
GPU {bus}
    GPU Recovery Action                                : None
    PCI
        GPU Link Info
            Link Width
                Max                                    : 16x
                Current                                : {lanes}x
    Clocks Event Reasons
        SW Power Cap                                   : Active
        HW Thermal Slowdown                            : {hot}
    ECC Errors
        Volatile
            DRAM Uncorrectable                         : 0
        Aggregate
            DRAM Uncorrectable                         : 2
"""


def queried(*gpus: tuple[int, str]) -> list[tuple[str, Severity]]:
    rows = [
        QUERIED.format(bus=f"00000000:{number + 16:02X}:00.0", lanes=lanes, hot=hot)
        for number, (lanes, hot) in enumerate(gpus)
    ]
    found = answer("Attached GPUs : 2\n" + "".join(rows)).findings
    return [(one.id, one.severity) for one in found if one.severity > Severity.NOTE]


def test_lanes_that_one_gpu_lacks_are_a_fault_and_those_that_all_lack_a_question():
    cool = "Not Active"
    assert queried((16, cool), (16, cool)) == []  # errors of a GPU's life, and a power cap, are none
    assert queried((16, cool), (8, cool)) == [("pci-narrow", Severity.WARNING)]
    assert queried((8, cool), (8, cool)) == [("pci-narrow", Severity.QUESTION)]
    assert queried((16, cool), (16, "Active")) == [("gpu-hot", Severity.WARNING)]


def test_capabilities_of_a_device_without_a_name_are_read():
    narrow = "\t\tLnkSta:\tSpeed 8GT/s (ok), Width x4 (downgraded)\n\t\t\tTrErr- Train- SlotClk+\n"
    assert causes(narrow) == ["pci-narrow"]
    assert (
        causes(
            "\t\tLnkCap:\tPort #0, Speed 16GT/s, Width x16\n\t\tLnkSta:\tSpeed 2.5GT/s (downgraded), Width x16\n"
        )
        == []
    )


def test_the_last_gpu_of_a_list_of_links_may_have_been_cut():
    def links(*counts: int) -> str:
        return "".join(
            f"GPU {gpu}: NVIDIA H100 (UUID: GPU-{gpu})\n"
            + "".join(f"\t Link {n}: 26.562 GB/s\n" for n in range(count))
            for gpu, count in enumerate(counts)
        )

    assert causes(links(18, 18, 5)) == []
    assert causes(links(18, 5, 18))[0] == "nvlink-inactive"


def test_a_module_s_own_alarm_of_ethtool_is_a_fault_of_the_module():
    text = """\
\tIdentifier                                : 0x11 (QSFP28)
\tModule temperature high alarm             : Off
\tLaser rx power low alarm   (Channel 2)    : {}
"""
    assert causes(text.format("Off")) == []
    assert causes(text.format("On"))[0] == "module-fault"


@given(frames=st.integers(100, 10**6), packets=st.integers(1, 10**15))
def test_frames_that_arrived_damaged_are_held_against_the_packets(frames, packets):
    text = f"# ethtool -S eth5 | grep -v ' 0'\n     rx_packets_phy: {packets}\n     rx_crc_errors_phy: {frames}\n"
    found = answer(text).findings
    assert [one.id for one in found] == (["link-errors"] if frames >= 1e-7 * packets else [])
    assert all(fact.subject.device == "eth5" for fact in read_text(text).of("port.counter"))


def test_counters_of_rdma_are_read_on_the_lines_below_their_port():
    text = "link mlx5_0/1 state ACTIVE\n    out_of_sequence 0 rnr_nak_retry_err 412\n    packet_seq_err 900\n"
    assert causes(text) == ["roce-loss", "receiver-not-ready"]
    assert causes("link mlx5_0/1\n    rx_write_requests 7\n    packet_seq_err 0\n") == []


@pytest.mark.parametrize(("symbols", "severity"), [(0, None), (42, Severity.QUESTION), (4200, Severity.WARNING)])
def test_few_symbol_errors_are_a_question_and_many_a_fault(symbols, severity):
    text = f"# Port counters: Lid 5 port 1 (CapMask: 0x1400)\nSymbolErrorCounter:..............{symbols}\n"
    found = answer(text).findings
    assert [(one.id, one.severity) for one in found] == ([("link-errors", severity)] if severity else [])


@pytest.mark.parametrize("state", ["OK", "ERROR"])
def test_the_state_of_a_switch_s_parts_is_read_without_a_table(state):
    text = f"psu0.status        : OK\npsu0.dc            : OK\npsu1.status        : {state}\nfans               : OK\n"
    assert causes(text) == ([] if state == "OK" else ["switch-part"])


@pytest.mark.parametrize("spelled", ["Neighbor", "Neighbhor"])
def test_a_neighbour_that_is_away_is_found_however_the_table_is_headed(spelled):
    text = f"""\
{spelled:<11}    V     AS    MsgRcvd    MsgSent    TblVer    InQ    OutQ  Up/Down    State/PfxRcd
-----------  ---  -----  ---------  ---------  --------  -----  ------  ---------  --------------
10.0.0.1       4  65200       3995       4001         0      0       0  00:39:32               6400
10.0.0.3       4  65200          0          0         0      0       0  never              Active
"""
    assert causes(text) == ["bgp-down"]


@pytest.mark.parametrize("physical", ["POLLING", "LINK_ERROR_RECOVER", "PORT_CONFIGURATION_TRAINING"])
def test_a_port_that_tries_to_train_is_down_however_its_neighbour_does(physical):
    text = (
        f"link mlx5_0/1 state DOWN physical_state {physical}\nlink mlx5_1/1 state ACTIVE physical_state LINK_UP\n"
    )
    assert causes(text)[0] == "port-down"


def test_an_infiniband_port_that_is_linked_and_down_waits_for_a_manager_and_an_ethernet_port_does_not():
    linked = "link mlx5_7/1 {}state DOWN physical_state LINK_UP\n"
    assert (
        causes(linked.format("subnet_prefix fe80:0000:0000:0000 lid 3403 sm_lid 1 lmc 0 "))[0]
        == "no-subnet-manager"
    )


def test_errors_that_mlxlink_counts_are_errors_of_the_link():
    text = """\
Operational Info
----------------
State                           : Active
Physical state                  : LinkUp

Physical Counters and BER Info
------------------------------
Symbol Errors                   : {}
Link Error Recovery Counter     : 0
"""
    assert causes(text.format(0)) == []
    assert causes(text.format(847293)) == ["link-errors"]


@pytest.mark.parametrize(
    ("field", "value", "cause"),
    [
        ("XID_ERRORS", 79, "gpu-lost"),
        ("ROW_REMAP_FAILURE", 1, "gpu-memory"),
        ("ECC_DBE_VOL_TOTAL", 2, "gpu-memory"),
        ("NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL", 4711, "nvlink-error"),
        ("GPU_TEMP", 61, ""),
        ("ECC_DBE_VOL_TOTAL", 0x7FFFFFFFFFFFFFF0, ""),  # a blank of DCGM's
    ],
)
def test_fields_of_dcgm_s_exporter_are_read(field, value, cause):
    row = '# TYPE DCGM_FI_DEV_{0} gauge\nDCGM_FI_DEV_{0}{{gpu="1",UUID="GPU-b",modelName="NVIDIA H100"}} {1}\n'
    assert causes(row.format(field, 0)) == []
    assert causes(row.format(field, value))[:1] == ([cause] if cause else [])


def test_a_link_of_a_bond_is_down_until_it_is_up_again():
    down = "[  336.603619] bond0: (slave eth1): link status definitely down, disabling slave\n"
    up = "[  345.547358] bond0: (slave eth1): link status definitely up, 40000 Mbps full duplex\n"
    assert causes(down)[0] == "port-down"
    assert causes(up + down)[0] == "port-down"
    assert [one.id for one in answer(down + up).findings if one.severity > Severity.NOTE] == []


def test_trust_is_asked_about_after_pauses_that_nobody_set():
    text = "Priority trust state: pcp\nPFC configuration:\n\tpriority 0 1 2 3\n\tenabled 0 0 0 {}\n"
    assert causes(text.format(0)) == ["no-pfc", "trust-pcp"]
    assert causes(text.format(1)) == ["trust-pcp"]


@pytest.mark.parametrize("count", [0, 13])
def test_corrected_errors_that_edac_util_counts_are_told(count):
    text = f"mc0: 0 Uncorrected Errors with no DIMM info\nmc0: {count} Corrected Errors with no DIMM info\n"
    assert causes(text) == (["host-hardware"] if count else [])
