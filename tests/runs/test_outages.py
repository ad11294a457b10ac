"""What breaks while a job runs, as lines of a spec: with a subnet manager and without; options of routing."""

from __future__ import annotations

import json

import pytest
from support.specs import SMALL, boxes_job, write_spec

from fabrictwin.base.errors import ConfigError, SimulatedError
from fabrictwin.cli import OK, main
from fabrictwin.cluster.spec.spec import load_spec
from fabrictwin.report.report import report_html
from fabrictwin.report.summary import summary
from fabrictwin.report.terminal import block
from fabrictwin.runs.execute import predict, prepare
from fabrictwin.twin.routed_twin import make_twin

MS = 10**9
MANAGED = "subnet_manager: {},"
CUT = "{link: leaf-0/6, rate: 0 Gb/s, at: 1 ms, until: 3 ms}"


@pytest.fixture
def spec(tmp_path):
    def write(*faults: str, fidelity="packet", manager=MANAGED, routing="", technology="infiniband", batches=4):
        switch = "qm8700" if technology == "infiniband" else "spectrum-4"
        network = f"""\
    technology: {technology}
    switch: {switch}
    topology: {{kind: fat-tree, tiers: 2, leaf_down: 4, spines: 4}}
    routing: {{{routing}}}"""
        packet = "packet: {timeout: 6}" if technology == "infiniband" else ""
        run = f"run: {{fidelity: {fidelity}, {manager} {packet}}}\n"
        text = boxes_job(f"faults: [{', '.join(faults)}]\n{run}", count=8, network=network, batches=batches)
        return load_spec(write_spec(tmp_path, text, SMALL))

    return write


def test_a_cut_cable_is_told_in_the_summary_the_terminal_and_the_report(spec):
    result = predict(spec(CUT, batches=8))
    told = summary(result)["subnet_manager"]
    assert (told["engine"], told["subnets"], told["findings"]) == ("dmodk", 1, [])
    cut, mend = told["events"]
    assert (cut["what"], mend["what"]) == ("cut leaf-0/6", "mend leaf-0/6")
    assert (cut["at_ps"], mend["at_ps"]) == (MS, 3 * MS)
    assert MS < cut["noticed_ps"] < MS + cut["outage_ps"] <= cut["settled_ps"] < 3 * MS
    assert cut["packets_lost"] > 0
    assert cut["packets_retransmitted"] >= cut["packets_lost"]
    assert mend["settled_ps"] < result.trace.end_ps
    assert (mend["broken_paths"], mend["outage_ps"], mend["packets_lost"]) == (0, None, 0)
    assert cut["table_entries_changed"] == len(cut["entries"]) > 0
    away = {(e["switch"], e["destination"]): (e["before"], e["after"]) for e in cut["entries"]}
    back = {(e["switch"], e["destination"]): (e["after"], e["before"]) for e in mend["entries"]}
    assert away == back
    used = {(p["source"], p["destination"]) for p in cut["job_paths"]}
    assert used <= {(s, p["destination"]) for p in cut["paths"] for s in p["sources"]}
    assert ("host-1/mlx5_0", "host-5/mlx5_0") in used
    assert all(p["broken"] and 0 < p["outage_ps"] <= cut["outage_ps"] for p in cut["job_paths"])
    text = block(result, None)
    assert f"{len(used)} of them the job's" in text
    assert "cut leaf-0/6 at 1 ms: noticed at 1.02 ms" in text
    assert "packets lost" in text
    assert "What broke" in report_html(result)
    assert "cut leaf-0/6" in report_html(result)


@pytest.mark.second
def test_with_a_manager_a_cut_costs_less_than_without(spec):
    cut = CUT.replace("3 ms", "2.5 ms")  # before queue pairs give up, after seven time-outs of 262 us
    managed = predict(spec(cut)).trace.end_ps
    alone = predict(spec(cut, manager="")).trace.end_ps
    calm = predict(spec()).trace.end_ps
    assert calm < managed < alone
    assert calm == predict(spec(manager="")).trace.end_ps, "same LIDs, same tables, same run"


