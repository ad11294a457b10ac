"""Dumps of ibroute, dump_lfts and OpenSM: what they say, what is wrong with them, and ours read back."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from support.edits import each, edited
from support.routing_fabrics import lids_of, tree

from fabrictwin.base.errors import ConfigError
from fabrictwin.cluster.blueprint import Blueprint, Cables, HostSite, SwitchSite
from fabrictwin.fabric.compile import compile_fabric
from fabrictwin.routing.check.dump import bind, format_dump, parse_dump, read_dump
from fabrictwin.routing.engines.registry import compute
from fabrictwin.routing.engines.routing_options import Options, read_guids, read_weights
from fabrictwin.routing.graph.switches import switch_graph

# as printed for two switches with a host each, by ibroute 44.0 (LMC 1), opensm 3.3.23 and ibroute -n
IBROUTE = Path(__file__).with_name("ibroute.txt").read_text(encoding="utf-8")
OPENSM = """\
Unicast lids [0-4] of switch Lid 3 guid 0x000000000000a001 ('MF0;leaf-a:MQM8700/U1'):
0x0001 001 # Channel Adapter portguid 0x000000000000b001: 'host-a mlx5_0'
0x0002 002 # Channel Adapter portguid 0x000000000000b003: 'host-b mlx5_0'
0x0003 000 # Switch portguid 0x000000000000a001: 'MF0;leaf-a:MQM8700/U1'
0x0004 002 # Switch portguid 0x000000000000a002: 'MF0;leaf-b:MQM8700/U1'
4 lids dumped
"""
NUMBERS = """\
Unicast lids [0x0-0x4] of switch Lid 3 guid 0x000000000000a001 (leaf-a):
  Lid  Out   Destination
       Port     Info
