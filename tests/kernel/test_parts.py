"""A fabric in parts: the same bytes for any number of threads, any order of parts, and any window."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.packet_cases import SAMPLE, assert_every_byte_arrived, cases, make_case, run_case
from support.packet_wiring import US, fat_tree, infiniband, machine, ring, roce, set_dcqcn, star
from support.processes import answers_of

from fabrictwin.kernel.packet import invariants as checks
from fabrictwin.kernel.packet import parts as at_work
from fabrictwin.kernel.packet.division import divide_ports, usual_parts
from fabrictwin.kernel.packet.machine import Machine, MachineError
from fabrictwin.kernel.packet.state import build
from fabrictwin.kernel.packet.state import constants as s

RELAXED = settings(max_examples=15, suppress_health_check=[HealthCheck.too_slow])
NOT_COMPARED = ("free", "free_head", "pad", "sequence", "heap", "lanes", "kicks", "stall_seen", "random", "tail")


def result(m) -> str:
    """Everything that a run leaves behind, as one hash; where events and packets stand is left out.

    A queue that is empty keeps the number of its last packet: which of the free ones that was is of no account.
    """
    h, state = hashlib.sha256(), m.state
    for name in ("clock", "port", "count", "outlet", "inlet", "hold", "node", "task", "qp", "dcqcn"):
        array = getattr(state, name)
        for field in array.dtype.names:
            if field not in NOT_COMPARED and not field.startswith("lane_"):
                h.update(np.ascontiguousarray(array[field]).tobytes())
    h.update(state.log[: int(state.clock[0].logged)].tobytes())
    h.update(state.queued.tobytes())
    return h.hexdigest()


def change(m, what: str, at: int, lossless: bool) -> None:
    """Let something happen to a port from outside."""
    if what == "down":
        m.set_rate(at, 0)
    elif what == "slow":
        m.set_rate(at, 100 * 10**9)
    elif what == "up":
        m.set_rate(at, 400 * 10**9)
    elif what == "errors":
        m.set_errors(at, 10**9)
    elif lossless:
        m.storm(at, 0, what == "storm")


def play(case, *, threads=1, shuffle=0, cuts=(), check=False):
    """Play a case in parts to its very end, with changes at their times."""
    m = make_case(case)
    m.divide(divide_ports(m.wiring, case["parts"]))
    m.threads = threads
    if shuffle:
        m.shuffle = np.random.default_rng(shuffle).permutation(m.parts)
    lossless = case["kind"] == "ethernet" and not case["lossy"]
    stops = sorted([*case["changes"], *((at, None, 0) for at in cuts)], key=lambda stop: stop[0])
    for time, what, port in stops:
        m.run(time)
        if check:
            m.join()
            assert checks.violations(m.state) == []
        if what:
            change(m, what, port % len(m.state.port), lossless)
    m.run(drain=True)
    m.join()
    return m


@st.composite
def divided(draw):
    """A case with parts, and with changes of links."""
    case = draw(cases())
    case["parts"] = draw(st.integers(2, 9))
    changes = []
    for _ in range(draw(st.integers(0, 3))):
        begin = draw(st.integers(0, 20 * US))
        what, after = draw(st.sampled_from([("down", "up"), ("slow", "up"), ("storm", "calm"), ("errors", "up")]))
        port = draw(st.integers(0, 1000))
        changes += [(begin, what, port), (begin + draw(st.integers(1, 20 * US)), after, port)]
    case["changes"] = sorted(changes)
    return case


@RELAXED
@given(divided(), st.integers(1, 1000))
@pytest.mark.second
def test_threads_and_the_order_of_parts_change_nothing(case, seed):
    once = result(play(case))
    for threads in (2, 3, 8):
        assert result(play(case, threads=threads)) == once
    assert result(play(case, shuffle=seed)) == once
    assert result(play(case, shuffle=seed, threads=2)) == once


@pytest.mark.slow
@settings(max_examples=200, suppress_health_check=[HealthCheck.too_slow])
@given(divided(), st.integers(1, 1000))
def test_threads_and_the_order_of_parts_change_nothing_in_many_cases(case, seed):
    once = result(play(case))
    for threads in (2, 3, 8, 16):
        assert result(play(case, threads=threads, shuffle=seed)) == once


@RELAXED
@given(divided(), st.lists(st.integers(0, 40 * US), max_size=5))
def test_neither_windows_nor_where_a_run_is_cut_change_anything(case, cuts):
    """Give the same bytes however a run is cut; where a link changes its rate ties may fall another way."""
    case["changes"] = []
    once = result(play(case))
    assert result(play(case, cuts=cuts)) == once
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(at_work, "LONGEST_WINDOW_PS", 77_777)
        assert result(play(case)) == once


@RELAXED
@given(divided())
def test_laws_hold_in_parts(case):
    m = play(case, check=True)
    assert_every_byte_arrived(m)
    assert (m.state.queued % s.OUT_OF_REACH == 0).all()
    assert not (m.state.port.traits & s.CROSSES).any()


@RELAXED
@given(divided())
def test_flows_that_never_meet_take_as_long_as_in_one_part(case):
    case["flows"] = case["flows"][:1]
    case["control"], case["balance"] = 0, s.ECMP
    case["changes"], case["errors"] = [], 0
    whole, parts = run_case(case, check=False), play(case)
    for name in ("start_ps", "received_ps", "done_ps", "psn_end"):
        assert (whole.state.task[name] == parts.state.task[name]).all()
    for name in ("hops", "events", "created", "delivered", "payload_delivered", "now"):
        assert whole.state.clock[name] == parts.state.clock[name]
    assert (whole.state.port.tx_bytes == parts.state.port.tx_bytes).all()


@pytest.mark.parametrize("parts", [1, 2])
def test_a_queue_pair_goes_on_when_its_link_is_back(parts):
    m = machine(star(3, latency_ps=200_000), roce(), [(2, 0, 100_000)])
    if parts > 1:
        m.divide(divide_ports(m.wiring, parts))
    m.run(0)
    m.set_rate(2, 0)
    m.run(20 * US)
    m.set_rate(2, 400 * 10**9)
    m.add_tasks([s.MESSAGE], [0], [50_000], [0])
    m.run(drain=True)
    assert (m.state.task.status[:2] == s.DONE).all()


FEW = [
    SAMPLE
    | {
        "shape": "tree",
        "kind": kind,
        "cut": cut,
        "balance": balance,
        "errors": errors,
        "flows": [(0, 9, 30_000), (2, 9, 30_000), (3, 4, 9_000), (9, 0, 20_000), (15, 9, 1)],
        "parts": parts,
        "changes": [(2 * US, "slow", 5), (6 * US, "up", 5)],
    }
    for kind, cut, balance, errors, parts in [
        ("ethernet", False, s.ADAPTIVE, 10**8, 4),
        ("infiniband", True, s.ECMP, 0, 7),
    ]
]

_SCRIPT = """
from test_parts import play, result
print(json.dumps([result(play(case, threads=2)) for case in cases]))
"""


def results_under(**environment: str) -> list[str]:
    """Results of a few cases in a process with those variables set."""
    return answers_of(_SCRIPT, FEW, **environment)


@pytest.mark.second
def test_compiled_and_interpreted_parts_are_equal():
    assert results_under(NUMBA_DISABLE_JIT="1") == [result(play(case)) for case in FEW]


@pytest.mark.second
def test_no_access_of_parts_is_out_of_bounds():
    assert results_under(NUMBA_BOUNDSCHECK="1") == [result(play(case)) for case in FEW]


def incast(hosts: int, *, kind: str = "ethernet", size: int = 300_000, **connection):
    """Hosts of a fat-tree of four pods send to the first, in four parts."""
    config = roce() if kind == "ethernet" else infiniband()
    m = machine(fat_tree(4, kind=kind), config, [(a, 0, size) for a in range(1, hosts)], rto_ps=0, **connection)
    m.divide(divide_ports(m.wiring, 4))
    return m


@pytest.mark.parametrize("kind", ["ethernet", "infiniband"])
def test_packets_go_back_to_parts_that_only_send(kind):
    """The pool stays as small as what is under way, though they are all freed in one part."""
    m = incast(16, kind=kind, size=3_000_000, window_bytes=60_000)
    m.run(drain=True)
    m.join()
    clock = m.state.clock[0]
    assert clock.created > 10_000
    assert len(m.state.packet) <= 4 * 2 * s.PACKET_MARGIN
    assert clock.free == len(m.state.packet)
    assert clock.dropped == 0


def test_room_grows_in_the_part_that_is_short(monkeypatch):
    monkeypatch.setattr(build, "lane_room", lambda ports, arrivals: 2)
    monkeypatch.setattr(at_work, "mail_entries", lambda chains, ports: (chains + 2 * 256 + 2) << 4)
    grown, grow = [], Machine._grow
    monkeypatch.setattr(Machine, "_grow", lambda m, status: grown.append(status) or grow(m, status))
    few = play(FEW[0])
    monkeypatch.undo()
    assert {s.GROW_LANES, s.GROW_MAIL} <= set(grown)
    assert result(few) == result(play(FEW[0]))


def test_a_run_ends_where_it_is_asked_to():
    m = incast(8)
    assert m.run(5 * US) == s.REACHED
    assert m.now <= 5 * US
    before = int(m.state.clock[0].events)
    assert m.run(budget=100) == s.SLICED
    assert int(m.state.clock[0].events) >= before + 100
    assert m.run() in (s.FINISHED, s.IDLE)
    assert int(m.state.clock[0].open) == 0
    assert m.run(drain=True) == s.IDLE
    ended = m.state.log[: int(m.state.clock[0].logged)]
    assert (np.diff(m.state.task.done_ps[ended]) >= 0).all()
    assert sorted(ended) == list(range(7))


def test_a_deadlock_is_found_across_parts():
    m = machine(
        ring(4, kind="infiniband", credit_bytes=8 << 10, latency_ps=200_000),
        infiniband(),
        [(a, (a + 2) % 4, 2_000_000) for a in range(4)],
        rto_ps=0,
    )
    m.divide(divide_ports(m.wiring, 4))
    assert m.parts == 4
    assert m.run() == s.STALLED
    assert m.deadlock is not None
    assert len(m.deadlock.cycle) == 4


def test_a_destination_without_a_way_is_named():
    m = incast(4)
    m.state.group_of[:] = s.NONE
    with pytest.raises(MachineError, match="no way to endpoint 0"):
        m.run()
    m.drops_unroutable = True
    m.run(200 * US)
    assert m.state.clock[0].dropped > 0


def test_what_belongs_to_no_single_part_is_played_in_one():
    for ask in (
        lambda m: m.tap([0], print),
        lambda m: m.add_messages(3),
        lambda m: m.use_congestion_tables(4),
        lambda m: m.add_tasks([s.MESSAGE, s.DELAY], [0, 0], [1, 0], [0, 0]),
        lambda m: m.add_tasks([s.MESSAGE] * 2, [0, 0], [1, 1], [0, 0], after=(np.array([1]), np.array([0]))),
    ):
        m = incast(4, kind="infiniband")
        m.run(3 * US)
        assert m.parts == 4
        ask(m)
        assert m.parts == 1
        m.divide(divide_ports(m.wiring, 4))
        assert m.parts == 1
    m = incast(4)
    m.run(3 * US)
    m.add_tasks([s.MESSAGE], [0], [1000], [0])
    assert m.parts == 4
    m.run()
    assert int(m.state.clock[0].open) == 0


def test_parts_without_a_delay_between_them_are_refused():
    m = machine(fat_tree(4, latency_ps=0), roce(), [(0, 9, 1000)])
    with pytest.raises(ValueError, match="without a delay"):
        m.divide(divide_ports(m.wiring, 4))
    m = machine(fat_tree(4), roce(), [(0, 9, 1000)])
    m.state.port.traits[0] |= s.INTERNAL
    with pytest.raises(ValueError, match="a host in two parts"):
        m.divide(np.arange(len(m.state.port)) > 0)


def test_pods_have_their_share_of_the_cores():
    wiring = fat_tree(8)
    pods = divide_ports(wiring, 8)
    assert (pods[wiring.endpoint_port] == np.arange(128) // 16).all()
    assert (np.bincount(pods) == 96).all()
    crosses = at_work.crossing(machine(wiring, roce(), []).state.port, pods)
    assert wiring.node_row[wiring.port_node[crosses]].min() >= 32  # between the upper tiers alone
    pairs = divide_ports(wiring, 4)
    assert (pairs[wiring.endpoint_port] == np.arange(128) // 32).all()
    assert divide_ports(wiring, 1).max() == 0
    leaves = divide_ports(wiring, 32)
    assert (leaves[wiring.endpoint_port] == np.arange(128) // 4).all()
    hosts = divide_ports(wiring, 1000)
    assert hosts.max() == 127


@pytest.mark.parametrize(("endpoints", "parts"), [(1, 1), (3999, 1), (4096, 16), (8192, 32), (100_000, 64)])
def test_large_fabrics_have_parts_and_small_ones_are_one(endpoints, parts):
    assert usual_parts(endpoints) == parts


def test_marks_come_as_often_as_in_one_part():
    """Parts draw from generators of their own: marks of an incast differ by chance alone."""
    counts = []
    for parts in (1, 4):
        config = roce(
            ecn_kmin_bytes=20_000, ecn_kmax_bytes=200_000, ecn_bps=400 * 10**9, ecn_pmax_q=2**31, cnp_ps=20 * US
        )
        m = machine(fat_tree(4), config, [(a, a % 4, 400_000) for a in range(4, 16)], control=1)
        set_dcqcn(m)
        if parts > 1:
            m.divide(divide_ports(m.wiring, parts))
        m.run(drain=True)
        counts.append(int(m.state.count.ecn_marks.sum()))
    assert min(counts) > 100
    assert abs(counts[0] - counts[1]) < 0.3 * counts[0]


@pytest.mark.slow  # compiles everything anew, for many minutes
def test_parts_agree_without_anything_that_numba_does_not_document(tmp_path):
    """`FABRICTWIN_PLAIN_NUMBA=1`: windows are Python's, the loop is compiled; the same results."""
    found = results_under(FABRICTWIN_CACHE=str(tmp_path), FABRICTWIN_PLAIN_NUMBA="1")
    assert found == [result(play(case)) for case in FEW]
