"""Targets of `fuzz.py`: files that other programs write or read."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path

from fuzzing.target import ROOT, Target, folder, of_file, of_text


def _traffic() -> Target:
    from fabrictwin.tools.traffic.connection_matrix import read_traffic

    samples = [
        b"Nodes 4\nConnections 2\n0->1 id 1 start 0 size 2000000\n2->3 id 2 start 5 size 4096\n",
        b"Nodes 4\nConnections 3\nTriggers 1\n0->1 id 1 start 0 size 100 send_done_trigger 1\n1->2 id 2 trigger 1 size 9\n"
        b"2->3 id 3 trigger 1 size 9\ntrigger id 1 oneshot\n",
        b"Nodes 8\nConnections 2\nTriggers 1\n0->1 id 1 start 0 size 10 recv_done_trigger 1\n1->0 id 2 trigger 1 size 10\n"
        b"trigger id 1 barrier count 1\n",
    ]
    return Target(samples, of_file("flows.cm", read_traffic))


_IBNETDISCOVER = b"""vendid=0x2c9
devid=0xd2f0
sysimgguid=0x51
switchguid=0x51(51)
Switch\t41 "S-0000000000000051"\t\t# "MF0;leaf-1:MQM8700/U1" enhanced port 0 lid 1 lmc 0
[1]\t"H-00000000000000a1"[1](a1) \t\t# "box-1 mlx5_0" lid 11 4xHDR
[2]\t"H-00000000000000a2"[1](a2) \t\t# "box-2 mlx5_0" lid 12 4xHDR

vendid=0x2c9
devid=0x1b
sysimgguid=0xa1
caguid=0xa1
Ca\t1 "H-00000000000000a1"\t\t# "box-1 mlx5_0"
[1](a1) \t"S-0000000000000051"[1]\t\t# lid 11 lmc 0 "MF0;leaf-1:MQM8700/U1" lid 1 4xHDR

caguid=0xa2
Ca\t1 "H-00000000000000a2"\t\t# "box-2 mlx5_0"
[1](a2) \t"S-0000000000000051"[2]\t\t# lid 12 lmc 0 "MF0;leaf-1:MQM8700/U1" lid 1 4xHDR
"""


def _ibnetdiscover() -> Target:
    from fabrictwin.cluster.importers.bindings import import_ibnetdiscover

    def read(path: Path) -> None:
        import_ibnetdiscover(path, bind=["box-*=dgx-a100"])

    return Target([_IBNETDISCOVER], of_file("net.txt", read))


def _bindings() -> Target:
    from fabrictwin.cluster.importers.bindings import import_ibnetdiscover

    path = folder() / "bound.txt"
    path.write_bytes(_IBNETDISCOVER)

    def read(text: str) -> None:
        bind, _, rest = text.partition(" ")
        switch, _, length = rest.partition(" ")
        import_ibnetdiscover(path, bind=[bind], switch=[switch] if switch else [], host_cable=length or "3 m")

    return Target([b"box-*=dgx-a100,mlx5_0=mlx5_1 leaf-*=qm8700 3 m", b"*=dgx-h100,mlx5_0=0"], of_text(read))


_XML = b"""<system version="1">
  <cpu numaid="0" affinity="ffff" arch="x86_64" vendor="GenuineIntel" familyid="6" modelid="143">
    <pci busid="0000:17:00.0" class="0x060400" vendor="0x1000" device="0xc030" link_speed="32.0 GT/s PCIe" link_width="16">
      <pci busid="0000:18:00.0" class="0x020700" vendor="0x15b3" device="0x1021" link_speed="32.0 GT/s PCIe" link_width="16">
        <nic><net name="mlx5_0" dev="0" speed="400000" port="1" latency="0" guid="0x1" maxconn="131072" gdr="1"/></nic>
      </pci>
      <pci busid="0000:1b:00.0" class="0x030200" vendor="0x10de" device="0x2330" link_speed="32.0 GT/s PCIe" link_width="16">
        <gpu dev="0" sm="90" rank="0" gdr="1"><nvlink target="0000:05:00.0" count="18" tclass="0x068000"/></gpu>
      </pci>
    </pci>
  </cpu>
