"""Everything that reads what others wrote, as targets of `fuzz.py`: samples, and a call that takes bytes."""

from __future__ import annotations

import csv
import os
import re
import struct
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import fuzz_diagnosis
from fuzz_servers import SERVERS
from fuzz_sites import SITES
from fuzz_subnet import SUBNET
from fuzz_target import Target, files, folder, of_file, of_text

# ------------------------------------------------------------------ specs and what they name

_SMALL = b"""schema: 1
name: small
cluster:
  hosts: {type: dgx-h100, count: 2}
  network: {technology: infiniband, topology: {kind: fat-tree}, switch: qm9700}
workload: {training: {model: {hidden_size: 512, num_hidden_layers: 2, num_attention_heads: 8, vocab_size: 1000,
  intermediate_size: 2048}, parallel: {tp: 2}, micro_batch_size: 1, global_batch: 16, sequence: 512, precision: bf16}}
faults: [{link: host-0/mlx5_0, at: 1 ms, rate: 100 Gb/s}, {gpu: host-0/gpu0, slowdown: 1.5}]
jitter: {clocks: {deviation: 0.01}, slow: {chance: 0.1, slowdown: 1.5}}
nccl: {version: 2.21.5, NCCL_ALGO: Ring}
placement: {order: scattered, seed: 2}
run: {fidelity: packet, packet: {virtual_lanes: 2, buffer: 16 MiB}, seed: 3}
"""
_EXPLICIT = b"""schema: 1
cluster:
  technology: ethernet
  hosts: [{name: a, type: dgx-a100}, {name: b, type: dgx-a100}]
  switches: [{name: leaf-0, type: spectrum-4}, {name: leaf-1, type: spectrum-4}]
  cables:
    - a/mlx5_0 - leaf-0/1 ; 100 Gb/s ; 3 m
    - b/mlx5_0 - leaf-1/1 ; 100 Gb/s ; 3 m
    - leaf-0/5 - leaf-1/5 ; 400 Gb/s ; 20 m
"""


def _spec() -> Target:
    from fabrictwin.cluster.build_blueprint import build
    from fabrictwin.cluster.spec.spec import load_spec

    def read(path: Path) -> None:
        spec = load_spec(path)
        hosts = getattr(spec.cluster, "hosts", None) or ()
        if sum(getattr(group, "count", 1) for group in hosts) <= 64:
            build(spec.cluster, spec=spec)

    return Target([_SMALL, _EXPLICIT, *files("examples/laptop.yaml")], of_file("spec.yaml", read))


def _workload() -> Target:
    from fabrictwin.base.yamlfile import read_yaml
    from fabrictwin.runs.execute import lower_workload  # noqa: F401 (its imports are part of the start)
    from fabrictwin.workload.job.workload_section import Workload

    samples = [
        sample[sample.index(b"  training:") :].split(b"\n\n")[0]
        for sample in files("examples/l*.yaml", "examples/mix*.yaml")
        if b"training:" in sample
    ]

    def read(data: bytes) -> None:
        from pydantic import ValidationError

        found, _ = read_yaml(data.decode("utf-8", "replace"), "workload")
        try:
            Workload.model_validate(found)
        except ValidationError as error:
            from fabrictwin.base.validation_errors import config_errors

            raise config_errors(error, Workload, data=found)[0] from None

    return Target(samples, read)


def _yaml() -> Target:
    from fabrictwin.base.yamlfile import read_yaml

    samples = [_SMALL, b"a: &x [1, 2]\nb: *x\nc: 'd'\n? e\n: |\n  text\n", b"- 1e3\n- 0x1F\n- ~\n- .inf\n- -5\n"]
    return Target(samples, lambda data: read_yaml(data.decode("utf-8", "replace"), "file"))


def _catalog() -> Target:
    from fabrictwin.catalog.answers import KINDS, read_entries

    samples = []
    for kind in KINDS:
        for text in files(f"src/fabrictwin/catalog/data/{kind}.yaml"):
            entries = re.split(rb"\n(?=[\w.-]+:)", text)
            entry = b"\n".join(entries[:2])
            samples.append(kind.encode() + b"\n" + entry)
    samples += [b"host\n" + text for text in files("examples/catalog/host.yaml")]

    def read(data: bytes) -> None:
        kind, _, text = data.decode("utf-8", "replace").partition("\n")
        read_entries(text, kind=kind if kind in KINDS else "host", file="own")

    return Target(samples, read)


