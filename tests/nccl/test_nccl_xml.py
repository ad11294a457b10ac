"""NCCL's topology XML: machines come in as hosts, hosts go out as files, and no file does harm."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fabrictwin import catalog
from fabrictwin.base.errors import ConfigError
from fabrictwin.cluster.build_blueprint import build
from fabrictwin.cluster.importers.nccl_host import host_of_xml
from fabrictwin.cluster.importers.nccl_xml import MAX_BYTES, parse_topology
from fabrictwin.cluster.spec.cluster_section import NcclXml
from fabrictwin.cluster.spec.spec import load_cluster, read_spec
from fabrictwin.nccl.communicator.communicator import Algorithm, PathType, initialise
from fabrictwin.nccl.topology.detect import detect, system_of
from fabrictwin.nccl.topology.system import Kind, LinkClass, NetPort, System
from fabrictwin.nccl.topology.topology_xml import to_xml
from fabrictwin.twin import Twin

SMALL = """<system version="1">
  <cpu numaid="0" arch="x86_64" vendor="GenuineIntel" familyid="6" modelid="143">
    <pci busid="0000:01:00.0" class="0x060400" link_speed="32.0 GT/s PCIe" link_width="16">
      <pci busid="0000:02:00.0" class="0x030200" link_speed="32.0 GT/s PCIe" link_width="16">
        <gpu dev="0" sm="90" rank="0" gdr="1"><nvlink target="0000:05:00.0" count="6" tclass="0x030200"/></gpu>
      </pci>
      <pci busid="0000:03:00.0" class="0x020700" link_speed="16.0 GT/s PCIe" link_width="8">
        <nic><net name="mlx5_7" dev="0" speed="200000" port="1" gdr="1"/></nic>
      </pci>
    </pci>
    <pci busid="0000:05:00.0" class="0x030200" link_speed="2.5 GT/s PCIe" link_width="16">
      <gpu dev="1" sm="90" rank="1" gdr="1"><nvlink target="0000:02:00.0" count="6" tclass="0x030200"/></gpu>
    </pci>
  </cpu>