0x0001 001
0x0002 002
0x0003 000
0x0004 002
4 valid lids dumped
"""
# the tools leave a blank at the ends of these lines
IBROUTE, NUMBERS = (
    text.replace("Info\n", "Info \n").replace("dumped\n", "dumped \n") for text in (IBROUTE, NUMBERS)
)


def pair(guids: tuple[int, int] = (0xB001, 0xB003), lids: tuple[int, ...] = (0, 0)) -> Blueprint:
    return Blueprint(
        technology="infiniband",
        hosts=tuple(
            HostSite(f"host-{'ab'[i]}", "", ("mlx5_0",), guids=(guids[i],), lids=(lids[i],)) for i in range(2)
        ),
        switches=tuple(SwitchSite(f"leaf-{'ab'[i]}", "qm8700", 40, guid=0xA001 + i) for i in range(2)),
        cables=Cables(
            *(np.array(c) for c in ([0, 1, 0], [1, 1, 2], [2, 3, 1], [1, 1, 2])),
            np.full(3, 2 * 10**11),
            np.full(3, 3000),
        ),
    )


def read(text: str, plan: Blueprint | None = None):
    fabric = compile_fabric(plan or pair())
    switches = switch_graph(fabric)
    return bind(parse_dump(text.encode().splitlines(keepends=True), "dump.txt"), fabric, switches)


def test_ibroute_with_an_lmc():
    lids, tables = read(IBROUTE)
    assert (lids.row.tolist(), lids.endpoint.tolist(), lids.lmc) == ([6, 7], [2, 4], 1)
    assert tables.lft.tolist() == [[255, 255, 1, 1, 2, 2, 0, 2], [255, 255, 2, 2, 1, 1, 2, 0]]
    assert tables.remark == ""


def test_opensm_and_one_switch_alone():
    lids, tables = read(OPENSM)
    assert (lids.row.tolist(), lids.endpoint.tolist(), lids.lmc) == ([3, 4], [1, 2], 0)
    assert tables.lft.tolist() == [[255, 1, 2, 0, 2], [255] * 5]
    assert tables.remark == "1 switches are not in the dump, leaf-b the first"


def test_without_names_lids_are_those_of_the_cluster():
    lids, tables = read(NUMBERS, pair(lids=(1, 2)))
    assert (lids.row.tolist(), lids.endpoint.tolist()) == ([3, 0], [1, 2])
    assert tables.lft[0].tolist() == [255, 1, 2, 0]
    with pytest.raises(ConfigError, match="tables that do not say whose the LIDs are"):
        read(NUMBERS)


def test_a_port_guid_may_be_its_nodes_plus_one():
    # read exactly, both GUIDs of the dump would be those of the other host
    lids, _ = read(OPENSM.replace("b003", "b002"), pair(guids=(0xB000, 0xB001)))
    assert lids.endpoint.tolist() == [1, 2]
    lids, _ = read(OPENSM.replace("b003", "b002"), pair(guids=(0xB001, 0xB002)))
    assert lids.endpoint.tolist() == [1, 2]


@each("old new message", "routing/wrong_dumps")
def test_what_is_wrong_is_one_clear_line(old, new, message):
    text = edited(IBROUTE, old, new)
    if "path" in old:
        text = text.replace("0x0005 001 : (path #2 out of 2: portguid 0x000000000000b003)", "0x0005 001")
    elif "b003" in old:
        text = text.replace(old, new)
    with pytest.raises(ConfigError) as error:
        read(text)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_half_a_file_an_empty_one_and_none(tmp_path):
    with pytest.raises(ConfigError, match="expected the end of the block of line 3"):
        read(IBROUTE[: len(IBROUTE) // 2])
    with pytest.raises(ConfigError, match="got no switch"):
        read("")
    with pytest.raises(ConfigError, match="before entries"):
        read("0x0001 001\n")
    with pytest.raises(ConfigError, match="cannot be read: No such file"):
        read_dump(tmp_path / "nothing")


@settings(max_examples=300)
@given(
    data=st.data(),
    text=st.sampled_from([IBROUTE, OPENSM, NUMBERS]),
)
def test_garbled_dumps_raise_nothing_but_the_modules_own_error(data, text):
    raw = bytearray(text.encode())
    for _ in range(data.draw(st.integers(1, 6))):
        at = data.draw(st.integers(0, len(raw) - 1))
        length = data.draw(st.integers(0, 12))
        raw[at : at + length] = data.draw(st.binary(max_size=12))
        if not raw:
            break
    _parse(bytes(raw))


@settings(max_examples=200)
@given(raw=st.binary(max_size=300))
@example(raw=b"Unicast lids [0-4] of switch Lid 3 guid 0xa001 ():\n0x \n")
@example(raw=b"0x")
def test_any_bytes_raise_nothing_but_the_modules_own_error(raw):
    _parse(raw)


def _parse(raw: bytes) -> None:
    fabric = compile_fabric(pair(lids=(1, 2)))
    wrong = ""
    try:
        bind(parse_dump(raw.splitlines(keepends=True), "dump.txt"), fabric, switch_graph(fabric))
    except ConfigError as error:
        wrong = str(error)
    assert not wrong or wrong.startswith("dump.txt")
    assert "\n" not in wrong


@pytest.mark.parametrize("lmc", [0, 2])
def test_what_is_written_reads_back_the_same(lmc):
    fabric = tree(16, 8, tiers=2)
    switches = switch_graph(fabric)
    lids = lids_of(fabric, switches, lmc)
    tables = compute(switches, lids, engine="auto", options=Options(lmc=lmc))
    lines = [f"{line}\n".encode() for line in format_dump(fabric, switches, lids, tables)]
    again_lids, again = bind(parse_dump(lines, "ours"), fabric, switches)
    assert np.array_equal(again.lft, tables.lft)
    assert (again_lids.row.tolist(), again_lids.endpoint.tolist()) == (lids.row.tolist(), lids.endpoint.tolist())
    assert again_lids.lmc == lmc


def test_root_and_weight_files(tmp_path):
    path = tmp_path / "file"
    path.write_text("# roots\n0x1000\n  1001 # the second\n\n0x1000\n")
    assert read_guids(path) == (0x1000, 0x1001)
    path.write_text("0x1000 3 20\n0x1000 4 1 # cheap\n")
    assert read_weights(path) == {(0x1000, 3): 20, (0x1000, 4): 1}


@pytest.mark.parametrize(
    ("reader", "text", "message"),
    [
        (read_guids, "0x1000\nleaf-1\n", "file:2: got 'leaf-1', expected a GUID"),
        (read_guids, "0x1000 0x1001\n", "file:1: got '0x1000 0x1001', expected one GUID a line"),
        (read_guids, "0x0\n", "file:1: got '0x0', expected a GUID"),
        (read_guids, "# nothing\n", "file: got no GUID"),
        (read_weights, "0x1000 3\n", "file:1: got '0x1000 3', expected GUID PORT WEIGHT"),
        (read_weights, "0x1000 0 3\n", "file:1: got '0', expected a port from 1 to 254"),
        (read_weights, "0x1000 1 256\n", "file:1: got '256', expected a weight from 1 to 255"),
        (read_weights, "0x1000 1 2\n0x1000 1 3\n", "file:2: got port 1 of 0x1000 twice"),
    ],
)
def test_wrong_root_and_weight_files_are_one_clear_line(tmp_path, reader, text, message):
    path = tmp_path / "file"
    path.write_text(text)
    with pytest.raises(ConfigError) as error:
        reader(path)
    assert message in str(error.value)


@pytest.mark.parametrize(("key", "value"), [("lmc", 8), ("lmc", -1), ("lanes", 0), ("lanes", 16)])
def test_options_outside_the_standard_are_errors(key, value):
    with pytest.raises(ConfigError, match=f"{key}: got {value}, expected"):
        Options(**{key: value})


def test_opensms_own_dump_tells_its_highest_lid():
    """It prints a line for each LID that leads somewhere, and at the end the highest LID of the subnet."""
    text = OPENSM.replace("0x0004 002 #", "0x0009 002 #")
    with_gaps = text.replace("4 lids", "9 lids")
    table = parse_dump(with_gaps.encode().splitlines(keepends=True), "dump").tables[0xA001]
    assert (table[9], int((table != 255).sum())) == (2, 4)
    for wrong in (text.replace("4 lids", "8 lids"), with_gaps.replace("9 lids", "9 valid lids")):
        with pytest.raises(ConfigError, match="as many as there are entries above"):
            parse_dump(wrong.encode().splitlines(keepends=True), "dump")
