"""Partitions as OpenSM's partitions.conf writes them, and what ports hold then."""

from __future__ import annotations

import random
from contextlib import suppress
from pathlib import Path

import pytest
from support.sm_fabrics import Site, two_tiers

from fabrictwin.base.errors import ConfigError
from fabrictwin.cli import OK, WRONG, main
from fabrictwin.subnet.manager.settings.manager_settings import Settings
from fabrictwin.subnet.manager.settings.partitions import Everybody, read_partitions
from fabrictwin.subnet.wire.smp import PKeyTable

EVERYBODY = Everybody(adapters=frozenset({1, 2, 3}), switches=frozenset({10, 11}), manager=frozenset({1}))


def read(tmp_path: Path, text: str):
    path = tmp_path / "partitions.conf"
    path.write_text(text)
    return read_partitions(path, EVERYBODY)


def keys(partitions, *guids: int) -> list[list[int]]:
    settings = Settings(partitions=partitions)
    return [list(settings.pkeys_of(guid)) for guid in guids]


@pytest.mark.parametrize(
    ("text", "held"),  # of the manager's port, of another adapter, of a switch
    [
        ("", [[0xFFFF], [0x7FFF], [0x7FFF]]),
        ("Default=0x7fff : ALL=full ;", [[0xFFFF], [0xFFFF], [0xFFFF]]),
        ("Default=0x7fff : ALL, SELF=full ;", [[0xFFFF], [0x7FFF], [0x7FFF]]),
        ("Default : ALL=full ; a=0x1 : 2=full, 10 ;", [[0xFFFF], [0xFFFF, 0x8001], [0xFFFF, 0x1]]),
        ("Default : ALL=full ;\na=1, defmember=full :\n  ALL_CAS,\n ALL_SWITCHES=limited ;",
         [[0xFFFF, 0x8001], [0xFFFF, 0x8001], [0xFFFF, 0x1]]),
        ("a=0x8005, indx0 : 0x2=both ; Default : ALL=full ;", [[0xFFFF], [0x8005, 0x5, 0xFFFF], [0xFFFF]]),
        ("Default:ALL=full; x : 2=full ; y=0x1 : 2=full ; z : SELF=full ;  # names without keys",
         [[0xFFFF, 0x8003], [0xFFFF, 0x8001, 0x8002], [0xFFFF]]),
        ("Default:ALL=full; a=7 : 2=full ; b=7 : 10=full ;", [[0xFFFF], [0xFFFF, 0x8007], [0xFFFF, 0x8007]]),
        ("Default : ALL=full ; empty=0x9 : ;", [[0xFFFF], [0xFFFF], [0xFFFF]]),
        ("Default : ALL=both ;", [[0xFFFF, 0x7FFF], [0xFFFF, 0x7FFF], [0xFFFF, 0x7FFF]]),
    ],
)  # fmt: skip
def test_who_holds_which_keys(tmp_path, text, held):
    assert keys(read(tmp_path, text), 1, 2, 10) == held


def test_flags_of_ipoib_are_those_of_its_group(tmp_path):
    _, one = read(
        tmp_path, "a=0x1, ipoib, rate=7, mtu=5, sl=2, scope=5, Q_Key=0x77, TClass=3, FlowLabel=9 : ALL ;"
    )
    assert one.ipoib
    group = one.broadcast
    assert (group.rate, group.mtu, group.sl, group.scope, group.qkey) == (7, 5, 2, 5, 0x77)
    assert (group.traffic_class, group.flow_label) == (3, 9)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("Default=0x7fff : ALL", r"partitions.conf:1.*does not end with ';'"),
        ("\n# a comment\nDefault=0xfffff : ALL ;", r"partitions.conf:3.*got '0xfffff'"),
        ("a=0x8000 : ALL ;", "expected 0x1 to 0x7fff"),
        ("a=0x1, ipob : ALL ;", "did you mean 'ipoib'"),
        ("a=0x1, mtu=4 : ALL ;", "got mtu without ipoib"),
        ("a=0x1, ipoib, mtu=9 : ALL ;", "expected mtu up to 0x5"),
        ("a=0x1, ipoib=1 : ALL ;", "expected ipoib without a value"),
        ("a=0x1, ipoib, sl=1, sl=2 : ALL ;", "got sl twice"),
        ("a=0x1, defmember=ful : ALL ;", "expected full, limited or both"),
        ("a=0x1 :\n  ALL=fulll ;", r"partitions.conf:2.*did you mean 'full'"),
        ("a=0x1 : ALL_CA ;", "did you mean 'ALL_CAS'"),
        ("a=0x1 : mgid=ff12:401b::1 ;", "groups of their own are left out"),
        ("a=0x1 ; b=0x2 : ALL ;", "expected 'name=0x1 : members ;'"),
    ],
)
def test_what_is_wrong_is_named_with_its_line(tmp_path, text, message):
    with pytest.raises(ConfigError, match=message):
        read(tmp_path, text)


def test_no_input_makes_it_raise_anything_else(tmp_path):
    """Pieces of the format in any order."""
    pieces = ["Default", "=", "0x7fff", "0x1", ":", ";", ",", " ", "\n", "#", "ALL", "SELF", "both", "ipoib"]
    pieces += ["mtu=4", "full", "indx0", "9", "-1", "0x", "mgid", "\0", "defmember=limited", "é"]
    draw = random.Random(5)
    read_well = 0
    for _ in range(3000):
        text = "".join(draw.choice(pieces) for _ in range(draw.randrange(14)))
        with suppress(ConfigError):
            read_well += bool(read(tmp_path, text))
    assert read_well > 50


def test_ports_hold_what_the_file_says(tmp_path):
    path = tmp_path / "partitions.conf"
    path.write_text("Default=0x7fff : ALL=limited, SELF=full ;\nstorage=0x2, ipoib : ALL_CAS=full ;\n")
    site = Site(two_tiers(), manage=False)
    state = site.state
    adapters = frozenset(g for g, s in zip(state.port_guid, state.is_switch, strict=True) if not s)
    everybody = Everybody(adapters, frozenset(), frozenset({state.port_guid[state.find("host-0/mlx5_0")]}))
    site.manage(state.find("host-0/mlx5_0"), settings=Settings(partitions=read_partitions(path, everybody)))
    site.now = 0
    site.settle()
    for name, expected in (
        ("host-0/mlx5_0", (0xFFFF, 0x8002)),
        ("host-5/mlx5_0", (0x7FFF, 0x8002)),
        ("leaf-0", (0x7FFF,)),
    ):
        table = PKeyTable.decode(state.pkeys[state.end_slot(state.find(name)), 0])
        assert tuple(key for key in table.pkeys if key) == expected
    groups = site.hosted.manager.administration.groups.known
    assert [group.record.pkey for group in groups.values()] == [0x8002]


def test_sm_takes_the_file(tmp_path, capsys):
    cluster = tmp_path / "c.yaml"
    cluster.write_text(
        "hosts: {type: pcie-box, count: 4}\nnetwork: {technology: infiniband, switch: qm8700,"
        " topology: {kind: single-switch}}\n"
    )
    path = tmp_path / "p.conf"
    path.write_text("Default=0x7fff, ipoib : ALL=full ;\n")
    assert main(["sm", str(cluster), "--partitions", str(path)]) == OK
    capsys.readouterr()
    path.write_text("Default=0x7fff, ipoib : ALL=ful ;\n")
    assert main(["sm", str(cluster), "--partitions", str(path)]) == WRONG
    assert "p.conf:1" in capsys.readouterr().err
