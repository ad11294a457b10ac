"""Rules: a generated cluster is clean, and each mutation of it is found by its rule."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.configured import ETHERNET, INFINIBAND, planned, spec_of, write
from support.edits import rows

from fabrictwin.configuration.lint.rules import lint
from fabrictwin.configuration.policy.cluster_policy import plan
from fabrictwin.configuration.readers.recognise import Part, joined, kind_of, listed, read_files, read_text_as


class Cluster:
    """A generated cluster's files, each read once; a mutation reads the file again that it changes."""

    def __init__(self, technology: str, targets: tuple[str, ...], folder: Path, *, os: str = "sonic") -> None:
        write(planned(technology), folder, targets, os=os)
        self.folder = folder
        self.texts = {str(path.relative_to(folder)): path.read_text() for path in listed([folder])}
        self.parts: dict[str, Part | None] = {name: self._part(name, text) for name, text in self.texts.items()}

    def _part(self, name: str, text: str) -> Part | None:
        kind = "" if name.endswith(".reasons.json") else kind_of(text)
        return read_text_as(kind, text, str(self.folder / name)) if kind else None

    def rules_of(self, changed: dict[str, str], without: str = "") -> set[str]:
        """Rules that the files break where some have other texts, and some are not there."""
        parts = self.parts | {name: self._part(name, text) for name, text in changed.items()}
        names = [name for name in parts if not (without and name.endswith(without))]
        read = joined([part for name in names if (part := parts[name])])
        return {finding.rule for finding in lint(read.configuration, read.problems)}


@pytest.fixture(scope="module")
def ethernet(tmp_path_factory: pytest.TempPathFactory) -> Cluster:
    return Cluster("ethernet", ETHERNET, tmp_path_factory.mktemp("ethernet"))


@pytest.fixture(scope="module")
def infiniband(tmp_path_factory: pytest.TempPathFactory) -> Cluster:
    return Cluster("infiniband", INFINIBAND, tmp_path_factory.mktemp("infiniband"))


@pytest.fixture(scope="module")
def nvue(tmp_path_factory: pytest.TempPathFactory) -> Cluster:
    return Cluster("ethernet", ("nvue", "host"), tmp_path_factory.mktemp("nvue"), os="nvue")


@pytest.mark.parametrize("technology", ["ethernet", "infiniband", "nvue"])
def test_files_read_one_by_one_say_what_their_folder_says(technology: str, request: pytest.FixtureRequest) -> None:
    cluster: Cluster = request.getfixturevalue(technology)
    assert read_files([cluster.folder]) == joined([part for part in cluster.parts.values() if part])
    assert cluster.rules_of({}) == cluster.rules_of({}, without=NMCLI) == set()


@pytest.mark.parametrize("technology", ["ethernet", "infiniband"])
@pytest.mark.parametrize("os", ["sonic", "nvue"])
@pytest.mark.parametrize(
    "shape", [{"topology": {"kind": "fat-tree", "tiers": 2}}, {}, {"topology": {"kind": "single-switch"}}]
)
def test_a_generated_cluster_is_clean(technology: str, os: str, shape: dict[str, Any], tmp_path: Path) -> None:
    of = plan(spec_of(technology, **shape))
    targets = (os, *ETHERNET[1:]) if technology == "ethernet" else INFINIBAND
    write(of, tmp_path, targets, os=os)
    read = read_files([tmp_path])
    assert not read.unread
    assert lint(read.configuration, read.problems) == []


def test_a_lossy_cluster_is_clean(tmp_path: Path) -> None:
    write(plan(spec_of(qos={"lossless": False})), tmp_path, ETHERNET)
    read = read_files([tmp_path])
    assert [f.rule for f in lint(read.configuration, read.problems) if f.severity == "error"] == []


LEAF = "sonic/leaf-0/config_db.json"
SPINE = "sonic/spine-0/config_db.json"
PG = "pg_lossless_400000_3m_profile"
Tables = dict[str, Any]


NMCLI = "fabric-nmcli.sh"  # says the same of interfaces as netplan: left out where netplan's file is changed


def _set(table: str, key: str, **values: Any) -> Callable[[Tables], None]:
    def change(tables: Tables) -> None:
        tables[table][key].update(values)

    return change


