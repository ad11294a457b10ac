"""Texts and data of what managers did, from records of a few lines."""

from __future__ import annotations

from types import SimpleNamespace as Record

import pytest
from support.sm_fabrics import Site, two_tiers

from fabrictwin.subnet.manager.mad_transport import Statistics
from fabrictwin.subnet.manager.sweep_report import Rerouting, SweepReport
from fabrictwin.subnet.operation import sweep_text
from fabrictwin.subnet.operation.changed_paths import ChangedPath, path_text
from fabrictwin.subnet.operation.managed_fabric import Entry, Incident
from fabrictwin.subnet.operation.scenario import Scenario, first_sweep_datagrams
from fabrictwin.subnet.wire.smp import SmState

NONE, US = -1, 10**6


def report(**more):
    plain = {
        "kind": "heavy", "state": SmState.MASTER, "started_ps": 5 * US, "ended_ps": 12 * US, "nodes": 1200,
        "switches": 20,
        "endpoints": 1180, "engine": "ftree", "remark": "", "findings": (), "arrived": (), "gone": (),
        "rerouting": None,
    }  # fmt: skip
    return SweepReport(**(plain | more))


def path(sources=("a", "b"), broken=NONE, whole=9 * US, *, adapter=True, before=("1",), after=("2",)):
    return ChangedPath("leaf-0", tuple(sources), "host-9", adapter, 17, tuple(before), tuple(after), broken, whole)


def entries(count):
    return [Entry(f"s{n}", "host-9", n, n + 1) for n in range(count)]


def rerouting(broken, repaired):
    return Rerouting(broken, 3, 1, (), repaired)


def incident(**more):
    return Incident(**({"happened": [(10 * US, "cut a"), (11 * US, "cut b")], "sweeps": [report()]} | more))


def test_a_first_sweep_is_three_lines_and_its_findings():
    assert sweep_text.sweep_lines(report(), 1234, Statistics(5678, 9, 1)) == [
        "master: 1,200 nodes, 20 switches, 1,180 adapters, 1,234 LIDs",
        "tables by ftree",
        "5,678 datagrams in 7 us of the twin's time, 9 repeated, 1 unanswered",
    ]
    lines = sweep_text.sweep_lines(report(remark="no roots", findings=("x", "y")), 0, Statistics())
    assert lines[1] == "tables by ftree (no roots)"
    assert lines[3:] == ["found x", "found y"]


def test_an_incident_that_nobody_noticed():
    assert sweep_text.event_lines(incident(sweeps=[])) == ["cut a, cut b: nobody noticed"]
    assert (incident().at_ps, incident().what) == (10 * US, "cut a, cut b")


@pytest.mark.parametrize(
    ("more", "line"),
    [
        ({}, "  no path was broken"),
        ({"paths": [path()]}, "  no path was broken"),
        (
            {"paths": [path(), path(broken=1)]},
            "  no path between what the manager still reaches was broken; what follows was cut off from it",
        ),
        (
            {
                "sweeps": [
                    report(rerouting=rerouting(1500, 14 * US)),
                    report(rerouting=rerouting(2, NONE)),
                    report(),
                ]
            },
            "  1,502 paths (switch to LID) broken, for 4 us at most",
        ),
        ({"sweeps": [report(rerouting=rerouting(3, 10 * US))]}, "  3 paths (switch to LID) broken, not mended"),
        ({"sweeps": [report(rerouting=rerouting(3, NONE))]}, "  3 paths (switch to LID) broken, not mended"),
    ],
)
def test_what_was_broken_and_for_how_long(more, line):
    assert sweep_text.event_lines(incident(**more))[1] == line


@pytest.mark.parametrize("count", [0, 1, 5, 6, 1005])
def test_a_few_entries_are_named_and_the_others_counted(count):
    lines = sweep_text.event_lines(incident(entries=entries(count)))
    assert lines[2] == f"  {count:,} table entries changed"
    named = [f"    s{n} to host-9: port {n or 'itself'} -> {n + 1}" for n in range(min(count, 5))]
    assert lines[3:] == named + ([f"    and {count - 5:,} more"] if count > 5 else [])


@pytest.mark.parametrize("count", [1, 5, 7])
def test_who_came_and_who_is_gone_in_all_sweeps(count):
    names = tuple(f"h{n}" for n in range(count))
    event = incident(sweeps=[report(gone=names[:1]), report(gone=names[1:], arrived=("new",), findings=("odd",))])
    rest = " and 2 more" if count == 7 else ""
    assert sweep_text.event_lines(event)[3:] == [
        f"  gone: {', '.join(names[:5])}{rest}", "  arrived: new", "  found odd",
    ]  # fmt: skip


