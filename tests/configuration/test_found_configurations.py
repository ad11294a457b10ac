"""Configurations as people have them: parts of databases, vendors' tables, scripts, and files that are none."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from support.configured import spec_of, write, written
from support.real_tools import JUDGED_BY_REAL_TOOLS

from fabrictwin.base.errors import ConfigError
from fabrictwin.configuration.lint.rules import lint
from fabrictwin.configuration.model.cluster import Configuration
from fabrictwin.configuration.policy.chips import BOXES, chip_of_platform
from fabrictwin.configuration.policy.cluster_policy import configuration, plan
from fabrictwin.configuration.policy.switch_policy import port_name
from fabrictwin.configuration.readers.host_script import commands_of, read_script
from fabrictwin.configuration.readers.nvue import read_switch as read_nvue
from fabrictwin.configuration.readers.nvue import read_yaml_switch
from fabrictwin.configuration.readers.recognise import kind_of, read_files, read_text_as
from fabrictwin.configuration.readers.sonic import read_switch

SAME = {str(n): str(n) for n in range(8)}
PORTS = [f"Ethernet{n}" for n in (0, 4)]
MAPS = {
    "dscp_to_tc_map": "AZURE",
    "tc_to_pg_map": "AZURE",
    "tc_to_queue_map": "AZURE",
    "pfc_to_queue_map": "AZURE",
    "pfc_enable": "3,4",
}
QOS: dict[str, Any] = {  # of the shape of SONiC's template: two lossless classes, no ports of its own
    "DSCP_TO_TC_MAP": {"AZURE": {str(d): "1" for d in range(64)} | {"3": "3", "4": "4", "48": "6", "33": "8"}},
    "TC_TO_PRIORITY_GROUP_MAP": {"AZURE": dict.fromkeys(SAME, "0") | {"3": "3", "4": "4", "8": "0"}},
    "TC_TO_QUEUE_MAP": {"AZURE": SAME | {"8": "1"}},
    "MAP_PFC_PRIORITY_TO_QUEUE": {"AZURE": SAME},
    "PORT_QOS_MAP": {"global": {"dscp_to_tc_map": "AZURE"}} | dict.fromkeys(PORTS, MAPS),
    "SCHEDULER": {"scheduler.0": {"type": "DWRR", "weight": "14"}},
    "QUEUE": {f"{port}|{n}": {"scheduler": "scheduler.0", "wred_profile": "A"} for port in PORTS for n in (3, 4)},
    "WRED_PROFILE": {
        "A": {
            "ecn": "ecn_all",
            "green_min_threshold": "1048576",
            "green_max_threshold": "2097152",
            "green_drop_probability": "5",
        }
    },
}
POOLS = {"ingress_lossless_pool": {"type": "ingress", "mode": "dynamic", "size": "40000000"}}
LOSSY = {"lossy": {"pool": "ingress_lossless_pool", "size": "0", "dynamic_th": "3"}}
WHOLE: dict[str, Any] = QOS | {
    "DEVICE_METADATA": {"localhost": {"hostname": "sw", "platform": "x86_64-mlnx_msn4700-r0", "bgp_asn": "None"}},
    "PORT": {
        port: {"speed": "400000", "lanes": ",".join(str(8 * n + lane) for lane in range(8)), "mtu": "9100"}
        for n, port in enumerate(PORTS)
    },
    "CABLE_LENGTH": {"AZURE": dict.fromkeys(PORTS, "40m")},
    "BUFFER_POOL": POOLS,
    "BUFFER_PROFILE": LOSSY,
    "BUFFER_PG": {f"{port}|0": {"profile": "lossy"} for port in PORTS},
}


DATABASE = ("DEVICE_METADATA", "PORT", "CABLE_LENGTH", "BUFFER_POOL", "BUFFER_PROFILE", "BUFFER_PG")


def _rules(tables: dict[str, Any], severity: str = "error") -> set[str]:
    """Rules that a config_db breaks, of one severity."""
    assert kind_of(json.dumps(tables)) == "sonic"
    switch, problems = read_switch(json.dumps(tables), "sw.json")
    found = lint(Configuration(switches={switch.name: switch}), problems.found)
    return {finding.rule for finding in found if finding.severity == severity}


def _lossless(**profile: str) -> dict[str, Any]:
    rows = {f"{port}|3-4": {"profile": "pg"} for port in PORTS}
    return WHOLE | {
        "BUFFER_PROFILE": LOSSY | {"pg": {"pool": "ingress_lossless_pool", "dynamic_th": "0"} | profile},
        "BUFFER_PG": WHOLE["BUFFER_PG"] | rows,
    }


def test_a_part_of_a_database_has_the_ports_that_it_names_and_no_more_is_asked_of_it():
    switch, problems = read_switch(json.dumps(QOS), "qos.json")
    assert not problems.found
    assert list(switch.ports) == PORTS
    assert switch.partial
    assert switch.ports["Ethernet0"].qos.pfc == {3, 4}
    assert _rules(QOS) == set()
    assert "tc-to-queue" in _rules(QOS | {"TC_TO_QUEUE_MAP": {"AZURE": SAME | {"3": "0"}}})


def test_groups_that_the_switch_makes_itself_are_not_missed():
    assert _rules(WHOLE) == set()
    without_cables = {name: rows for name, rows in WHOLE.items() if name != "CABLE_LENGTH"}
    assert _rules(without_cables) == {"pfc-without-headroom"}
    dynamic = WHOLE | {"BUFFER_PG": WHOLE["BUFFER_PG"] | {f"{port}|3-4": {"profile": "NULL"} for port in PORTS}}
    assert _rules(dynamic) == set()
    one = WHOLE | {"BUFFER_PG": WHOLE["BUFFER_PG"] | {"Ethernet0|3-4": {"profile": "NULL"}}}
    assert _rules(one) == {"pfc-without-headroom"}


def test_a_vendors_table_is_a_warning_and_less_than_the_cable_holds_an_error():
    table = _lossless(size="96256", xon="18432", xoff="77824")
    assert "headroom-too-small" not in _rules(table)
    assert "headroom-too-small" in _rules(table, "warning")
    assert "headroom-too-small" in _rules(_lossless(size="38432", xon="18432", xoff="20000"))
    pattern = {"LOSSLESS_TRAFFIC_PATTERN": {"AZURE": {"mtu": "1024", "small_packet_percentage": "100"}}}
    assert "headroom-too-small" in _rules(table | pattern)


def test_broadcoms_headroom_is_beyond_the_size_of_a_group_and_nvidias_within():
    row = {"size": "1248", "xon": "2288", "xon_offset": "2288", "xoff": "777632"}
    other = _lossless(**row) | {"DEVICE_METADATA": {"localhost": {"hostname": "sw", "platform": "x86_64-dell"}}}
    assert _rules(other) == set()
    assert "headroom-outside-group" in _rules(_lossless(**row))


def test_a_pool_of_nothing_is_for_ports_that_are_not_in_use():
    zero = {"zero": {"pool": "zero_pool", "size": "0", "static_th": "0"}}
    tables = WHOLE | {
        "BUFFER_POOL": POOLS | {"zero_pool": {"type": "ingress", "mode": "static", "size": "0"}},
        "BUFFER_PROFILE": LOSSY | zero,
        "BUFFER_PG": WHOLE["BUFFER_PG"] | {"Ethernet4|0": {"profile": "zero"}},
    }
    assert _rules(tables) == set()


def test_a_watchdog_that_starts_by_itself_is_one():
    assert "watchdog-missing" in _rules(WHOLE, "warning")
    local = WHOLE["DEVICE_METADATA"]["localhost"] | {"default_pfcwd_status": "enable"}
    assert "watchdog-missing" not in _rules(WHOLE | {"DEVICE_METADATA": {"localhost": local}}, "warning")


def test_shared_headroom_without_a_ratio_is_oversubscribed_on_purpose():
    pool = {"ingress_lossless_pool": POOLS["ingress_lossless_pool"] | {"xoff": "1000000"}}
    tables = _lossless(size="18432", xon="18432", xoff="277824") | {"BUFFER_POOL": pool}
    assert "headroom-beyond-pool" in _rules(tables, "warning")
    ratio = {"DEFAULT_LOSSLESS_BUFFER_PARAMETER": {"AZURE": {"over_subscribe_ratio": "1"}}}
    assert "headroom-beyond-pool" in _rules(tables | ratio)


def test_rows_as_the_database_has_them_and_references_as_they_were():
    tables = _lossless(size="19456", xon="19456", xoff="277824")
    pool = {"ingress_lossless_pool": POOLS["ingress_lossless_pool"] | {"xoff": "1000000"}}
    tables = tables | {"BUFFER_POOL": pool}
    for name, table in (("BUFFER_PROFILE", "BUFFER_POOL"), ("BUFFER_PG", "BUFFER_PROFILE")):
        field = {"BUFFER_POOL": "pool", "BUFFER_PROFILE": "profile"}[table]
        tables[name] = {key: row | {field: f"[{table}|{row[field]}]"} for key, row in tables[name].items()}
    flat = {f"{table}|{key}": row for table, rows in tables.items() for key, row in rows.items()}
    assert read_switch(json.dumps(flat), "f")[0] == read_switch(json.dumps(tables), "f")[0]
    assert _rules(flat) == set()


def test_headroom_says_nothing_where_a_file_has_no_maps_at_all():
    tables = {name: rows for name, rows in _lossless(size="96256", xoff="277824").items() if name in DATABASE}
    assert "qos-map-missing" not in _rules(tables)
    assert "qos-map-missing" in _rules(tables | {"PORT_QOS_MAP": {"Ethernet0": MAPS}})


@pytest.mark.parametrize(
    ("platform", "chip"),
    [
        ("x86_64-mlnx_msn2410-r0", "spectrum-1"),
        ("x86_64-mlnx_msn3800-r0", "spectrum-2"),
        ("x86_64-nvidia_sn4280-r0", "spectrum-3"),
        ("x86_64-nvidia_sn5400-r0", "spectrum-4"),
        ("x86_64-nvidia_sn5640-r0", "spectrum-5"),
        ("x86_64-nvidia_sn6600_ld-r0", "spectrum-6"),
        ("x86_64-kvm_x86_64-r0", ""),
    ],
)
def test_the_number_of_a_box_names_its_chip(platform: str, chip: str):
    assert chip_of_platform(platform) == chip


def test_switches_have_addresses_layouts_and_cages_of_their_own():
    made = configuration(plan(spec_of(topology={"kind": "fat-tree", "tiers": 2}, hosts=80)), "sonic").switches
    assert len({switch.box.mac for switch in made.values()}) == len(made) > 2


@pytest.mark.parametrize(
    ("rate", "sku", "cages", "lanes"),
    [("400 Gb/s", "Mellanox-SN5600-O128", ["1", "1", "2", "2"], 4), ("800 Gb/s", "ACS-SN5600", list("1234"), 8)],
)
def test_ports_of_a_box_are_where_its_layout_has_them(
    rate: str, sku: str, cages: list[str], lanes: int, tmp_path: Path
):
    of = plan(spec_of(kind="dgx-b300", link_rate=rate, trunk_rate=rate))
    write(of, tmp_path, ("sonic",))
    tables = json.loads((tmp_path / "sonic/leaf-0/config_db.json").read_text())
    assert tables["DEVICE_METADATA"]["localhost"]["hwsku"] == sku
    rows = list(tables["PORT"].values())[:4]
    assert [row["index"] for row in rows] == cages
    assert {len(row["lanes"].split(",")) for row in rows} == {lanes}


@pytest.mark.second
def test_cages_are_split_where_a_box_has_fewer_than_cables(tmp_path: Path):
    few = configuration(plan(spec_of()), "nvue", os="nvue").switches
    assert list(few["leaf-0"].ports)[:2] == ["swp1", "swp2"]
    of = plan(spec_of(hosts=72))
    made = configuration(of, "nvue", os="nvue").switches
    assert list(made["leaf-0"].ports)[:3] == ["swp1s0", "swp1s1", "swp2s0"]
    read = written(of, tmp_path, ("nvue", "host"), os="nvue")
    assert read.configuration.switches["leaf-0"].ports["swp2s1"].link.jack == 4
    assert lint(read.configuration, read.problems) == []


def test_a_port_that_the_box_has_not_is_refused():
    box = BOXES["spectrum-4"]
    for os, number, gbps in (("sonic", 65, 800), ("sonic", 129, 400), ("nvue", 65, 800)):
        assert port_name(os, box, [], number - 1, gbps * 10**9)
        with pytest.raises(ConfigError, match="expected at most 64 cages of 8 lanes"):
            port_name(os, box, [], number, gbps * 10**9)


def test_lanes_of_spectrum_3_have_50_gb_s_each():
    of = plan(spec_of(switch="tomahawk-5-white-box", qos={"chip": "spectrum-3"}))
    assert {port.link.lanes for port in configuration(of, "sonic").switches["leaf-0"].ports.values()} == {8}


def test_headroom_of_nvue_is_what_the_threshold_leaves_of_the_buffer():
    script = """