def _del(table: str, key: str, *names: str) -> Callable[[Tables], None]:
    def change(tables: Tables) -> None:
        for name in names:
            tables[table][key].pop(name)

    return change


def _every(table: str, **values: Any) -> Callable[[Tables], None]:
    def change(tables: Tables) -> None:
        for row in tables[table].values():
            row.update(values)

    return change


def _pcp(tables: Tables) -> None:
    tables["DOT1P_TO_TC_MAP"] = {"AZURE": {str(n): str(n) for n in range(8)}}
    for row in tables["PORT_QOS_MAP"].values():
        row["dot1p_to_tc_map"] = row.pop("dscp_to_tc_map")


def _small_ingress(tables: Tables) -> None:
    tables["BUFFER_PROFILE"][PG] |= {"dynamic_th": "-8"}
    tables["BUFFER_POOL"]["ingress_lossless_pool"]["size"] = "100000000"


Mutation = tuple[Callable[[Tables], None], str]  # and the rule that finds it
REFUSED_BY_MODELS: dict[str, Mutation] = {  # ten that SONiC's own YANG models refuse
    "dynamic_th 9": (_set("BUFFER_PROFILE", PG, dynamic_th="9"), "value-range"),
    "profile reference": (_set("BUFFER_PG", "Ethernet0|3", profile="gone"), "reference-missing"),
    "WRED reference": (_set("QUEUE", "Ethernet0|3", wred_profile="gone"), "reference-missing"),
    "map reference": (_set("PORT_QOS_MAP", "Ethernet0", dscp_to_tc_map="gone"), "reference-missing"),
    "pfc 3,9": (_set("PORT_QOS_MAP", "Ethernet0", pfc_enable="3,9"), "value-range"),
    "max below min": (_set("WRED_PROFILE", "AZURE_LOSSLESS", green_max_threshold="1000"), "ecn-order"),
    "DSCP 64": (_set("DSCP_TO_TC_MAP", "AZURE", **{"64": "3"}), "value-range"),
    "detection 50 ms": (_set("PFC_WD", "Ethernet0", detection_time="50"), "value-range"),
    "cable without unit": (_set("CABLE_LENGTH", "AZURE", Ethernet0="40"), "not-understood"),
    "probability 101": (_set("WRED_PROFILE", "AZURE_LOSSLESS", green_drop_probability="101"), "value-range"),
}
UNSEEN_BY_MODELS: dict[str, Mutation] = {  # four that they take
    "TC3 to PG0": (_set("TC_TO_PRIORITY_GROUP_MAP", "AZURE", **{"3": "0"}), "tc-to-group"),
    "pfc_enable missing": (_del("PORT_QOS_MAP", "Ethernet0", "pfc_enable", "pfcwd_sw_enable"), "pfc-missing"),
    "speed 123": (_set("PORT", "Ethernet0", speed="123"), "speed-unknown"),
    "no xon": (_del("BUFFER_PROFILE", PG, "xon"), "xon-missing"),
}
MORE: dict[str, Mutation] = {
    "pool reference": (_set("BUFFER_PROFILE", PG, pool="gone"), "reference-missing"),
    "headroom 0": (_set("BUFFER_PROFILE", PG, xoff="0"), "headroom-too-small"),
    "headroom at 80%": (_set("BUFFER_PROFILE", PG, xoff="180000"), "headroom-too-small"),
    "longer cable": (_set("CABLE_LENGTH", "AZURE", Ethernet0="300m"), "headroom-too-small"),
    "pool larger than the chip": (
        _set("BUFFER_POOL", "ingress_lossless_pool", size="200000000"),
        "pool-beyond-buffer",
    ),
    "empty pool": (_set("BUFFER_POOL", "ingress_lossless_pool", size="0"), "pool-empty"),
    "shared headroom too small": (
        _set("BUFFER_POOL", "ingress_lossless_pool", xoff="100000"),
        "headroom-beyond-pool",
    ),
    "headroom beyond the chip": (_set("BUFFER_PROFILE", PG, size="90000000"), "headroom-beyond-buffer"),
    "size without headroom": (_set("BUFFER_PROFILE", PG, size="19456"), "headroom-outside-group"),
    "ECN above XOFF": (_small_ingress, "ecn-above-xoff"),
    "ECN never": (_set("WRED_PROFILE", "AZURE_LOSSLESS", green_drop_probability="0"), "ecn-never"),
    "no ECN": (_set("WRED_PROFILE", "AZURE_LOSSLESS", ecn="ecn_none"), "ecn-missing"),
    "threshold missing": (_del("BUFFER_PROFILE", PG, "dynamic_th"), "threshold-missing"),
    "large alpha": (_set("BUFFER_PROFILE", PG, dynamic_th="6"), "alpha-large"),
    "PFC without headroom": (_set("PORT_QOS_MAP", "Ethernet0", pfc_enable="3,4"), "pfc-without-headroom"),
    "PFC on all": (_set("PORT_QOS_MAP", "Ethernet0", pfc_enable="0,1,2,3"), "pfc-many"),
    "trust PCP": (_pcp, "trust-pcp"),
    "DSCP unmapped": (_set("DSCP_TO_TC_MAP", "AZURE", **{"26": "0"}), "dscp-unmapped"),
    "TC3 to queue 0": (_set("TC_TO_QUEUE_MAP", "AZURE", **{"3": "0"}), "tc-to-queue"),
    "pause stops queue 0": (_set("MAP_PFC_PRIORITY_TO_QUEUE", "AZURE", **{"3": "0"}), "pfc-to-queue"),
    "CNP lossless": (_set("DSCP_TO_TC_MAP", "AZURE", **{"48": "3"}), "cnp-lossless"),
    "CNP by weight": (_set("SCHEDULER", "scheduler.strict", type="DWRR", weight="10"), "cnp-not-strict"),
    "RoCE strict": (_set("QUEUE", "Ethernet0|3", scheduler="scheduler.strict"), "roce-strict"),
    "egress lossy": (_set("BUFFER_QUEUE", "Ethernet0|3", profile="egress_lossy_profile"), "egress-lossy"),
    "no watchdog": (lambda tables: tables["PFC_WD"].pop("Ethernet0"), "watchdog-missing"),
    "poll slower than detection": (_set("PFC_WD", "GLOBAL", POLL_INTERVAL="1000"), "watchdog-poll"),
    "MTU 1500": (_every("PORT", mtu="1500"), "mtu-small"),
    "MTU step": (_set("PORT", "Ethernet0", mtu="9216"), "mtu-differs"),
    "no FEC": (_every("PORT", fec="none"), "fec-differs"),
    "LLDP off": (_every("LLDP_PORT", enabled="false"), "lldp-off"),
    "address twice": (lambda tables: tables["INTERFACE"].update({"Ethernet4|10.64.0.0/31": {}}), "address-twice"),
    "QoS map missing": (lambda tables: tables["PORT_QOS_MAP"].pop("Ethernet0"), "qos-map-missing"),
    "unknown port": (_set("CABLE_LENGTH", "AZURE", Ethernet999="5m"), "reference-missing"),
    "other peer": (_every("DEVICE_NEIGHBOR", port="Ethernet8"), "peer-differs"),
    "cable differs": (_every("CABLE_LENGTH", Ethernet0="7m"), "cable-differs"),
    "lanes twice": (_set("PORT", "Ethernet4", lanes="0,1,2,3"), "name-twice"),
    "port down": (_set("PORT", "Ethernet0", admin_status="down"), "port-down"),
    "xon beyond the group": (_set("BUFFER_PROFILE", PG, xon="900000"), "xon-large"),
    "static pool": (_set("BUFFER_POOL", "ingress_lossless_pool", mode="static"), "pool-mode"),
    "trunk without link-local addresses": (
        lambda tables: tables["INTERFACE"].update(Ethernet16={}),
        "bgp-one-side",
    ),
    "no neighbour": (lambda tables: tables["BGP_NEIGHBOR"].pop("default|Ethernet16"), "bgp-one-side"),
    "name of another switch": (_set("DEVICE_METADATA", "localhost", hostname="leaf-1"), "name-twice"),
    "MAC of another switch": (_set("DEVICE_METADATA", "localhost", mac="02:00:0a:ff:00:02"), "mac-twice"),
    "watchdog of another priority": (_set("PORT_QOS_MAP", "Ethernet0", pfcwd_sw_enable="4"), "watchdog-missing"),
    "watchdog that alerts": (_set("PFC_WD", "Ethernet0", action="alert"), "watchdog-alert"),
    "lossy class in the lossless group": (
        _set("TC_TO_PRIORITY_GROUP_MAP", "AZURE", **{"0": "3"}),
        "lossy-in-group",
    ),
    "marks from nothing": (
        _set("WRED_PROFILE", "AZURE_LOSSLESS", green_min_threshold="0", green_max_threshold="1"),
        "ecn-early",
    ),
    "AS of the spine": (_set("DEVICE_METADATA", "localhost", bgp_asn="4280008192"), "asn-equal"),
}


