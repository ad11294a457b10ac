"""A cut of a cluster has the rows of `network.qos.ports` that the cluster's ports of the same kind have."""

from __future__ import annotations

from typing import Any

import pytest

from fabrictwin import catalog
from fabrictwin.base.errors import ConfigError
from fabrictwin.cluster.spec.spec import Spec, read_spec
from fabrictwin.engines.packet.network.qos_rows import port_names
from fabrictwin.study.compare.cut_qos import qos_of_cut
from fabrictwin.study.compare.fabrics import with_fabric
from fabrictwin.study.compare.packet_measurements import play_both
from fabrictwin.study.compare.phase_cut import Load, cut_of

LOSSLESS = {"pauses": [3], "obeys": [3], "groups": {26: 3, 48: 6}, "queues": {26: 3, 48: 6}}


def spec_of(rows: list[dict[str, Any]], hosts: int = 80, kind: str = "fat-tree") -> Spec:
    return read_spec(
        {
            "schema": 1,
            "cluster": {
                "hosts": {"type": "dgx-h100", "count": hosts},
                "network": {
                    "technology": "ethernet",
                    "switch": "spectrum-4",
                    "topology": {"kind": kind, **({"tiers": 2} if kind == "fat-tree" else {})},
                    "qos": {"ports": rows},
                },
            },
        }
    )


def rows(switches: tuple[str, ...] = ("leaf-*", "spine-*")) -> list[dict[str, Any]]:
    """Rows for adapters and for switches."""
    group = {"threshold": "300 kB", "headroom": "400 kB"}
    return [
        {"ports": ["host-*"], **LOSSLESS},
        {"ports": list(switches), **LOSSLESS, "priorities": {3: group}},
    ]


def test_every_port_of_the_cut_has_the_rows_of_its_kind():
    spec = spec_of(rows())
    cut = cut_of(spec, seed=1)
    found = qos_of_cut(spec, cut.twin.fabric)
    assert found is not None
    names = {name for name in port_names(cut.twin.fabric) if name}
    named = [port for row in found.ports for port in row.ports]
    assert set(named) <= names
    assert len(named) == len(set(named))
    for row in found.ports:
        adapters = {name.startswith("host-") for name in row.ports}
        assert len(adapters) == 1
        assert (row.priorities is None) == adapters.pop()


def test_rows_that_differ_between_ports_of_a_kind_are_an_error():
    odd = {"ports": ["host-3/mlx5_0"], "pauses": []}
    spec = spec_of([*rows(), odd])
    with pytest.raises(ConfigError, match="host-3/mlx5_0 that differ"):
        qos_of_cut(spec, cut_of(spec, seed=1).twin.fabric)


def test_a_row_that_names_no_port_is_an_error():
    spec = spec_of(rows(("leef-*",)))
    with pytest.raises(ConfigError, match="leef-\\*, which no port's name matches"):
        qos_of_cut(spec, cut_of(spec, seed=1).twin.fabric)


def test_presets_of_other_fabrics_are_refused_beside_rows():
    with pytest.raises(ConfigError, match="roce-400g says what ports do"):
        with_fabric(spec_of(rows()), catalog.fabric("roce-400g"))


def test_a_spec_without_rows_is_as_it_was():
    spec = read_spec({**spec_of([]).to_dict()})
    assert qos_of_cut(spec, cut_of(spec, seed=1).twin.fabric) == spec.qos


@pytest.mark.second
def test_what_rows_say_is_played():
    load = Load(block_bytes=64 << 10, hot_times=8.0, says="")
    played = []
    for pausing in (True, False):
        said = rows(("switch-*",))
        for row in said:
            row["pauses"] = row["obeys"] = [3] if pausing else []
        if not pausing:
            said[1]["priorities"] = {3: {"threshold": "100 kB", "headroom": "0 B"}}
        spec = spec_of(said, hosts=8, kind="single-switch")
        played.append(play_both(cut_of(spec, seed=1), load, "exchange", 1, spec))
    with_pauses, without = played
    assert (with_pauses.drops, without.pauses) == (0, 0)
    assert with_pauses.pauses > 0
    assert without.drops > 0