nv set qos pfc p switch-priority 3
nv set qos pfc p port-buffer 250000
nv set qos pfc p xoff-threshold 20000
nv set qos pfc p xon-threshold 9000
nv set qos pfc q switch-priority 3
nv set qos pfc q cable-length 10
nv set interface swp1 qos pfc profile p
nv set interface swp2 qos pfc profile q
"""
    switch, problems = read_nvue(script, "startup.sh")
    assert not problems.found
    group = switch.ports["swp1"].qos.groups[3]
    assert (group.size_bytes, group.xoff_bytes, group.xon_offset_bytes) == (250_000, 230_000, 9_000)
    assert not switch.ports["swp2"].qos.groups, "the switch derives it from the cable"


STARTUP = """
- header:
    model: SN5600
- set:
    interface:
      swp1-2:
        link:
          breakout:
            2x: {}
      swp1s0-1:
        link: {mtu: 9216}
    qos:
      roce: {enable: on}
    system: {hostname: leaf01}
"""
COMMANDS = """cumulus@switch:~$ nv set interface swp1-2 link breakout 2x
nv set interface swp1s0-1 link mtu 9216
nv set qos roce
nv set system hostname leaf01
"""


def test_roces_mode_sets_what_no_command_says():
    read, problems = read_nvue(COMMANDS, "f")
    assert not problems.found
    port = read.ports["swp1s1"]
    assert list(read.ports) == ["swp1s0", "swp1s1"]
    assert (port.qos.trust, port.qos.pfc, port.link.jack) == ("dscp", {3}, 2)
    assert (port.qos.maps.queue_of(26), port.qos.maps.queue_of(48), port.qos.maps.queue_of(10)) == (3, 6, 0)
    assert port.qos.queues[6].scheduler == "strict"
    assert port.qos.queues[3].ecn is not None
    assert read_yaml_switch(STARTUP, "f")[0] == read
    assert kind_of(STARTUP) == "nvue-yaml"
    off, _ = read_nvue(COMMANDS + "nv set qos roce enable off\n", "f")
    assert not off.ports["swp1s0"].qos.pfc
    lossy, _ = read_nvue(COMMANDS + "nv set qos roce mode lossy\n", "f")
    assert (lossy.ports["swp1s0"].qos.trust, lossy.ports["swp1s0"].qos.pfc) == ("dscp", frozenset())


@pytest.mark.parametrize("text", ["- set:\n    a: [\n", "- header:\n    a: b\n"])
def test_a_broken_startup_yaml_is_named(text: str):
    with pytest.raises(ConfigError, match=r"^startup\.yaml:"):
        read_yaml_switch(text, "startup.yaml")


def test_a_startup_yaml_that_means_endlessly_many_commands_is_refused():
    doubled = "".join(f"    a{n}: &a{n} {{x: *a{n - 1}, y: *a{n - 1}}}\n" for n in range(1, 40))
    with pytest.raises(ConfigError, match="more than"):
        read_yaml_switch(f"- set:\n    a0: &a0 {{x: 1}}\n{doubled}", "startup.yaml")
    with pytest.raises(ConfigError, match="is not YAML"):
        read_yaml_switch("- set: &a\n    x: *a\n", "startup.yaml")


@pytest.mark.parametrize(
    "text",
    [
        "import os\nself.x = os.path\nsys.path = []\n",
        "resources:\n- one.yaml\nname: demo\n",
        "node01\nnode02\n",
        "notes - see below for more\nlogs - kept for a week\n",
        "torchrun \\\n  --nnodes=2 \\\n  --master-port=29500 train.py\n",
        '{"name": "web", "dependencies": {"left": "1"}}\n',
        '{"PORT": "8080", "log-driver": {"a": "b"}}\n',
    ],
)
def test_what_is_no_configuration_is_taken_for_none(text: str):
    assert kind_of(text) == ""


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("Default=0x7fff,ipoib:ALL=full;\n", "partitions"),
        ("Default = 0x7fff, ipoib, mtu=5 :\n  ALL=full;\n", "partitions"),
        ("Default : ALL=full, SELF=full ;\n", "partitions"),
        ("* soft memlock unlimited\n", "limits"),
        ("docker run --gpus all --rm image\n", "container"),
        ("net.core.rmem_max=1\n", "sysctl"),
        ("# at boot\nnvidia-peermem\n", "modules"),
    ],
)
def test_what_people_write_is_recognised(text: str, kind: str):
    assert kind_of(text) == kind


def test_a_file_of_a_folder_that_cannot_be_read_hides_no_other(tmp_path: Path):
    (tmp_path / "broken.json").write_text('{"PORT": {"Ethernet0": {}')
    (tmp_path / "qos.json").write_text(json.dumps(QOS))
    read = read_files([tmp_path])
    assert list(read.configuration.switches) == [str(tmp_path / "qos.json")]
    assert [problem.key for problem in read.problems] == ["broken.json"]


def test_commands_are_found_behind_what_is_around_them():
    assert commands_of("for i in 1 2; do sudo -E mlnx_qos -i eth$i --trust=dscp; done")[1] == (
        "mlnx_qos", "-i", "eth$i", "--trust=dscp"
    )  # fmt: skip
    assert commands_of("echo 1 | sudo tee /sys/x") == (("echo", "1", ">", "/sys/x"),)
    assert commands_of("echo 1 >/sys/x 2>/dev/null")[0][:4] == ("echo", "1", ">", "/sys/x")
    assert commands_of("A=1 mlnx_qos -i x || true") == (("mlnx_qos", "-i", "x"), ("true",))


def test_a_script_as_people_write_it():
    script = """#!/bin/bash