</system>
"""


def cluster(machine: dict[str, Any], count: int = 2, switch: str = "qm9700") -> Twin:
    network = {"technology": "infiniband", "switch": switch, "topology": {"kind": "rail-optimised"}}
    hosts = {"nccl_xml": machine, "count": count}
    read = read_spec({"schema": 1, "name": "test", "cluster": {"hosts": hosts, "network": network}})
    return Twin(build(read.cluster, spec=read))


def one_line_at_most(read: Callable[[], object]) -> bool:
    """Return True where something is read, or refused in one line."""
    try:
        read()
    except ConfigError as error:
        return len(str(error).splitlines()) == 1
    return True


def system_of_file(path: Path, **hints: Any) -> tuple[System, catalog.Host]:
    host = catalog.host(host_of_xml(NcclXml(file=path.name, **hints), path.parent))
    ports = tuple(NetPort(bw=catalog.nic(nic.type).port_rate.value / 8e9) for nic in host.nics)
    return system_of(host.name, ports), host


def test_a_file_says_what_hangs_where(tmp_path: Path) -> None:
    path = tmp_path / "small.xml"
    path.write_text(SMALL)
    system, host = system_of_file(path)
    assert (host.gpu, host.chips["cpu"], [nic.hca for nic in host.nics]) == ("h100-sxm", "xeon-8480c", ["mlx5_7"])
    gpu0, gpu1 = system.of(Kind.GPU)
    by = {(link.source, link.to): link for link in system.links}
    assert (by[gpu0, gpu1].kind, by[gpu0, gpu1].bw) == (LinkClass.NVL, pytest.approx(6 * 20.6))
    nic = system.of(Kind.NIC)[0]
    assert by[nic, system.of(Kind.PCI)[0]].bw == 12.0  # half as wide, half as fast as the switch's
    assert by[gpu1, system.of(Kind.CPU)[0]].bw == 3.0  # what NCCL counts of 2.5 GT/s x16: 15 of its 60


@pytest.mark.parametrize("kind", ["dgx-h100", "dgx-a100", "dgx-b200", "mi300x-8", "pcie-box", "gb200-nvl72"])
def test_what_is_written_reads_back_as_the_same_file(kind: str, tmp_path: Path) -> None:
    host = catalog.host(kind)
    rate = catalog.nic(host.nics[0].type).port_rate.value / 8e9
    nvlink = catalog.gpu(host.gpu).nvlink
    reckoned = catalog.nvlink(nvlink).kernel_rate.value / 8e9
    text = to_xml(system_of(kind, (NetPort(bw=rate),) * len(host.nics)), link_gbps=reckoned)
    path = tmp_path / "host.xml"
    path.write_text(text)
    hints = {"pcie_switch": host.chips["pcie_switch"]} if host.nodes.pcie_switch else {}
    system, again = system_of_file(path, gpu=host.gpu, nic=host.nics[0].type, **hints)
    assert to_xml(system, link_gbps=reckoned) == text
    assert again.nodes.gpu == host.nodes.gpu
    assert [nic.rail for nic in again.nics] == [nic.rail for nic in host.nics]


FILES = {
    "Azure_azhpc-images_ndv4-topo.xml": ({"gpu": "a100-40", "nic": "connectx-6", "nvswitch": "nvswitch2"}, 8, 8),
    "Azure_azhpc-images_ndv5-topo.xml": ({"gpu": "h100-sxm", "nic": "connectx-7", "nvswitch": "nvswitch3"}, 8, 8),
    "aws_aws-ofi-nccl_p4d-24xl-topo.xml": ({"gpu": "a100-40", "nic": "connectx-6", "nvswitch": "nvswitch2"}, 8, 4),
    "aws_aws-ofi-nccl_g5.48xl-topo.xml": (
        {
            "gpu": "a100-40",
            "nic": "connectx-6",
            "cpu": "epyc-7742",
            "gpus": [f"0000:00:{bus}.0" for bus in ("16", "17", "18", "19", "1a", "1b", "1c", "1d")],
            "nics": ["0000:00:15.0"],
        },
        8,
        1,
    ),
}


@pytest.mark.parametrize("name", FILES)
def test_files_of_real_machines_become_hosts(name: str, shared: Path) -> None:
    hints, gpus, nics = FILES[name]
    twin = cluster({"file": str(shared / "data" / "nccl_topology" / name), **hints})
    assert (twin.fabric.gpus, len(twin.fabric.nic_node)) == (2 * gpus, 2 * nics)
    comm = initialise(twin)
    assert comm.nodes == 2
    assert comm.graphs[Algorithm.RING].channels
    one = initialise(twin, gpus)
    if "nvswitch" in hints:
        assert one.path(0, gpus - 1).type == PathType.NVL
    else:
        assert one.path(0, gpus - 1).type == PathType.SYS
    system = detect(twin.fabric, 0)
    if "p4d" in name:
        cpus = system.of(Kind.CPU)
        between = [link.bw for link in system.links if link.source in cpus and link.kind == LinkClass.SYS]
        assert between == [10.0, 10.0]  # Skylake's


def test_a_machine_in_a_cluster_file_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "machines").mkdir()
    (tmp_path / "machines" / "small.xml").write_text(SMALL)
    (tmp_path / "machines" / "cluster.yaml").write_text(
        "hosts: {nccl_xml: {file: small.xml}, count: 2}\n"
        "network: {technology: infiniband, switch: qm9700, topology: {kind: single-switch}}\n"
    )
    spec = tmp_path / "spec.yaml"
    spec.write_text("schema: 1\nname: test\ncluster: machines/cluster.yaml\n")
    read = load_cluster(spec)
    assert len(build(read.cluster, spec=read).hosts) == 2


def test_a_saved_twin_keeps_the_machine(tmp_path: Path) -> None:
    (tmp_path / "small.xml").write_text(SMALL)
    twin = cluster({"file": str(tmp_path / "small.xml")})
    twin.save(tmp_path / "twin.npz")
    assert Twin.load(tmp_path / "twin.npz").fabric.gpus == twin.fabric.gpus


BAD = {
    "cut in half": (SMALL[: len(SMALL) // 2], "cut short|no element|unclosed|mismatched|not well-formed"),
    "empty": ("", "no element found"),
    "no XML": ("hello", "syntax error"),
    "another document": ("<graphs version='1'/>", "got <graphs>"),
    "an entity": ('<!DOCTYPE s [<!ENTITY a "aaaa">]><system/>', "document type"),
    "an outside entity": ('<!DOCTYPE s SYSTEM "file:///etc/passwd"><system/>', "document type"),
    "deep": ("<system>" + "<pci>" * 100 + "</pci>" * 100 + "</system>", "deep"),
    "many": ("<system>" + "<cpu/>" * 30_000 + "</system>", "more than 20000 elements"),
    "no processor": ("<system/>", "got no <cpu>"),
    "a number": (SMALL.replace('link_width="16"', 'link_width="wide"'), "link_width: got 'wide'"),
    "a far number": (SMALL.replace('count="6"', 'count="99999999999999"'), "count: got"),
    "twice": (SMALL.replace("0000:03", "0000:02"), "earlier device"),
    "nowhere": (SMALL.replace('target="0000:05:00.0"', 'target="0000:09:00.0"'), "no GPU of the file"),
    "no adapter": (
        SMALL.replace("0x020700", "0x060400").replace("<nic>", "").replace("</nic>", ""),
        "adapter|<net>",
    ),
    "an unknown GPU": (SMALL.replace('sm="90"', 'sm="35"'), "catalog has no GPU"),
    "text": (SMALL.replace("<nic>", "<nic>hello"), "got the text"),
    "an encoding": ("<?xml version='1.0' encoding='none'?><system/>", "expected XML"),
}


@pytest.mark.parametrize("case", BAD)
def test_a_bad_file_is_one_clear_error(case: str, tmp_path: Path) -> None:
    text, words = BAD[case]
    path = tmp_path / "bad.xml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=words) as caught:
        cluster({"file": str(path)})
    assert str(path) in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1


def test_a_file_that_is_not_there_or_too_large(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no such file"):
        cluster({"file": str(tmp_path / "none.xml")})
    path = tmp_path / "large.xml"
    path.write_bytes(b" " * (MAX_BYTES + 1))
    with pytest.raises(ConfigError, match="is larger than"):
        cluster({"file": str(path)})


@given(draws=st.data())
@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_damaged_file_reads_or_is_one_clear_error(draws: st.DataObject, tmp_path: Path) -> None:
    text = SMALL
    for _ in range(draws.draw(st.integers(1, 4))):
        at = draws.draw(st.integers(0, len(text)))
        cut = draws.draw(st.integers(0, 60))
        put = draws.draw(st.sampled_from(["", "<", ">", '"', "&", "0", "-1", "<pci/>", "</cpu>", "é", "gpu", " "]))
        text = text[:at] + put + text[at + cut :]
    path = tmp_path / "damaged.xml"
    path.write_text(text)
    assert one_line_at_most(lambda: system_of_file(path))


@given(st.binary(max_size=300))
def test_any_bytes_read_or_are_one_clear_error(content: bytes) -> None:
    assert one_line_at_most(lambda: parse_topology(content, "x.xml"))


def test_the_matrix_of_a_host(tmp_path: Path) -> None:
    from fabrictwin.cli import root as app

    (tmp_path / "cluster.yaml").write_text(
        "hosts: {type: dgx-h100, count: 2}\n"
        "network: {technology: infiniband, switch: qm9700, topology: {kind: rail-optimised}}\n"
    )
    out = tmp_path / "host.xml"
    spec = str(tmp_path / "cluster.yaml")
    shown = CliRunner().invoke(app, ["topology", "matrix", spec, "--host", "host-1", "--xml", str(out)])
    assert shown.exit_code == 0, shown.output
    rows = [line.split() for line in shown.output.splitlines()]
    head, gpu0 = rows[0], rows[1]
    assert gpu0[0] == "GPU0"
    cell = dict(zip(head, gpu0[1:], strict=False))
    assert (cell["GPU0"], cell["GPU5"], cell["NIC0"], cell["NIC1"], cell["NIC7"]) == (
        "X",
        "NV18",
        "PIX",
        "NODE",
        "SYS",
    )
    assert "NODE  PCIe, and the link between host bridges" in shown.output
    assert "NIC7: mlx5_11" in shown.output
    assert parse_topology(out.read_bytes(), "host.xml").name == "system"
