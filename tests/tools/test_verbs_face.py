"""What the device tools print, and that the mode of RoCE decides what connections take."""

from __future__ import annotations

import re

import pytest
from support.verbs_ends import ALL, End

from fabrictwin import catalog
from fabrictwin.cli import main
from fabrictwin.tools.rdma import rdma_tools as face
from fabrictwin.tools.rdma import roce_mode
from fabrictwin.verbs import connect
from fabrictwin.verbs import current_host as place
from fabrictwin.verbs.adapter.gid import ROCE_V1, ROCE_V2

CLUSTER = "hosts: {{type: dgx-h100, count: 2}}\nnetwork: {{{0}, topology: {{kind: rail-optimised}}}}\n"


@pytest.fixture
def ethernet(tmp_path):
    path = tmp_path / "roce.yaml"
    path.write_text(CLUSTER.format("technology: ethernet, switch: spectrum-4"), encoding="utf-8")
    return path


@pytest.fixture
def infiniband(tmp_path):
    path = tmp_path / "ib.yaml"
    path.write_text(CLUSTER.format("technology: infiniband, switch: qm9700"), encoding="utf-8")
    return path


def printed(capsys, *arguments):
    assert main([str(a) for a in arguments]) == 0
    return capsys.readouterr().out


def test_ibv_devinfo_with_v_shows_limits_and_gids(ethernet, infiniband, capsys):
    told = printed(capsys, "ibv_devinfo", ethernet, "-d", "mlx5_0", "-v")
    short = printed(capsys, "ibv_devinfo", ethernet, "-d", "mlx5_0")
    assert set(short.splitlines()) < set(told.splitlines())
    known = catalog.verbs_device("mlx5")
    assert f"\tmax_qp:\t\t\t\t{known.max_qp.value}\n" in told
    assert f"\tmax_qp_init_rd_atom:\t\t{catalog.nic('connectx-7').max_outstanding_reads.value}\n" in told
    assert re.search(r"\tGID\[  3\]:\t\t::ffff:10\.0\.0\.1, RoCE v2", told)
    # every value of a column begins at the same tab stop
    limits = [line for line in told.expandtabs(8).splitlines() if line.startswith(" " * 8 + "max_")]
    assert {len(line) - len(line.split(":")[1].lstrip()) for line in limits} == {40}
    names = printed(capsys, "ibv_devinfo", infiniband, "--host", "host-1", "-l")
    assert names.startswith("8 HCAs found:\n\tmlx5_0\n")


def test_ibv_devinfo_and_ibstat_agree_on_an_infiniband_port(infiniband, capsys):
    told = printed(capsys, "ibv_devinfo", infiniband, "--host", "host-1")
    ids = re.findall(r"hca_id:\t(\S+)", told)
    assert len(ids) == 8
    lids = [int(lid) for lid in re.findall(r"port_lid:\t\t(\d+)", told)]
    assert len(set(lids)) == 8
    assert "link_layer:\t\tInfiniBand" in told
    stat = printed(capsys, "ibstat", infiniband, "--host", "host-1")
    assert re.findall(r"CA '(\S+)'", stat) == ids
    assert [int(lid) for lid in re.findall(r"Base lid: (\d+)", stat)] == lids
    assert set(re.findall(r"Rate: (\S+)", stat)) == {"400"}
    guids = [guid.replace(":", "") for guid in re.findall(r"node_guid:\t+(\S+)", told)]
    assert [f"0x{guid}" for guid in guids] == re.findall(r"Node GUID: (\S+)", stat)


def test_roce_devices_have_four_gids_and_no_lid(ethernet, capsys):
    told = printed(capsys, "show_gids", ethernet, "-d", "mlx5_0")
    rows = [line.split() for line in told.splitlines()[2:-1]]
    assert [row[2] for row in rows] == ["0", "1", "2", "3"]
    assert [row[-2] for row in rows] == ["v1", "v2", "v1", "v2"]
    assert rows[2][4] == "10.0.0.1"
    assert told.splitlines()[-1] == "n_gids_found=4"
    assert "port_lid:\t\t0\n" in printed(capsys, "ibv_devinfo", ethernet, "-d", "mlx5_0")
    assert printed(capsys, "ibdev2netdev", ethernet, "-d", "mlx5_0") == "mlx5_0 port 1 ==> eth1 (Up)\n"


def test_the_mode_of_roce_is_kept_and_decides_what_a_connection_takes(ethernet, capsys):
    assert printed(capsys, "cma_roce_mode", ethernet, "-d", "mlx5_0") == "RoCE v2\n"
    assert printed(capsys, "cma_roce_mode", ethernet, "-d", "mlx5_0", "-m", "1") == "IB/RoCE v1\n"
    assert printed(capsys, "cma_roce_mode", ethernet, "-d", "mlx5_0") == "IB/RoCE v1\n"
    assert printed(capsys, "cma_roce_mode", ethernet, "--host", "host-1") == "RoCE v2\n"
    world = place.use(face.open_world(ethernet).twin, engine="analytic")
    roce_mode.apply(world, ethernet)
    one, other = End("host-0"), End("host-1")
    connect(one.qp, other.qp, access=ALL)
    kinds = [end.ctx.adapter.gids[end.qp.qp.attributes.ah_attr.sgid_index].kind for end in (one, other)]
    assert kinds == [ROCE_V1, ROCE_V2]


def test_adapters_are_found_by_address(ethernet):
    world = face.open_world(ethernet)
    assert face.by_address(world, "10.0.0.9").host_name == "host-1"


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("--host", "host-7"), "host"),
        (("-d", "mlx5_2"), "did you mean"),
    ],
)
def test_wrong_names_are_told_in_one_line(infiniband, capsys, arguments, expected):
    assert main(["ibstat", str(infiniband), *arguments]) == 2
    assert expected in capsys.readouterr().err


def test_a_file_of_modes_that_is_wrong(ethernet, capsys):
    roce_mode.file_of(ethernet).write_text("host-0 mlx5_0 v3\n", encoding="utf-8")
    assert main(["show_gids", str(ethernet)]) == 2
    assert "roce-modes:1: got 'host-0 mlx5_0 v3'" in capsys.readouterr().err


def test_infiniband_has_no_mode_of_roce(infiniband, capsys):
    assert main(["cma_roce_mode", str(infiniband)]) == 2
    assert "it is InfiniBand" in capsys.readouterr().err
