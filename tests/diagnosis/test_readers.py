"""Readers: what each family says becomes facts with file and line; what is unknown is named and left alone."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path

import pytest

from fabrictwin.base.errors import ConfigError
from fabrictwin.diagnosis.readers.reading import read_paths, read_text

IBLINKINFO = """\
Switch: 0x248a0703008a8500 leaf-0:
          1    1[  ] ==( 4X      106.25 Gbps Active/  LinkUp)==>       9    1[  ] "host-0 mlx5_0" ( )
          1    2[  ] ==( 1X      106.25 Gbps Active/  LinkUp)==>      10    1[  ] "host-1 mlx5_0" ( Could be 4X)
          1    3[  ] ==(                Down/ Polling)==>             [  ] "" ( )
"""
QUERY_ERRORS = """\
Errors for "leaf-0"
   GUID 0x248a0703008a8500 port 7: [SymbolErrorCounter == 812] [LinkDownedCounter == 44] [PortXmitWait == 9 (9.000)]

## Summary: 12 nodes checked, 1 bad nodes found
"""
DB_CSV = """\
START_NODES
NodeDesc,NumPorts,NodeType,NodeGUID
"leaf-0",64,2,0x248a0703008a8500
END_NODES

START_PM_INFO
NodeGUID,PortGUID,PortNumber,symbol_error_counter,link_downed_counter,port_xmit_discards
0x248a0703008a8500,0x248a0703008a8500,7,0x0,255,0
END_PM_INFO
"""
DEVINFO = """\
hca_id:	mlx5_0
	transport:			InfiniBand (0)
	fw_ver:				28.36.1010
		port:	1
			state:			PORT_INIT (2)
			max_mtu:		4096 (5)
			active_mtu:		4096 (5)
			sm_lid:			0
			link_layer:		InfiniBand
"""
GIDS = """\
DEV	PORT	INDEX	GID					IPv4  		VER	DEV
---	----	-----	---					------------  	---	---
mlx5_0	1	0	fe80:0000:0000:0000:0e42:a1ff:fe4b:6c12			v1	eth2
mlx5_0	1	1	fe80:0000:0000:0000:0e42:a1ff:fe4b:6c12			v2	eth2
"""
ETHTOOL = """\
NIC statistics:
     rx_discards_phy: 51234
     tx_prio3_pause: 99120
     rx_prio3_buf_discard: 5000
     link_down_events_phy: 1
"""
QOS = """\
DCBX mode: OS controlled
Priority trust state: pcp
Cable len: 7
PFC configuration:
	priority    0   1   2   3   4   5   6   7
	enabled     0   0   0   1   0   0   0   0
"""
TOPO = """\
	GPU0	GPU1	GPU2	NIC0	CPU Affinity
GPU0	 X 	NV18	NV18	PIX	0-31
GPU1	NV18	 X 	NV18	SYS	0-31
GPU2	NV18	NV18	 X 	SYS	0-31
NIC0	PIX	SYS	SYS	 X
"""
LSPCI = """\
18:00.0 PCI bridge: Broadcom / LSI PEX890xx PCIe Gen 5 Switch (rev b0) (prog-if 00 [Normal decode])
	Capabilities: [148 v1] Access Control Services
		ACSCtl:	SrcValid+ TransBlk- ReqRedir+ CmpltRedir+ UpstreamFwd+ EgressCtrl- DirectTrans-
19:00.0 Infiniband controller: Mellanox Technologies MT2910 Family [ConnectX-7]
		LnkCap:	Port #0, Speed 32GT/s, Width x16, ASPM not supported
		LnkSta:	Speed 32GT/s (ok), Width x8 (downgraded)