SONIC = REFUSED_BY_MODELS | UNSEEN_BY_MODELS | MORE


@pytest.mark.parametrize("name", SONIC)
def test_mutations_of_config_db(name: str, ethernet: Cluster) -> None:
    change, rule = SONIC[name]
    tables = json.loads(ethernet.texts[LEAF])
    change(tables)
    assert rule in ethernet.rules_of({LEAF: json.dumps(tables)})


HOST = {name: row for name, *row in rows("configuration/host_mutations")}


@pytest.mark.parametrize("name", HOST)
def test_mutations_of_hosts_and_manifests(name: str, ethernet: Cluster) -> None:
    file, old, new, rule = HOST[name]
    changed, count = re.subn(old, new.replace("\\", "\\\\"), ethernet.texts[file])
    assert count, "nothing was changed"
    assert rule in ethernet.rules_of({file: changed}, without=NMCLI)


SUBNET = {name: row for name, *row in rows("configuration/subnet_mutations")}


@pytest.mark.parametrize("name", SUBNET)
def test_mutations_of_subnets(name: str, infiniband: Cluster) -> None:
    file, old, new, rule = SUBNET[name]
    changed, count = re.subn(old, new, infiniband.texts[file])
    assert count, "nothing was changed"
    found = infiniband.rules_of({file: changed}, without=NMCLI)
    assert rule in (found or {"clean"})