def _prices() -> Target:
    from fabrictwin.catalog.price_book import price_book

    samples = [
        b"hosts:\n  dgx-h100: {price: '300,000 USD', power: 10200 W}\n",
        b"site: {electricity: 0.08 USD/kWh}\n",
    ]
    return Target(samples, of_file("prices.yaml", price_book))


def _presets() -> Target:
    from fabrictwin.study.compare.fabrics import own_presets

    samples = [
        b"mine:\n  like: infiniband-ndr\n  packet: {buffer: 16 MiB}\n  link_rate: 200 Gb/s\n",
        *files("src/fabrictwin/catalog/data/fabric.yaml"),
    ]
    return Target(samples, of_file("presets.yaml", own_presets))


def _huggingface() -> Target:
    from fabrictwin.workload.model.huggingface_families import load_model

    return Target(files("examples/models/*.json"), of_file("config.json", load_model))


def _edits() -> Target:
    from fabrictwin.cluster.spec.spec import load_spec
    from fabrictwin.study.compare.vary import parse, with_value

    path = folder() / "edited.yaml"
    path.write_bytes(_SMALL)
    spec = load_spec(path)

    def read(text: str) -> None:
        key, values = parse(text)
        with_value(spec, key, values[0])

    samples = [
        b"cluster.hosts.count=8,16,32",
        b"run.seed=1",
        b"workload.training.parallel.tp=2,4",
        b"cluster.hosts[0].type=dgx-a100",
    ]
    return Target(samples, of_text(read))


# ------------------------------------------------------------------ files of other programs


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

    return Target(
        [b"# from\nkey,value,unit,what\nslow,0.4,share,of jobs\nlong,1.2,times,'a step'\n"], of_bytes, (csv.Error,)
    )


def _roce_modes() -> Target:
    from fabrictwin.tools.rdma import roce_mode

    def of_bytes(data: bytes) -> None:
        cluster = folder() / f"{os.getpid()}-modes.yaml"
        roce_mode.file_of(cluster).write_bytes(data)
        roce_mode.read(cluster)

    return Target([b"host-0 mlx5_0 v1\nhost-1 mlx5_0 v2\n"], of_bytes)


# ------------------------------------------------------------------ captures