</system>
"""


def _nccl_xml() -> Target:
    from fabrictwin.cluster.importers.nccl_host import host_of_xml
    from fabrictwin.cluster.spec.cluster_section import NcclXml

    def read(path: Path) -> None:
        from fabrictwin.catalog import answers

        host_of_xml(NcclXml(file=path.name), path.parent)
        answers._defined.clear()

    return Target([_XML], of_file("system.xml", read))


def _nccl_settings() -> Target:
    from fabrictwin.nccl.settings.settings import read_conf, read_settings

    def read(path: Path) -> None:
        release, _, text = path.read_bytes().decode("utf-8", "replace").partition("\n")
        path.write_text(text, encoding="utf-8", errors="replace")
        read_settings(read_conf(path), release=release)

    samples = [
        b"2.21.5\nNCCL_ALGO=Ring,Tree\nNCCL_PROTO=^LL\nNCCL_IB_HCA==mlx5_0:1,mlx5_1\nNCCL_DEBUG=INFO\n",
        b"2.30.7\nNCCL_BUFFSIZE=4194304\nNCCL_MIN_NCHANNELS=0x10\nNCCL_THREAD_THRESHOLDS=1 2 3\nNCCL_P2P_LEVEL=SYS\n",
        b"v2.18.3-1\nNCCL_DEBUG_SUBSYS=^ALL,GRAPH\nNCCL_SOCKET_IFNAME=^eth\nNCCL_NET_GDR_LEVEL=PIX\nNCCL_NTHREADS=512\n",
    ]
    return Target(samples, of_file("nccl.conf", read))


_DUMP = b"""Unicast lids [0x0-0x5] of switch Lid 7 guid 0x000000000000a002 (MF0;leaf-b:MQM8700/U1):
  Lid  Out   Destination
     Port     Info
