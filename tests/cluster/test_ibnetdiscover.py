"""Reading what `ibnetdiscover` prints, and turning it into a cluster."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from time import process_time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.clusters import blueprint
from support.edits import each, edited
from support.ibnetdiscover_text import TEXT

from fabrictwin import catalog
from fabrictwin.base.errors import ConfigError
from fabrictwin.cluster.blueprint import Blueprint
from fabrictwin.cluster.build_blueprint import build
from fabrictwin.cluster.export import to_dot, to_ibnetdiscover, to_yaml
from fabrictwin.cluster.importers.bindings import import_ibnetdiscover
from fabrictwin.cluster.importers.discovered import lay_out
from fabrictwin.cluster.importers.ibnetdiscover import Discovery, parse
from fabrictwin.cluster.spec.cluster_section import DiscoveredCluster
from fabrictwin.cluster.spec.spec import load_cluster
from fabrictwin.fabric.compile import compile_fabric

FILE = "fabric.txt"

BOXES = [{"match": "box-*", "host": "pcie-box"}]


def imported(text: str = TEXT, **section: Any) -> Blueprint:
    cluster = DiscoveredCluster.model_validate({"ibnetdiscover": FILE, **section})
    return lay_out(parse(text, FILE), cluster)


# --- the format


def test_ports_carry_both_ends_width_speed_and_ids() -> None:
    found = parse(TEXT, FILE)
    leaf = found.nodes["S-0000000000000051"]
    assert (leaf.kind, leaf.guid, leaf.system_guid, leaf.port_count, leaf.lid) == ("switch", 0x51, 0x51, 41, 1)
    assert (leaf.vendor, leaf.device, leaf.description) == (0x2C9, 0xD2F0, "MF0;leaf-1:MQM8700/U1")
    assert [port.number for port in leaf.ports] == [1, 2, 3, 21, 22, 41]
    port = leaf.ports[4]
    assert (port.peer, port.peer_port, port.width, port.speed) == ("S-0000000000000053", 2, 2, "HDR")
    adapter = found.nodes["H-00000000000000d1"]
    assert (adapter.kind, adapter.ports[0].lid, adapter.ports[0].guid) == ("ca", 15, 0xD1)
    assert (adapter.ports[0].width, adapter.ports[0].speed) == (4, "FDR10")


@pytest.mark.parametrize("speed", ["SDR", "DDR", "QDR", "FDR10", "FDR", "EDR", "HDR", "NDR", "XDR"])
@pytest.mark.parametrize("width", [1, 2, 4, 8, 12])
def test_every_speed_and_width_is_read(speed: str, width: int) -> None:
    found = parse(TEXT.replace("4xFDR10", f"{width}x{speed}"), FILE)
    port = found.nodes["H-00000000000000d1"].ports[0]
    assert (port.width, port.speed) == (width, speed)
    assert catalog.infiniband_rate(speed, width) > 0


@each("old new line says", "cluster/wrong_ibnetdiscover")
def test_an_edit_that_makes_no_sense_is_found_where_it_is(old: str, new: str, line: int, says: str) -> None:
    refused(edited(TEXT, old, new), line, says)


@pytest.mark.parametrize(
    ("text", "line", "says"),
    [
        ("", 1, "no nodes"),
        ("hello\n", 1, "expected a line as `ibnetdiscover` prints it"),
        (TEXT + "caguid=0x99\n", 62, "ends before the node"),
        (TEXT.replace("\n[1](f1)", "\n#[1](f1)"), 16, "expected one back"),
    ],
)
def test_malformed_files_say_where(text: str, line: int, says: str) -> None:
    refused(text, line, says)


def refused(text: str, line: int, says: str) -> None:
    """Parse a text that is wrong, which has to be said of this line."""
    with pytest.raises(ConfigError) as caught:
        parse(text, FILE)
    assert says in str(caught.value)
    assert str(caught.value).startswith(f"{FILE}:{line}"), str(caught.value)


def same(a: Discovery, b: Discovery) -> bool:
    return dict(a.nodes) == dict(b.nodes)


def test_a_file_cut_anywhere_is_found_out() -> None:
    """Every single cut: an error, unless nothing but white space is missing."""
    whole = parse(TEXT, FILE)
    for length in range(len(TEXT)):
        try:
            found = parse(TEXT[:length], FILE)
        except ConfigError:
            continue
        assert TEXT[length:].strip() == ""
        assert same(found, whole)


def test_line_ends_of_other_systems_and_missing_comments_do_not_matter() -> None:
    whole = parse(TEXT, FILE)
    assert same(parse(TEXT.replace("\n", "\r\n"), FILE), whole)
    assert [node.name for node in parse(TEXT[TEXT.index("vendid") :], FILE).nodes.values()] == list(whole.nodes)


@settings(max_examples=300)
@given(data=st.data())
def test_only_config_errors_escape_from_mutated_files(data: st.DataObject) -> None:
    text = TEXT
    pieces = st.sampled_from(
        ['"', "[", "]", "(", "0", "x", "\t", "\n", "S-", "lid ", "9" * 30, "é", "\x00", "4xHDR"]
    )
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(text)))
        upto = data.draw(st.integers(at, min(len(text), at + 40)))
        text = text[:at] + data.draw(st.one_of(pieces, st.text(max_size=5))) + text[upto:]
    try:
        built = imported(text, bind=BOXES)
    except ConfigError:
        return
    assert len(built.cables) > 0


@settings(max_examples=200)
@given(text=st.text())
def test_only_config_errors_escape_from_noise(text: str) -> None:
    with pytest.raises(ConfigError):
        parse(text, FILE)


@pytest.mark.second
@settings(max_examples=100)
@given(order=st.permutations(range(9)))
def test_the_order_of_nodes_in_the_file_does_not_matter(order: list[int]) -> None:
    head, *nodes = TEXT.split("\n\n")
    assert len(nodes) == 9
    shuffled = "\n\n".join([head, *(nodes[i].rstrip("\n") for i in order)]) + "\n"
    a, b = imported(bind=BOXES), imported(shuffled, bind=BOXES)
    assert replace(a, identities={}) == replace(b, identities={})
    assert {guid: replace(who, place=0) for guid, who in a.identities.items()} == {
        guid: replace(who, place=0) for guid, who in b.identities.items()
    }


# --- what it becomes


def test_hosts_switches_and_aggregation_nodes_are_told_apart() -> None:
    built = imported(bind=BOXES)
    assert [(host.name, host.type, host.nics) for host in built.hosts] == [
        ("box-1", "pcie-box", ("mlx5_0",)),
        ("box-2", "pcie-box", ("mlx5_0",)),
        ("manager", "", ("mlx5_0",)),
        ("store-1", "", ("HCA-1", "port1")),
    ]
    assert built.hosts[0].guids == (0xA1,)
    assert built.hosts[3].lids == (13, 14)
    assert [(s.name, s.type, s.tier, s.ports, s.lid) for s in built.switches] == [
        ("leaf-1", "qm8700", 1, 41, 1),
        ("leaf-2", "qm8700", 1, 41, 2),
        ("spine-1-L01-U1", "cs8500", 2, 40, 3),
    ]
    assert [(node.name, node.guid, node.lid) for node in built.aggregations] == [("leaf-1-sharp", 0xF1, 21)]


def test_cables_have_the_rates_of_the_file_and_the_lengths_of_the_spec() -> None:
    built = imported(bind=BOXES, host_cable="2 m", trunk_cable="30 m")
    cables = built.cables
    rows = list(
        zip(cables.a_node, cables.a_port, cables.b_node, cables.rate_bps // 10**9, cables.length_mm, strict=True)
    )
    assert [tuple(int(v) for v in row) for row in rows] == [
        (0, 1, 3, 200, 2000),  # box-1
        (1, 1, 4, 200, 2000),  # box-2
        (2, 9, 5, 40, 2000),  # manager, FDR10
        (0, 2, 6, 100, 2000),  # store-1
        (0, 3, 7, 100, 2000),
        (0, 21, 2, 200, 30000),
        (0, 22, 2, 100, 30000),  # two lanes of HDR
        (1, 10, 1, 200, 30000),  # back to the same switch
        (1, 21, 2, 200, 30000),
        (0, 41, 8, 200, 0),  # the aggregation node, inside its switch
    ]


def test_everything_that_was_not_placed_is_noted_once() -> None:
    notes = "\n".join(imported(bind=BOXES).notes)
    assert "given to the host of their card: no description H-00000000000000c2" in notes
    assert "bound to no catalog host, so without GPUs: 2 hosts (manager, store-1)" in notes
    assert "1 cables from a switch to itself, which no path takes (MF0;leaf-2:MQM8700/U1)" in notes
    assert "not in the catalog" not in notes
    assert "next to a leaf that hold hosts too, taken as spines: spine-1-L01-U1" in notes


def test_adapters_may_be_bound_by_other_names() -> None:
    built = imported(bind=[{"match": "store-1", "host": "pcie-box", "hcas": {"HCA-1": 0}}])
    store = next(host for host in built.hosts if host.name == "store-1")
    assert (store.nics, store.guids, store.lids) == (("mlx5_0",), (0xC1,), (13,))
    assert any("port1 is not an adapter of pcie-box" in note and "store-1" in note for note in built.notes)
    assert len(built.cables) == 9


def test_adapters_of_the_catalog_host_that_were_not_discovered_are_noted() -> None:
    built = imported(bind=[{"match": "box-1", "host": "dgx-a100"}])
    assert built.hosts[0].guids == (0xA1, 0, 0, 0, 0, 0, 0, 0)
    assert "mlx5_9 of dgx-a100 was not discovered, it has no link: 1 host (box-1)" in built.notes


@pytest.mark.parametrize(
    ("section", "key", "says"),
    [
        ({"bind": [{"match": "bx-*", "host": "pcie-box"}]}, "bind[0].match", "matches none of the hosts"),
        (
            {"bind": [*BOXES, {"match": "box-1", "host": "pcie-box"}]},
            "bind[1].match",
            "none of the hosts that are left",
        ),
        ({"bind": [{"match": "box-*", "host": "pcie-bx"}]}, "bind[0].host", "did you mean 'pcie-box'"),
        (
            {"bind": [{"match": "box-*", "host": "pcie-box", "hcas": {"mlx5_0": 1}}]},
            "bind[0].hcas.mlx5_0",
            "got 1",
        ),
        (
            {"bind": [{"match": "box-*", "host": "pcie-box", "hcas": {"mlx5_1": 0}}]},
            "bind[0].hcas",
            "no matching host",
        ),
        ({"switches": [{"match": "leaf", "tier": 1}]}, "switches[0].match", "matches no switch"),
        ({"switches": [{"match": "leaf-*", "type": "qm870"}]}, "switches[0].type", "did you mean 'qm8700'"),
        ({"host_cable": "20 km"}, "host_cable", "expected at most"),
    ],
)
def test_wrong_bindings_say_which(section: dict[str, Any], key: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says.replace("[", r"\[")) as caught:
        imported(**section)
    assert caught.value.key == key


def test_hints_override_type_and_tier() -> None:
    built = imported(switches=[{"match": "spine-*", "type": "qm8700"}, {"match": "leaf-2", "tier": 3}])
    assert {s.name: (s.type, s.tier) for s in built.switches}["spine-1-L01-U1"] == ("qm8700", 2)
    assert {s.name: s.tier for s in built.switches}["leaf-2"] == 3


def test_islands_are_noticed() -> None:
    text = TEXT.replace('[21]\t"S-0000000000000053"[3][ext 3]', "#").replace(
        '[3][ext 3]\t"S-0000000000000052"[21]', "#"
    )
    built = imported(text, bind=BOXES)
    assert "an island that no cable joins to the rest: 1 switches (leaf-2), 1 adapters" in built.notes


def test_machines_that_share_a_name_stay_apart() -> None:
    built = imported(TEXT.replace('"box-2 mlx5_0"', '"box-1 mlx5_0"'))
    assert {"box-1-00000000000000a1", "box-1-00000000000000a2"} <= {host.name for host in built.hosts}
    assert any("host names that several machines share" in note for note in built.notes)


def test_a_card_with_two_plugged_ports_is_two_adapters() -> None:
    text = (
        'Switch\t2 "S-0000000000000051"\t\t# "leaf" base port 0 lid 1 lmc 0\n'
        '[1]\t"H-00000000000000a0"[1](a1) \t\t# "old mlx4_0" lid 11 4xQDR\n'
        '[2]\t"H-00000000000000a0"[2](a2) \t\t# "old mlx4_0" lid 12 4xQDR\n'
        'Ca\t2 "H-00000000000000a0"\t\t# "old mlx4_0"\n'
        '[1](a1) \t"S-0000000000000051"[1]\t\t# lid 11 lmc 0 "leaf" lid 1 4xQDR\n'
        '[2](a2) \t"S-0000000000000051"[2]\t\t# lid 12 lmc 0 "leaf" lid 1 4xQDR\n'
    )
    host = imported(text).hosts[0]
    assert (host.name, host.nics, host.guids, host.lids) == (
        "old",
        ("mlx4_0.1", "mlx4_0.2"),
        (0xA0, 0xA2),
        (11, 12),
    )


# --- and back


@pytest.mark.parametrize(
    ("hosts", "topology"),
    [
        (4, {"kind": "single-switch"}),
        (9, {"kind": "fat-tree", "tiers": 2}),
        (12, {"kind": "fat-tree", "tiers": 3, "pods": 3, "oversubscription": 2}),
        (50, {"kind": "rail-optimised"}),
        (90, {"kind": "rail-optimised", "tiers": 3, "pods": 2}),
    ],
)
def test_a_generated_fabric_comes_back_with_tiers_and_pods(
    hosts: int, topology: dict[str, Any], tmp_path: Path
) -> None:
    built = blueprint(hosts, topology=topology)
    text = to_ibnetdiscover(built)
    back = imported(text, bind=[{"match": "host-*", "host": "dgx-a100"}])
    assert back.notes == ()
    assert back.cables == built.cables
    assert [(h.name, h.type, h.nics) for h in back.hosts] == [(h.name, h.type, h.nics) for h in built.hosts]
    for ours, theirs in zip(back.switches, built.switches, strict=True):
        assert (ours.name, ours.type, ours.ports) == (theirs.name, theirs.type, theirs.ports)
        assert (ours.tier, ours.pod) == (theirs.tier, theirs.pod)
    # what has GUIDs comes back whole
    assert imported(to_ibnetdiscover(back), bind=[{"match": "host-*", "host": "dgx-a100"}]) == back


def yaml_round_trip(built: Blueprint, tmp_path: Path) -> Blueprint:
    path = tmp_path / "cluster.yaml"
    path.write_text(to_yaml(built))
    spec = load_cluster(path)
    return build(spec.cluster, spec=spec)


def test_explicit_yaml_reads_back_as_the_same_blueprint(tmp_path: Path) -> None:
    for built in (
        imported(bind=BOXES),
        blueprint(8),
        blueprint(4, "dgx-h100", technology="ethernet", switch="spectrum-4"),
    ):
        assert yaml_round_trip(built, tmp_path) == built


def test_names_that_yaml_would_misread_survive(tmp_path: Path) -> None:
    text = TEXT.replace("box-1 ", "1e3 ").replace("box-2 ", "true ").replace("manager ", "[a]:{b} ")
    built = imported(text)
    assert {"1e3", "true", "[a]:{b}"} <= {host.name for host in built.hosts}
    assert yaml_round_trip(built, tmp_path) == built


def test_dot_has_every_switch_and_counts_parallel_cables() -> None:
    dot = to_dot(imported())
    assert '"leaf-1" -- "box-1"' in dot or '"box-1" -- "leaf-1"' in dot
    assert dot.count("--") == 9
    assert dot.startswith("graph fabric {")
    assert "2 x 200 Gb/s" in to_dot(blueprint(40, topology={"kind": "rail-optimised"}))


# --- real files


def test_selene_imports_whole_and_fast(shared: Path) -> None:
    path = shared / "data" / "ibnetdiscover" / "selene.compute.txt"
    begin = process_time()
    built = import_ibnetdiscover(path, bind=["luna-*=dgx-a100"])
    assert process_time() - begin < 20  # a guard against quadratic growth; the measured time is half a second
    bound = [host for host in built.hosts if host.type == "dgx-a100"]
    assert len(bound) == 458
    assert len(built.hosts) == 469
    assert all(all(host.guids) and len(host.guids) == 8 for host in bound)
    assert (len(built.switches), len(built.aggregations)) == (666, 666)
    assert len(built.cables) == 25704 // 2
    tiers = [switch.tier for switch in built.switches]
    assert [tiers.count(tier) for tier in (1, 2, 3, -1)] == [203, 321, 140, 2]
    spines = {s.pod: 0 for s in built.switches if s.name.startswith("CSPINE")}
    assert len(spines) == 4
    assert {switch.type for switch in built.switches} == {"qm8700"}
    assert len(built.notes) == 2


@pytest.mark.second
def test_selene_cut_in_half_is_refused(shared: Path) -> None:
    text = (shared / "data" / "ibnetdiscover" / "selene.compute.txt").read_text()
    for share in (0.25, 0.5, 0.999):
        with pytest.raises(ConfigError):
            parse(text[: int(len(text) * share)], FILE)
    # even where the cut falls between two nodes
    with pytest.raises(ConfigError, match="cut short"):
        parse(text[: text.index("\nvendid", len(text) // 2)], FILE)


def test_the_small_real_file_groups_adapters_by_host(shared: Path) -> None:
    built = import_ibnetdiscover(shared / "data" / "ibnetdiscover" / "small_topo_file")
    assert {host.name: len(host.nics) for host in built.hosts} == {
        "r-dcs96": 4,
        "r-dmz-ufm128": 2,
        "r-dmz-ufm131": 2,
        "r-dmz-ufm134": 2,
        "r-dmz-ufm137": 2,
    }
    assert len(built.cables) == 16


# -- identity, and files that went through a terminal --------------------------------------------------------


def test_identities_are_as_discovered_and_print_back() -> None:
    built = imported(TEXT)
    leaf, adapter = built.identities[0x51], built.identities[0xA1]
    assert (leaf.vendor, leaf.device, leaf.system_guid, leaf.port_guid) == (0x2C9, 0xD2F0, 0x51, 0x51)
    assert leaf.description == "MF0;leaf-1:MQM8700/U1"
    assert adapter.description == "box-1 mlx5_0"
    assert adapter.port_guid == 0xA1
    fabric = compile_fabric(built)
    assert set(fabric.port_guid[fabric.node_guid != 0].tolist()) == set(built.identities)
    again = imported(to_ibnetdiscover(built))
    assert again.identities == built.identities


def test_a_prompt_in_brackets_is_no_port() -> None:
    prompt = "[root@ufm-1 ~]# "
    log = f"{prompt}ibnetdiscover\r\n" + TEXT.replace("\n", "\r\n") + f"{prompt}exit\r\n"
    assert parse(log, FILE).nodes.keys() == parse(TEXT, FILE).nodes.keys()


@pytest.mark.parametrize("tabs", ["\t", "    ", ""])
def test_the_log_of_a_terminal_program_is_read(tabs: str) -> None:
    log = (
        "Script started on 2021-02-21 16:30:17+00:00\r\n"
        "\x1b]0;root@node: ~\x07\x1b[01;32mroot@node\x1b[00m:~# ibnetdiscover\r\r\n"
        + TEXT.replace("\t", tabs).replace("\n", "\r\n")
        + "\r\n\x1b[01;32mroot@node\x1b[00m:~# exit\r\nScript done\r\n"
    )
    found = parse(log, FILE)
    assert [(n.name, n.lid, len(n.ports)) for n in found.nodes.values()] == [
        (n.name, n.lid, len(n.ports)) for n in parse(TEXT, FILE).nodes.values()
    ]


def test_a_strange_line_in_the_middle_is_still_an_error() -> None:
    with pytest.raises(ConfigError, match=r"11: got 'Connection to node closed.', expected a line"):
        parse(TEXT.replace("[1]\t", "Connection to node closed.\n[1]\t", 1), FILE)