def _captured() -> list[bytes]:
    ip = struct.pack(
        ">BBHHHBBH4s4s", 0x45, 2, 20 + 8 + 12 + 16 + 4, 1, 0, 64, 17, 0, bytes([10, 0, 0, 1]), bytes([10, 0, 0, 2])
    )
    bth = struct.pack(">BBHII", 0x0A, 0x40, 0xFFFF, 0x101, 0x80000005)
    reth = struct.pack(">QII", 0x7F0000000000, 0xABCD, 4)
    udp = struct.pack(">HHHH", 49152, 4791, 8 + 12 + 16 + 4, 0)
    frame = bytes(6) + bytes([2] * 6) + b"\x08\x00" + ip + udp + bth + reth + bytes(8)
    lrh = struct.pack(">BBHHH", 0x00, 0x02, 2, 9, 1)
    ack = struct.pack(">BBHII", 0x11, 0, 0xFFFF, 0x102, 5) + struct.pack(">I", 0x1F000001)
    link = lrh + ack + bytes(6)
    pause = (
        bytes([1, 0x80, 0xC2, 0, 0, 1]) + bytes(6) + b"\x88\x08\x01\x01" + b"\0\x08" + b"\xff\xff" * 8 + bytes(26)
    )
    samples = []
    for order in "<>":
        head = struct.pack(f"{order}IHHiIII", 0xA1B23C4D, 2, 4, 0, 0, 65535, 1)
        rows = b"".join(
            struct.pack(f"{order}IIII", 1, i, len(p), len(p)) + p for i, p in enumerate((frame, pause))
        )
        samples.append(head + rows)
    head = struct.pack("<IHHiIII", 0xA1B2C3D4, 2, 4, 0, 0, 65535, 247)
    samples.append(head + struct.pack("<IIII", 1, 2, len(link), len(link)) + link)

    def block(kind: int, body: bytes) -> bytes:
        body = body.ljust(-(-len(body) // 4) * 4, b"\0")
        return struct.pack("<II", kind, len(body) + 12) + body + struct.pack("<I", len(body) + 12)

    section = block(0x0A0D0D0A, struct.pack("<IHHq", 0x1A2B3C4D, 1, 0, -1))
    interface = block(1, struct.pack("<HHI", 1, 0, 0) + struct.pack("<HHB3xHH", 9, 1, 9, 0, 0))
    packet = block(6, struct.pack("<IIIII", 0, 0, 1000, len(frame), len(frame)) + frame)
    samples.append(section + interface + packet + packet)
    samples.append(struct.pack("<Q", 1 << 32) + struct.pack(">BBHHH", 21, 4, 16 + len(link), 0, len(link)) + link)
    return samples


def _pcap() -> Target:
    from fabrictwin.capture.flow_summary import summarise, text
    from fabrictwin.capture.reader import CaptureFile

    def read(path: Path) -> None:
        summary = summarise(CaptureFile(path))
        summary.as_json()
        text(summary)

    return Target(_captured(), of_file("capture.pcap", read))


# ------------------------------------------------------------------ values and options


def _units() -> Target:
    from fabrictwin.base import units

    parsers = [units.parse_rate, units.parse_size, units.parse_time, units.parse_length, units.parse_flops]
    return Target(
        [b"400 Gb/s", b"2 MiB", b"1.3 us", b"5 m", b"989.4 TFLOP/s", b"1_000 ns", b".5e-3 s"],
        of_text(_each(parsers)),
        (ValueError,),
    )


def _each(parsers: list[Callable[[Any], Any]]) -> Callable[[str], None]:
    def read(text: str) -> None:
        for parse in parsers:
            with suppress(ValueError):
                parse(text)

    return read


def _quantities() -> Target:
    from fabrictwin.catalog import quantities as q
    from fabrictwin.catalog.hosts import spread

    parsers = [
        q.parse_count, q.parse_identifier, q.parse_ratio, q.parse_bits, q.parse_power, q.parse_message_rate,
        q.parse_lane_rate, q.parse_capability, lambda text: list(spread([text])),
    ]  # fmt: skip
    samples = [
        b"12 links", b"0x02c9", b"256/257 * 514/544", b"92 %", b"5440 bits", b"700 W", b"215 M msg/s", b"16 GT/s", b"sm_90",
        b"gpu0..gpu7",
    ]  # fmt: skip
    return Target(samples, of_text(_each(parsers)), (ValueError,))


def _whole_numbers() -> Target:
    from fabrictwin.base.whole_numbers import read_json, whole
    from fabrictwin.cluster.names import clean_name, natural_key, parse_name, split_jack
    from fabrictwin.nccl.settings.device_filters import device_filter
    from fabrictwin.nccl.settings.variable_values import strtoll

    parsers: list[Callable[[Any], Any]] = [
        lambda text: [whole(text, base=base) for base in (0, 10, 16)],
        read_json, natural_key, clean_name, parse_name, split_jack, device_filter, strtoll,
    ]  # fmt: skip
    return Target(
        [b"12", b"0xff", b"-3", b"host-12/mlx5_0", b"=mlx5_0:1,^mlx5_1", b'{"a": [1, 2e3]}'],
        of_text(_each(parsers)),
        (ValueError,),
    )


def _nccl_tests() -> Target:
    from fabrictwin.tools.nccl_tests.perf import TESTS, Options, parse_size

    def read(text: str) -> None:
        words = text.split()
        sizes = [parse_size(word) for word in words[:3]]
        numbers = [int(word) for word in words[3:5] if word.isascii() and word.isdecimal() and len(word) < 10]
        test = next(iter(TESTS.values())) if isinstance(TESTS, dict) else TESTS[0]
        Options(
            test,
            min_bytes=sizes[0] if sizes else 8,
            max_bytes=sizes[1] if len(sizes) > 1 else 1 << 20,
            step_bytes=sizes[2] if len(sizes) > 2 else 1 << 10,
            step_factor=numbers[0] if numbers else 2,
            datatype=words[5] if len(words) > 5 else "float",
            operation=words[6] if len(words) > 6 else "sum",
        ).sizes()

    return Target([b"8 128M 1K 2 20 float sum", b"1G 16G 1.5M 1 5 bfloat16 max", b"64K 64K 8"], of_text(read))


def _perftest() -> Target:
    from fabrictwin.tools.perftest.perftest_options import PerftestOptions

    def read(text: str) -> None:
        words = text.split()
        numbers = [int(word) if re.fullmatch(r"-?[0-9]{1,18}", word) else None for word in words[4:9]]
        numbers += [None] * (5 - len(numbers))
        options = PerftestOptions(
            test=words[0] if words else "",
            source=words[1] if len(words) > 1 else "a",
            target=words[2] if len(words) > 2 else "b",
            connection=words[3] if len(words) > 3 else "RC",
            size=numbers[0],
            iterations=numbers[1],
            queue_pairs=numbers[2] if numbers[2] is not None else 1,
            tx_depth=numbers[3],
            inline=numbers[4],
        )
        for size in options.sizes(4096):
            options.rounds(size)

    return Target(
        [b"ib_write_bw a b RC 65536 1000 1 128 0", b"ib_send_lat a b UD 64 5", b"ib_atomic_bw a b RC 8 100 2 1 0"],
        of_text(read),
    )


def _configuration(kind: str) -> Callable[[], Target]:
    """A reader of a configuration's format, and the rules on what it reads."""

    def make() -> Target:
        from fabrictwin.cluster.spec.spec import read_spec
        from fabrictwin.configuration.lint.rules import lint
        from fabrictwin.configuration.policy.cluster_policy import TARGETS, configuration, plan
        from fabrictwin.configuration.readers.recognise import kind_of, read_text_as
        from fabrictwin.configuration.writers.targets import files_of

        samples: dict[str, bytes] = {}
        for technology, switch in (("ethernet", "spectrum-4"), ("infiniband", "qm9700")):
            network = {"technology": technology, "switch": switch, "topology": {"kind": "fat-tree", "tiers": 2}}
            hosts = {"type": "pcie-box", "count": 2}
            of = plan(read_spec({"schema": 1, "cluster": {"hosts": hosts, "network": network}}))
            others = ("sonic", "nvue") if technology == "infiniband" else ("opensm",)
            for target in TARGETS:
                if target not in others:
                    for file in files_of(configuration(of, target), target):
                        if kind_of(file.text) == kind:
                            samples.setdefault(f"{technology}{file.path[:12]}", file.text.encode())

        def read(text: str) -> None:
            found, problems = read_text_as(kind, text, "hosts/host-0/file")
            lint(found, problems.found)

        return Target(list(samples.values())[:6], of_text(read))

    return make


def _recognised() -> Target:
    from fabrictwin.configuration.readers.recognise import kind_of

    samples = [b"network:\n  version: 2\n", b"nv set qos roce\n", b'{"PORT": {}}', b"SwitchName=a Nodes=b[0-3]\n"]
    return Target(samples, of_text(kind_of))


CONFIGURATIONS = (
    "sonic",
    "nvue",
    "slurm",
    "k8s",
    "netplan",
    "qos-policy",
    "partitions",
    "udev",
    "script",
    "nccl",
    "grub",
    "limits",
    "container",
    "opensm",
    "guids",
    "sysctl",
    "modules",
)
# ------------------------------------------------------------------ what clusters print


def _diagnosis(name: str) -> Target:
    from fabrictwin.diagnosis.diagnose import judged
    from fabrictwin.diagnosis.readers.reading import read_paths

    def read(path: Path) -> None:
        found = judged(read_paths([path]), twin=False)
        found.as_data()

    return Target(fuzz_diagnosis.SAMPLES[name], of_file(f"{name}.txt", read))


TARGETS: dict[str, Callable[[], Target]] = {
    **{f"configuration-{kind}": _configuration(kind) for kind in CONFIGURATIONS},
    "configuration-kind": _recognised,
    "spec": _spec,
    "workload": _workload,
    "yaml": _yaml,
    "catalog": _catalog,
    "prices": _prices,
    "presets": _presets,
    "huggingface": _huggingface,
    "edits": _edits,
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
    "pcap": _pcap,
    "units": _units,
    "quantities": _quantities,
    "whole-numbers": _whole_numbers,
    "nccl-tests": _nccl_tests,
    "perftest": _perftest,
    **SUBNET,
    **SERVERS,
    **SITES,
    **{name: partial(_diagnosis, name) for name in fuzz_diagnosis.SAMPLES},
}
