"""What `up` serves of a discovered fabric is that fabric, as ibnetdiscover prints it: identities, LIDs, links."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from support.real_tools import JUDGED_BY_REAL_TOOLS, Up

pytestmark = JUDGED_BY_REAL_TOOLS


def records(text: str) -> list[str]:
    """Nodes as they are printed, without the comment that gives the date; their order is the discovery's."""
    body = text.split("\n\n")[1:]
    return sorted(record.strip("\n") for record in body if record.strip())


@pytest.mark.parametrize("manage", [False, True], ids=["without a manager", "under the twin's manager"])
def test_a_discovered_fabric_is_served_back_line_by_line(manage, tmp_path, shared):
    found = shared / "data" / "ibnetdiscover" / "small_topo_file"
    text = found.read_text()
    loops = re.compile(r'\[(?:25|26|28|29)\]\t"S-0002c903007b78b0".*\n')
    path = tmp_path / "net"
    path.write_text(loops.sub("", text))
    cluster = tmp_path / "cluster.yaml"
    cluster.write_text(f"ibnetdiscover: {path}\n")
    host = "H-" + re.search(r"Initiated from node (\w+)", text)[1]
    with Up(cluster, tmp_path, manage=manage) as up:
        printed = up.tool("ibnetdiscover", host=host)
    assert records(printed) == records(path.read_text())
    assert printed.splitlines()[3] == text.splitlines()[3]  # initiated from the same node and port


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