@pytest.mark.parametrize("fidelity", ["packet", "flow"])
def test_a_switch_that_reboots(spec, fidelity):
    """The spine that the job's paths take goes off and comes back."""
    reboot = "{switch: spine-1, at: 1 ms, until: 4 ms}"
    result = predict(spec(reboot, fidelity=fidelity, batches=16))
    told = summary(result)["subnet_manager"]["events"]
    assert [event["what"] for event in told] == ["off spine-1", "on spine-1"]
    assert told[1]["settled_ps"] is not None
    assert told[0]["outage_ps"] > 0
    assert any("spine-1" in name for name in told[0]["gone"])
    assert any("spine-1" in name for name in told[1]["arrived"])
    assert told[1]["packets_lost"] in (0, None)
    if fidelity == "flow":
        alone = predict(spec(reboot, fidelity=fidelity, manager="", batches=16))
        assert result.trace.end_ps < alone.trace.end_ps
    else:  # 3 ms is more than seven timeouts of 262 us
        with pytest.raises(SimulatedError, match="gave up after 7 retries"):
            predict(spec(reboot, manager=""))
    assert (told[0]["packets_lost"] is None) == (fidelity == "flow")


@pytest.mark.parametrize("technology", ["infiniband", "ethernet"])
def test_without_a_manager_a_switch_that_is_off_takes_its_links_down_and_up(spec, technology):
    calm = predict(spec(manager="", fidelity="flow", technology=technology)).trace.end_ps
    line = "{switch: leaf-0, at: 1 ms, until: 2 ms}"
    off = predict(spec(line, manager="", fidelity="flow", technology=technology)).trace.end_ps
    assert calm + 0.4 * MS < off < calm + 1.6 * MS
    with pytest.raises(SimulatedError, match=r"leaf-0.*link down"):
        predict(spec("{switch: leaf-0, at: 1 ms}", manager="", fidelity="flow", technology=technology))


def test_a_leaf_that_is_gone_for_good_is_an_error_with_a_manager_too(spec):
    with pytest.raises(SimulatedError, match="gave up after 7 retries"):
        predict(spec("{switch: leaf-0, at: 1 ms}"))


@pytest.mark.second
def test_a_slow_link_is_not_the_managers_business(spec):
    slow = "{link: host-1/mlx5_0, rate: 20 Gb/s, at: 0 s}"
    managed, alone = predict(spec(slow)), predict(spec(slow, manager=""))
    assert managed.trace.end_ps == alone.trace.end_ps
    assert summary(managed)["subnet_manager"]["events"] == []
    errors = "{link: host-1/mlx5_0, error_rate: 1e-6}"
    assert predict(spec(errors)).trace.end_ps == predict(spec(errors, manager="")).trace.end_ps


@pytest.mark.second
def test_what_a_datagram_takes_is_in_the_outage(spec):
    def outage(manager: str) -> int:
        return summary(predict(spec(CUT, manager=manager)))["subnet_manager"]["events"][0]["outage_ps"]

    normal = outage(MANAGED)
    assert outage("subnet_manager: {mad_time: 10 us},") < 0.6 * normal
    assert outage("subnet_manager: {window: 16},") < 0.6 * normal
    assert outage("subnet_manager: {hop_time: 5 us},") > 1.2 * normal


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"manager": "subnet_manager: {host: host-9/mlx5_0},"}, r"run.subnet_manager.host: got 'host-9/mlx5_0'"),
        ({"manager": "subnet_manager: {hots: a},"}, "did you mean 'host'"),
        ({"manager": "subnet_manager: {window: 0},"}, "subnet_manager.window"),
        ({"fidelity": "analytic"}, "got it at fidelity analytic, expected flow or packet"),
        ({"technology": "ethernet"}, "got a subnet manager on ethernet"),
        ({"routing": "engine: ftree, weights: {leaf-0/5: 3}"}, "which the engine ftree has no use for"),
    ],
)
def test_what_makes_no_sense_is_one_line(spec, change, message):
    with pytest.raises(ConfigError, match=message) as caught:
        predict(spec(**change))
    assert caught.value.line


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("{switch: spine-9, at: 1 ms}", r"faults\[0\].switch: got switch 'spine-9'.*did you mean"),
        ("{switch: spine-1, at: 2 ms, until: 1 ms}", "got until that is not after at"),
        ("{switch: spine-1, att: 2 ms}", "did you mean 'at'"),
        ("{link: leaf-0/6, rate: 0 Gb/s, at: 2 ms}, {switch: leaf-0, at: 1 ms}", "while an earlier fault changes"),
    ],
)
def test_a_reboot_that_makes_no_sense_is_one_line(spec, fault, message):
    with pytest.raises(ConfigError, match=message) as caught:
        prepare(spec(fault))
    assert caught.value.line == 16