def test_paths_between_adapters_are_counted_in_pairs():
    assert sweep_text.path_lines([]) == []
    assert sweep_text.path_lines([path(adapter=False)]) == []
    assert sweep_text.path_lines([path(sources=())]) == []
    whole = [path(), path(("c",))]
    assert sweep_text.path_lines(whole)[0] == "  paths of 3 pairs of adapters changed"
    broken = [*whole, path(broken=2 * US), path(("d",), broken=6 * US), path(("e", "f"), broken=1, whole=NONE)]
    assert sweep_text.path_lines(broken)[0] == (
        "  paths of 8 pairs of adapters changed; 5 were broken, for 3 us to 7 us; 2 lead nowhere now"
    )
    assert len(sweep_text.path_lines(broken)) == 1 + 5
    assert sweep_text.path_lines([*broken, path(adapter=False)])[-1] == f"    {path_text(broken[-1])}"
    more = sweep_text.path_lines([*broken, path(), path()])
    assert len(more) == 1 + 5 + 1
    assert more[-1] == "    and 2 more of a switch and an adapter"
    forever = sweep_text.path_lines([path(("e",), broken=1, whole=NONE)])
    assert forever[0] == "  paths of 1 pairs of adapters changed; 1 were broken; 1 lead nowhere now"


@pytest.mark.parametrize(
    ("made", "text"),
    [
        (path(("a",)), "leaf-0 to host-9: 1 -> 2"),
        (path(), "leaf-0 (2 adapters) to host-9: 1 -> 2"),
        (path(("a",), before=("1", "7"), after=()), "leaf-0 to host-9: 1 > 7 -> nowhere"),
        (path(("a",), before=(), after=("3",)), "leaf-0 to host-9: nowhere -> 3"),
        (path(("a",), after=("1",)), "leaf-0 to host-9: 1 -> the same"),
        (path(("a",), after=("1",), whole=NONE), "leaf-0 to host-9: 1 -> nowhere"),
    ],
)
def test_a_path_in_a_line(made, text):
    assert path_text(made) == text


@pytest.mark.parametrize(
    ("broken", "whole", "outage"), [(NONE, 5, NONE), (5, NONE, NONE), (5, 9, 4), (9, 5, 0), (0, 0, 0)]
)
def test_an_outage_lasts_from_the_loss_to_the_new_way(broken, whole, outage):
    made = path(broken=broken, whole=whole)
    assert made.outage_ps == outage
    data = sweep_text.path_data(made)
    assert (data["arrives"], data["broken"]) == (whole != NONE, broken != NONE)
    assert data["outage_ps"] == (None if outage == NONE else outage)
    assert (data["switch"], data["sources"], data["lid"], data["before"], data["after"]) == (
        "leaf-0", ["a", "b"], 17, ["1"], ["2"],
    )  # fmt: skip
    assert (made.pairs, path(adapter=False).pairs) == (2, 0)


@pytest.mark.parametrize(
    ("least", "most", "text"),
    [(0, 0, "0 s"), (0, US, "0 s to 1 us"), (US, US, "1 us"), (US, 2 * US, "1 us to 2 us")],
)
def test_spans(least, most, text):
    assert sweep_text.span_text(least, most) == text


def test_an_incident_as_data_has_nothing_for_what_did_not_happen():
    event = incident(
        noticed_ps=NONE, settled_ps=20 * US, entries=entries(2), paths=[path()],
        sweeps=[report(gone=("x",), findings=("first",)), report(gone=("y",), arrived=("z",), findings=("last",))],
    )  # fmt: skip
    data = sweep_text.incident_data(event, event.sweeps)
    assert (data["what"], data["at_ps"], data["noticed_ps"], data["settled_ps"]) == (
        "cut a, cut b",
        10 * US,
        None,
        20 * US,
    )
    assert (data["broken_paths"], data["outage_ps"], data["table_entries_changed"]) == (0, None, 2)
    assert data["entries"][1] == {"switch": "s1", "destination": "host-9", "before": 1, "after": 2}
    assert (data["gone"], data["arrived"], data["findings"]) == (["x", "y"], ["z"], ["last"])
    assert len(data["paths"]) == 1
    assert sweep_text.incident_data(event, [])["findings"] == []


def test_scenarios_as_data_count_what_each_manager_sent():
    one = Record(
        transport=Record(statistics=Statistics(100, 7, 3)), manager=Record(malformed=2,
        database=Record(lid={1: 1, 2: 2})),
        endpoint=Record(state=Record(malformed=5)),
    )  # fmt: skip
    data = sweep_text.as_json(Record(managers=[one]), [report(findings=("odd",))], [incident()])
    assert data["subnets"][0]["datagrams"] == {"requests": 100, "repeated": 7, "unanswered": 3, "malformed": 7}
    assert data["subnets"][0]["lids"] == 2
    assert data["subnets"][0]["sweep"]["state"] == "master"
    assert data["subnets"][0]["sweep"]["findings"] == ["odd"]
    assert [event["what"] for event in data["events"]] == ["cut a, cut b"]


@pytest.mark.parametrize("shape", [(1, 1, 2), (3, 2, 2), (2, 3, 4)])
def test_a_first_sweep_sends_the_datagrams_that_were_counted_on(shape):
    scenario = Scenario(Site(two_tiers(*shape), manage=False).endpoint)
    assert scenario.progress == 0
    scenario.start()
    sent = scenario.managers[0].transport.statistics
    assert sent.requests == first_sweep_datagrams(scenario.endpoint.state, 0)
    assert sum(sent.by_attribute.values()) == sent.requests
    assert scenario.progress == 0.99
    assert first_sweep_datagrams(scenario.endpoint.state, 1) == 2 - 0