IF=ens1np0
sudo mlnx_qos -i ${IF} --trust dscp && sudo mlnx_qos -i $IF --pfc 0,0,0,1,0,0,0,0
for p in 3; do echo 1 | sudo tee /sys/class/net/ens1np0/ecn/roce_np/enable/3 > /dev/null; done
if true; then cma_roce_mode -d mlx5_0 -p 1 -m 2; fi
"""
    host, problems = read_script(script, "setup.sh", "node")
    assert not problems.found
    adapter = host.adapters["ens1np0"]
    assert (adapter.qos.trust, adapter.qos.pfc) == ("dscp", {3})
    assert adapter.roce.ecn_notification == {3}
    assert host.adapters["mlx5_0"].roce.roce_mode == 2


def test_partitions_as_opensms_manual_has_them():
    text = """
Default=0x7fff,ipoib,mtu=5:
    mgid=ff12:401b::0707,sl=1 # a group
    mgid=ff12:601b::16
    ALL, SELF=full;
Shared = 0x300 : SELF=full ;
Shared = 0x300 : ALL=limited, 0x3456789034=limi ;
"""
    assert kind_of(text) == "partitions"
    read, problems = read_text_as("partitions", text, "partitions.conf")
    assert not problems.found
    assert read.subnet is not None
    assert [one.members for one in read.subnet.partitions] == [
        {"ALL": "limited", "SELF": "full"},
        {"SELF": "full"},
        {"ALL": "limited", "0x3456789034": "limited"},
    ]
    assert lint(read, problems.found) == []
    assert "partition-limited" in {f.rule for f in lint(*_read("partitions", "A=0x2:ALL=limited;"))}


def _read(kind: str, text: str) -> tuple[Configuration, list[Any]]:
    read, problems = read_text_as(kind, text, "f")
    return read, problems.found


def test_what_opensm_writes_for_what_is_not_set_is_nothing_said():
    text = (
        "lmc 0\nqos_max_vls 0\nqos_high_limit -1\nqos_vlarb_high (null)\nqos_sl2vl (null)\nqos_ca_sl2vl (null)\n"
    )
    assert lint(*_read("opensm", text + "qos FALSE\nar_mode 1\nlmc_esp0 FALSE\n")) == []
    assert {f.rule for f in lint(*_read("opensm", text + "sweep_intervall 10\n"))} == {"option-unknown"}


class TestOpensm:
    """What the real OpenSM writes."""

    pytestmark = JUDGED_BY_REAL_TOOLS

    def test_its_own_configuration_is_clean(self, tmp_path: Path):
        path = tmp_path / "opensm.conf"
        subprocess.run(["opensm", "-c", str(path)], capture_output=True, check=False, timeout=60)
        assert len(path.read_text().splitlines()) > 100
        assert lint(*_read("opensm", path.read_text())) == []