0x0001 005 : (Switch portguid 0x000000000000a001: 'MF0;leaf-a:MQM8700/U1')
0x0002 000 : (Switch portguid 0x000000000000a002: 'leaf-b')
0x0003 001 : (Channel Adapter portguid 0x00000000000000b3: 'box-1 mlx5_0')
3 valid lids dumped
"""


def _dump() -> Target:
    from fabrictwin.routing.check.dump import read_dump

    return Target([_DUMP], of_file("lft.txt", read_dump))


def _partitions() -> Target:
    from fabrictwin.subnet.manager.settings.partitions import Everybody, read_partitions

    everybody = Everybody(frozenset({0xA1, 0xA2, 0xA3}), frozenset({0x51}), frozenset({0xA1}))
    samples = [
        b"Default=0x7fff, ipoib : ALL=limited, SELF=full ;\n",
        b"jobs=0x8001, indx0, ipoib, defmember=full, rate=7, mtu=5, sl=1 :\n  0xa1, 0xa2=limited,\n  ALL_CAS=both; # end\n",
    ]
    return Target(samples, of_file("partitions.conf", lambda path: read_partitions(path, everybody)))


def _qos() -> Target:
    from fabrictwin.subnet.manager.settings.qos import read_qos

    samples = [
        b"qos_max_vls 4\nqos_high_limit 10\nqos_vlarb_high 0:64,1:64\nqos_vlarb_low 0:4,1:8\n"
        b"qos_sl2vl 0,1,2,3,0,1,2,3,0,1,2,3,0,1,2,3\n"
    ]
    return Target(samples, of_file("qos.conf", read_qos))


def _guid2lid() -> Target:
    from fabrictwin.subnet.manager.sweep.lids import read_guid2lid

    samples = [b"0x0002c90300000001 0x0001 0x0001\n0x0002c90300000002 0x0004 0x0007\n# end\n"]
    return Target(samples, of_file("guid2lid", read_guid2lid))


def _routing_files() -> Target:
    from fabrictwin.routing.engines.routing_options import read_guids, read_weights

    def read(path: Path) -> None:
        (read_weights if re.search(rb"^\S+ +\d", path.read_bytes()) else read_guids)(path)

    samples = [
        b"0x0c42a103002559fe\n0c42a103002559ff # top\n",
        b"0x0c42a103002559fe 1 10\n0x0c42a103002559fe 254 100\n",
    ]
    return Target(samples, of_file("guids", read))


def _tables() -> Target:
    from fabrictwin.study.jitter.published_jitter import _rows, number
    from fabrictwin.study.jitter.stragglers import read_statistics

    def read(path: Path) -> None:
        read_statistics(path.parent)
        for row in _rows(path):
            number(row, "value", path)

    def of_bytes(data: bytes) -> None:
        own = folder() / f"{os.getpid()}-tables"
        own.mkdir(exist_ok=True)
        (own / "stragglers.csv").write_bytes(data)
        read(own / "stragglers.csv")

    return Target([b"# from\nkey,value,unit,what\nslow,0.4,share,of jobs\nlong,1.2,times,'a step'\n"], of_bytes)


def _roce_modes() -> Target:
    from fabrictwin.tools.rdma import roce_mode

    def of_bytes(data: bytes) -> None:
        cluster = folder() / f"{os.getpid()}-modes.yaml"
        roce_mode.file_of(cluster).write_bytes(data)
        roce_mode.read(cluster)

    return Target([b"host-0 mlx5_0 v1\nhost-1 mlx5_0 v2\n"], of_bytes)


def _published() -> Target:
    """A file of a folder of published measurements, as `validate --data` takes it: its name first, then itself."""
    import shutil

    from fabrictwin.study.jitter.published_jitter import read_published as read_jitter
    from fabrictwin.validation.collective_series import read_published as read_series
    from fabrictwin.validation.published_data import read_data
    from fabrictwin.validation.served_models import read_measured as read_served
    from fabrictwin.validation.sockets.socket_rows import read_sockets
    from fabrictwin.validation.turned_off import read_tests

    own = folder() / f"{os.getpid()}-published"
    shutil.copytree(ROOT / "validation", own)
    whole = {path.name: path.read_bytes() for path in sorted(own.iterdir())}
    readers = {
        "collectives": read_series,
        "jitter": read_jitter,
        "sockets": read_sockets,
        "turned_off": read_tests,
        "serving": read_served,
    }

    def read(data: bytes) -> None:
        first, _, text = data.partition(b"\n")
        name = first.decode("ascii", "replace")
        name = name if name in whole else "training.csv"
        (own / name).write_bytes(text)
        try:
            readers.get(name.partition(".")[0], read_data)(own)
        finally:
            (own / name).write_bytes(whole[name])

    small = {name: text for name, text in whole.items() if name.partition(".")[0] in {*readers, "training"}}
    return Target([name.encode() + b"\n" + _short(name, text) for name, text in small.items()], read)


def _short(name: str, text: bytes) -> bytes:
    """Return the beginning of a table: inputs are quick, and each of its columns is met often."""
    return b"".join(text.splitlines(keepends=True)[:30]) if name.endswith(".csv") else text


def _calibration() -> Target:
    """A file that `calibrate` reads, or the calibration of a spec."""
    from fabrictwin.calibration.inputs import read_inputs
    from fabrictwin.cluster.spec.spec import load_spec

    spec = folder() / f"{os.getpid()}-calibrated.yaml"

    def read(path: Path) -> None:
        if path.read_bytes()[:6] != b"schema":
            read_inputs([path])
            return
        text = (ROOT / "examples" / "laptop.yaml").read_text().replace("models/", f"{ROOT}/examples/models/")
        spec.write_text(f"{text}\ncalibration: {path}\n")
        load_spec(spec)

    samples = [
        b"# Collective test starting: all_reduce_perf\n#  Rank  0 Group  0 Pid  4000 on host-0 device 0 [0x1b] H100\n"
        b"#       size count type redop root time\n 8 2 float sum -1 16.98 0.00 0.00 N/A 16.98 0.00 0.00 N/A\n",
        b'{"traceEvents": [{"name": "ProfilerStep#3", "ph": "X", "ts": 12, "dur": 400000.5}]}',
        b"gemm_dtype,m,n,k,latency_ms\nbfloat16,512,4096,4096,0.03\nfp8,1024,4096,8192,0.05\n",
        b"  RDMA_Write Bidirectional BW Test\n Number of qps   : 2\t\tTransport type : IB\n Connection type : RC\n"
        b" Mtu : 4096[B]\n Max inline data : 0[B]\n #bytes  #iterations  BW peak[MB/sec]  BW average[MB/sec]  MsgRate[Mpps]\n"
        b" 64 5000 170.1 168.2 2.8\n   Send Latency Test\n #bytes #iterations t_min[usec] t_typical[usec]\n 8 1000 1.2 1.3\n",
        b'{"test_info": {"test": "ib_write_bw", "MTU": 4096}, "results": [{"MsgSize": 64, "MsgRate": 2.5}]}',
        b"schema: 1\ncompute_share: 0.8\nproducts: {bf16: 0.9}\ncollectives: {launch_us: 9, hop: 1.2, rate: 0.9}\n"
        b"adapters: {latency_ns: 300, message_rate: 0.9}\n",
    ]
    return Target(samples, of_file("measured", read))


FORMATS: dict[str, Callable[[], Target]] = {
    "traffic": _traffic,
    "ibnetdiscover": _ibnetdiscover,
    "bindings": _bindings,
    "nccl-xml": _nccl_xml,
    "nccl-settings": _nccl_settings,
    "lft-dump": _dump,
    "partitions": _partitions,
    "qos": _qos,
    "guid2lid": _guid2lid,
    "routing-files": _routing_files,
    "tables": _tables,
    "roce-modes": _roce_modes,
    "published": _published,
    "calibration": _calibration,
}