"""
RAS_JSON = json.dumps(
    {
        "nccl_version": "2.28.9",
        "communicators": [{
            "hash": "abc", "size": 3, "missing_ranks": [{"rank": 2, "host": "h2", "pid": 7, "considered_dead": True}],
            "ranks": [{"rank": r, "host": "h", "status": {"init_state": "RUNNING"},
                       "collective_counts": {"AllReduce": 640 + r}} for r in range(2)],
        }],
    }
)  # fmt: skip
WATCHDOG = (
    "[rank3]:[E1122 20:11:56.000 ProcessGroupNCCL.cpp:616] [Rank 3] Watchdog caught collective operation timeout: "
    "WorkNCCL(SeqNum=42, OpType=ALLREDUCE, NumelIn=1024, NumelOut=1024, Timeout(ms)=600000) ran for 600001 ms\n"
)

FACTS = [
    ("iblinkinfo", IBLINKINFO, "fabric.could-be", "leaf-0/2", "4X", 3),
    ("ibqueryerrors", QUERY_ERRORS, "port.counter", "leaf-0/7", ("LinkDowned", 44), 2),
    ("db_csv", DB_CSV, "port.counter", "leaf-0/7", ("LinkDowned", 255), 8),
    ("ibv_devinfo", DEVINFO, "hca.state", "mlx5_0/1", "Initializing", 5),
    ("show_gids", GIDS, "gid", "mlx5_0/1", (1, "fe80:0000:0000:0000:0e42:a1ff:fe4b:6c12", "", "v2"), 4),
    ("ethtool", ETHTOOL, "port.counter", "port", ("rx_discards_phy", 51234), 2),
    ("mlnx_qos", QOS, "qos.trust", "", "pcp", 2),
    ("mlnx_qos pfc", QOS, "qos.pfc", "", (3,), 6),
    ("topo -m", TOPO, "smi.path", "GPU0", ("NIC0", "PIX"), 2),
    ("lspci acs", LSPCI, "pci.acs", "0000:18:00.0", "CmpltRedir ReqRedir SrcValid UpstreamFwd", 3),
    ("lspci width", LSPCI, "pci.downgraded", "0000:19:00.0", ("nic", 32.0, 8, 32.0, 16), 6),
    ("watchdog", WATCHDOG, "watchdog", "rank 3", ("", 42, "ALLREDUCE", 1024, 1024, 600000), 1),
    ("ulimit", "max locked memory       (kbytes, -l) 64\n", "limit.locked", "", 65536, 1),
    ("shm", "shm              64M     0   64M   0% /dev/shm\n", "limit.shm", "", 64 << 20, 1),
    ("xid", "[  12.345678] NVRM: Xid (PCI:0000:0f:00): 79, pid=1, GPU has fallen off\n", "xid", "GPU 0000:0f:00", 79, 1),
    ("rdma link", "link mlx5_0/1 state DOWN physical_state POLLING netdev eth2\n", "hca.state", "mlx5_0/1", "Down", 1),
    ("env", "NCCL_IB_DISABLE=1\n", "nccl.setting", "", ("NCCL_IB_DISABLE", "1"), 1),
]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "kind", "about", "value", "line"), [f[1:] for f in FACTS], ids=[f[0] for f in FACTS]
)
def test_a_fact_has_its_subject_value_and_line(text, kind, about, value, line):
    found = [fact for fact in read_text(text, name="file").of(kind) if fact.value == value]
    assert [(str(fact.subject), fact.place.file, fact.place.line) for fact in found[:1]] == [(about, "file", line)]


def test_json_of_ras_is_read(tmp_path: Path):
    file = tmp_path / "ras.json"
    file.write_text(RAS_JSON)
    evidence = read_paths([file])
    assert [(fact.subject.rank, fact.parts[1]) for fact in evidence.of("ras.count")] == [(0, 640), (1, 641)]
    assert evidence.of("ras.dead")[0].subject.host == "h2"


def test_files_of_unknown_formats_are_named_and_left_alone(tmp_path: Path):
    (tmp_path / "a.bin").write_bytes(bytes(range(256)) * 40)
    (tmp_path / "b.txt").write_text("Dear diary,\nnothing happened.\n")
    (tmp_path / "c.json").write_text('{"a": 1}')
    (tmp_path / "d.txt").write_text("")
    evidence = read_paths([tmp_path])
    assert [Path(name).name for name, _ in evidence.unread] == ["a.bin", "b.txt", "c.json", "d.txt"]
    assert evidence.read == []


def test_a_file_that_is_not_there_is_one_clear_error(tmp_path: Path):
    with pytest.raises(ConfigError, match="no such file"):
        read_paths([tmp_path / "none.log"])


@pytest.mark.parametrize("prefix", ["[1,0]<stdout>:", "[ 12.345678] ", "{rank 0} "])
def test_a_log_that_begins_with_a_bracket_is_read_by_lines(prefix, tmp_path: Path, monkeypatch):
    monkeypatch.setattr("fabrictwin.diagnosis.readers.reading.MAX_WHOLE", 100)
    file = tmp_path / "a.log"
    file.write_text(f"{prefix}a:1:2 [0] NCCL INFO Bootstrap : Using eth0:10.0.0.1<0>\n" * 10)
    evidence = read_paths([file])
    assert evidence.unread == []
    assert evidence.of("nccl.bootstrap")[0].count == 10


def test_hosts_are_the_folders_of_an_archive(tmp_path: Path):
    for host in ("n0", "n1"):
        (tmp_path / host).mkdir()
        (tmp_path / host / "limits.txt").write_text("max locked memory       (kbytes, -l) 64\n")
    with tarfile.open(tmp_path / "all.tar", "w") as archive:
        archive.add(tmp_path / "n0", "n0")
        archive.add(tmp_path / "n1", "n1")
    assert read_paths([tmp_path / "all.tar"]).hosts() == ["n0", "n1"]
    assert read_paths([tmp_path / "n0", tmp_path / "n1"]).hosts() == []


def test_a_log_may_hold_several_formats_one_after_the_other():
    evidence = read_text("$ ibv_devinfo\n" + DEVINFO + "\n$ lspci\n" + LSPCI + "\n$ ethtool\n" + ETHTOOL)
    assert set(evidence.read[0][1]) == {"ibv_devinfo", "lspci", "ethtool"}


def test_a_line_without_an_end_does_not_fill_memory(tmp_path: Path):
    file = tmp_path / "long.log"
    file.write_bytes(b"a:1:2 [0] NCCL INFO " + b"x" * 5_000_000)
    assert read_paths([file]).unread or read_paths([file]).read


def test_a_line_of_a_table_with_an_old_end_of_line_in_it_is_passed_over():
    table = "START_PM_INFO\nNodeGUID,PortNumber,PortXmitWaitExt\n0x1,7\r,255\n0x1,8,9\nEND_PM_INFO\n"
    found = read_text(table)
    assert {
        fact.subject.port for fact in found.of("port.counter", "port.wait", "counter") if fact.subject.port
    } == {"8"}