# -- options of routing ------------------------------------------------------------------------------------------


def test_options_of_routing_reach_the_engine_and_the_manager(spec):
    from fabrictwin.cluster.build_blueprint import build

    given = "engine: updown, roots: ['spine-*'], weights: {leaf-0/5: 9}, lmc: 1, lanes: 2"
    one = spec(routing=given)
    twin = make_twin(one, build(one.cluster, spec=one))
    fabric = twin.fabric
    roots = {int(fabric.node_guid[n]) for n in fabric.switch_nodes if fabric.node_name(int(n)).startswith("spine")}
    assert set(twin.options.roots) == roots
    leaf = int(fabric.node_guid[fabric.find_node("leaf-0")])
    assert (twin.options.weights, twin.options.lmc, twin.options.lanes) == ({(leaf, 5): 9}, 1, 2)
    assert twin.routes.lmc == 1
    # a path of that weight is taken by nobody who has another
    row = twin.routes.switches.node_row[fabric.find_node("leaf-0")]
    assert not (twin.routes.lft[row] == 5).any() or (twin.routes.lft[row] == 5).sum() <= 1
    managed = predict(one)
    assert summary(managed)["subnet_manager"]["engine"] == "updown"
    named = spec(routing=f"engine: updown, roots: ['{next(iter(roots)):#018x}']")
    assert make_twin(named, build(named.cluster, spec=named)).options.roots == (next(iter(roots)),)


@pytest.mark.parametrize(
    ("routing", "message"),
    [
        ("roots: [spine-7]", r"spec.yaml:9 cluster.network.routing.roots\[0\]: got 'spine-7'.*did you mean"),
        ("roots: [0xzz]", "expected a GUID"),
        ("weights: {leaf-9/1: 2}", "expected a port of a switch"),
        ("weights: {leaf-0/99: 2}", "expected a port of leaf-0 from 1 to 40"),
        ("weights: {leaf-0/1: 0}", "weights"),
        ("lmc: 8", "lmc"),
    ],
)
def test_options_that_make_no_sense_are_one_line(spec, routing, message):
    with pytest.raises(ConfigError, match=message) as caught:
        prepare(spec(routing=routing))
    assert caught.value.line == 9


def test_ethernet_takes_none_of_them(spec):
    with pytest.raises(ConfigError, match="got lmc on ethernet"):
        prepare(spec(routing="lmc: 1", technology="ethernet", manager=""))


def test_run_prints_it(spec, tmp_path, capsys):
    spec(CUT)
    assert main(["run", str(tmp_path / "spec.yaml"), "--out", str(tmp_path / "out"), "--json"]) == OK
    told = json.loads(capsys.readouterr().out)["subnet_manager"]
    assert told["events"][0]["entries"][0].keys() == {"switch", "destination", "before", "after"}
    assert main(["run", str(tmp_path / "out" / "config.resolved.yaml"), "--out", str(tmp_path / "again")]) == OK
    assert (tmp_path / "out" / "summary.json").read_text() == (tmp_path / "again" / "summary.json").read_text()