NVUE = {  # what stands in a switch's script, what stands there instead, the rule that is broken
    "trust PCP": ("trust l3", "trust l2", "trust-pcp"),
    "pauses not obeyed": ("rx enable", "rx disable", "pfc-ignored"),
    "PFC on another priority": ("switch-priority 3 ", "switch-priority 4 ", "pfc-one-side"),
    "max below min": ("max-threshold 2097152", "max-threshold 1000", "ecn-order"),
    "profile reference": ("qos pfc profile pfc-400g-3m", "qos pfc profile gone", "reference-missing"),
    "MTU 1500": ("link mtu 9100", "link mtu 1500", "mtu-small"),
    "small headroom": ("xoff-threshold 19456", "xoff-threshold 190000", "headroom-too-small"),
    "no watchdog": ("pfc-watchdog state enable", "pfc-watchdog state disable", "watchdog-missing"),
    "more than the whole": ("bw-percent 50 ", "bw-percent 75 ", "bandwidth-sum"),
    "another cable": ("cable-length 3 ", "cable-length 100 ", "cable-differs"),
}


@pytest.mark.parametrize("name", NVUE)
def test_nvue_is_judged_by_the_same_rules(name: str, nvue: Cluster) -> None:
    old, new, rule = NVUE[name]
    text = nvue.texts["nvue/leaf-0/startup.sh"]
    assert old in text
    assert rule in nvue.rules_of({"nvue/leaf-0/startup.sh": text.replace(old, new)})


def test_the_page_says_how_many_mutations_are_found() -> None:
    page = " ".join((Path(__file__).parents[2] / "docs/configure.md").read_text().split())
    subnet = sum(rule != "clean" for *_, rule in SUBNET.values())
    assert (len(REFUSED_BY_MODELS), len(UNSEEN_BY_MODELS)) == (10, 4)
    assert "ten that SONiC's YANG models refuse and four that they take" in page
    assert f"{len(MORE)} more of `config_db`, {len(NVUE)} of NVUE, {len(HOST)} of hosts and manifests" in page
    assert f"{subnet} of InfiniBand subnets and Slurm" in page


def test_files_that_disagree_about_an_interface(ethernet: Cluster) -> None:
    file = "hosts/host-0/60-fabric.yaml"
    assert "files-disagree" in ethernet.rules_of({file: ethernet.texts[file].replace("mtu: 9100", "mtu: 9000")})
