"""What `up` serves of a discovered fabric is that fabric, as ibnetdiscover prints it: identities, LIDs, links."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.real_tools import JUDGED_BY_REAL_TOOLS, Up

pytestmark = JUDGED_BY_REAL_TOOLS


FILES = ["small_topo_file", pytest.param("selene.compute.txt", marks=pytest.mark.slow)]


@pytest.mark.parametrize("manage", [False, True], ids=["without a manager", "under the twin's manager"])
@pytest.mark.parametrize("file", FILES)
def test_a_discovered_fabric_is_served_back_byte_for_byte(file, manage, tmp_path, shared):
    """From the node that the file names, which is where programs run that name none."""
    found = shared / "data" / "ibnetdiscover" / file
    cluster = tmp_path / "cluster.yaml"
    cluster.write_text(f"ibnetdiscover: {found}\n")
    with Up(cluster, tmp_path, manage=manage) as up:
        printed = up.tool("ibnetdiscover", host="", timeout=300)
        again = up.tool("ibnetdiscover", "-o", "8", host="", timeout=300)
    assert printed.splitlines()[2:] == found.read_text().splitlines()[2:]  # the second line is the date
    assert sorted(again.splitlines()[2:]) == sorted(printed.splitlines()[2:])


def test_a_program_elsewhere_is_answered_at_once(tmp_path, shared):
    cluster = tmp_path / "cluster.yaml"
    cluster.write_text(f"ibnetdiscover: {shared / 'data' / 'ibnetdiscover' / 'small_topo_file'}\n")
    with Up(cluster, tmp_path, manage=False) as up:
        printed = up.tool("ibnetdiscover", host="H-0c42a103008b40d1")
        assert all(client is None or client.order is None for client in up.endpoint.clients)
    assert "Initiated from node 0c42a103008b40d1" in printed
    assert printed.count("switchguid=") == 2


def test_opensm_finds_itself_where_ports_do_not_count_on_from_their_node(tmp_path, shared):
    cluster = tmp_path / "cluster.yaml"
    cluster.write_text(f"ibnetdiscover: {shared / 'data' / 'ibnetdiscover' / 'small_topo_file'}\n")
    with Up(cluster, tmp_path, manage=False) as up:
        log: Path = up.opensm("H-0c42a103008b40d0")
        assert "ERR" not in log.read_text()
        assert "0x000000000c42a103008b40d0" not in log.read_text()
        sminfo = up.tool("sminfo", host="H-0c42a103008b40d1")
    assert "0xc42a103008b40d0" in sminfo
    assert "lid 101 " in sminfo  # the file's LID, which a manager keeps