def test_a_managers_quality_of_service_is_checked(spec):
    with pytest.raises(ConfigError, match=r"run\.subnet_manager\.qos_sl2vl: got 3 lanes, expected 16"):
        predict(spec(manager='subnet_manager: {qos_sl2vl: "0,1,2"},'))


SLOW = 'congestion_control: {cc_ca_cong_setting_ccti_min: 1, cc_cct: "0:0,0:3"}'  # a quarter of each link


@pytest.mark.second
def test_managers_take_other_settings_while_the_job_runs(spec):
    """From the change on every adapter sends at a quarter of its rate: the earlier, the longer the job takes."""

    def end(manager):
        return predict(spec(manager=manager, batches=8)).trace.end_ps

    calm = end("subnet_manager: {},")
    after, late, early = (
        end(f"subnet_manager: {{mad_time: 2 us, changes: [{{time: {time}, {SLOW}}}]}},")
        for time in ("1000 s", "3500 us", "1 us")
    )
    assert after == calm
    assert calm < late < early
    back = 'congestion_control: {cc_cct: "0:0"}'
    both = end(
        f"subnet_manager: {{mad_time: 2 us, changes: [{{time: 1 us, {SLOW}}}, {{time: 3500 us, {back}}}]}},"
    )
    assert calm < both < early


@pytest.mark.second
def test_a_host_that_is_taken_out_of_its_partition_ends_the_job(spec, tmp_path):
    """The last host becomes a member of another partition alone: nobody answers it any more."""
    twin = make_twin(spec(), prepare(spec()).twin.blueprint)
    guid = int(twin.fabric.port_guid[twin.fabric.nic_node[7]])
    rest = ", ".join(f"{int(twin.fabric.port_guid[node]):#x}=full" for node in twin.fabric.nic_node[:7])
    (tmp_path / "partitions.conf").write_text(f"Default=0x7fff : {rest} ;\nother=0x1 : {guid:#x}=full ;\n")
    with pytest.raises(SimulatedError, match="gave up after 7 retries"):
        predict(spec(manager="subnet_manager: {changes: [{time: 1 us, partitions: partitions.conf}]},"))
    with pytest.raises(SimulatedError, match="gave up after 7 retries"):
        predict(spec(manager="subnet_manager: {partitions: partitions.conf},"))
    (tmp_path / "partitions.conf").write_text("Default=0x7fff : ALL=full ;\n")
    same = predict(spec(manager="subnet_manager: {changes: [{time: 1 us, partitions: partitions.conf}]},"))
    assert same.trace.end_ps == predict(spec()).trace.end_ps


def test_nodes_join_a_group_while_the_job_runs(spec):
    member = "'host-2/mlx5_0 ff12:401b::77'"
    lines = f"[{{time: 100 us, join: {member}}}, {{time: 2 ms, leave: {member}}}]"
    result = predict(spec(manager=f"subnet_manager: {{changes: {lines}}},"))
    told = summary(result)["subnet_manager"]["events"]
    assert [event["what"].split(" ")[0] for event in told] == ["join", "leave"]
    joined, left = (outage.incident.answers for outage in result.management.outages)
    assert joined[0].replace("a member of", "left") == left[0]
    assert result.trace.end_ps == predict(spec()).trace.end_ps  # data does not wait for management


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ("{time: 1 ms}", "got a time alone"),
        (
            "{time: 1 ms, join: host-2/mlx5_0}",
            r"changes\[0\].join: got 'join host-2/mlx5_0', expected 'join NODE MGID'",
        ),
        ("{time: 1 ms, qos_sl2vl: '1,2'}", r"run.subnet_manager.changes\[0\].qos_sl2vl: got 2 lanes"),
        ("{time: 1 ms, qos_sl2vl: '" + ",".join(["1"] * 16) + "'}", "lead to lane 1, expected lanes below 1"),
    ],
)
def test_settings_that_cannot_be_taken_are_refused(spec, change, says):
    with pytest.raises(ConfigError, match=says):
        predict(spec(manager=f"subnet_manager: {{changes: [{change}]}},"))
