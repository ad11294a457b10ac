"""Rules of several managers (IBTA volume 1, 14.4), and times of datagrams in flight, on objects of a few lines."""

from __future__ import annotations

from fractions import Fraction
from types import SimpleNamespace as Record

import pytest

from fabrictwin.subnet.agents.mad_routing import Fate, Frame
from fabrictwin.subnet.manager import election
from fabrictwin.subnet.manager.election import POLL_PS, Election
from fabrictwin.subnet.manager.mad_transport import MadTiming, TwinTransport
from fabrictwin.subnet.wire.header import LidSmp, Method
from fabrictwin.subnet.wire.smp import AttributeId, Capability, SmInfo, SmState

DISCOVERING, STANDBY, MASTER, NOT_ACTIVE = (
    SmState.DISCOVERING, SmState.STANDBY, SmState.MASTER, SmState.NOT_ACTIVE
)  # fmt: skip
HANDOVER, ACKNOWLEDGE, DISABLE, TO_STANDBY, DISCOVER = 1, 2, 3, 4, 5


class Manager:
    """A manager of priority 5 and GUID 50 in a state, and what others answer when they are asked."""

    def __init__(self, state=DISCOVERING, *answers, after=3):
        self.asked = []
        self.answers = list(answers)
        transport = Record(exchange=self._exchange, now_ps=700)
        self.election = Election(transport, Record(sm_key=9, priority=5, take_over_after=after))
        self.election.state, self.election.guid, self.election.wants_sweep = state, 50, False

    def _exchange(self, requests):
        self.asked += requests
        return [self.answers.pop(0) for _ in requests]


def info(guid, priority, state):
    return SmInfo(guid=guid, priority=priority, sm_state=state)


def says(guid, priority, state, status=0):
    return status, info(guid, priority, state).encode().ljust(64, b"\0")


def subnet(*guids):
    """Nodes with managers' ports of these GUIDs, LIDs as their GUIDs."""
    nodes = {}
    for guid in guids:
        node = Record(is_switch=False, guid=guid, info=Record(port_guid=guid, local_port_num=1), path=("to", guid))
        port = Record(node=node, number=1, info=Record(capability_mask=Capability.IS_SM, lid=guid))
        node.ends = lambda port=port: [port]
        nodes[guid] = node
    return Record(nodes=nodes)


@pytest.mark.parametrize(
    ("guid", "priority", "above"), [(10, 5, True), (60, 5, False), (10, 4, False), (60, 6, True), (50, 5, False)]
)
def test_priority_ranks_before_the_lower_guid(guid, priority, above):
    """Rank of another against this one."""
    assert (not Manager().election._ranks_above(info(guid, priority, STANDBY)) and guid != 50) == above


@pytest.mark.parametrize(
    ("state", "answers", "master", "by"),
    [
        (DISCOVERING, [], True, None),
        (DISCOVERING, [None], True, None),  # it says that it manages, and nobody is there
        (DISCOVERING, [says(10, 9, STANDBY, status=4)], True, None),
        (DISCOVERING, [says(10, 4, STANDBY)], True, None),
        (DISCOVERING, [says(10, 5, STANDBY)], False, 10),
        (DISCOVERING, [says(10, 5, DISCOVERING)], False, 10),
        (DISCOVERING, [says(10, 5, NOT_ACTIVE)], True, None),
        (DISCOVERING, [says(60, 1, MASTER)], False, 60),  # a master keeps the subnet, whatever its rank
        (DISCOVERING, [says(10, 9, STANDBY), says(20, 1, MASTER)], False, 20),
        (DISCOVERING, [says(10, 6, STANDBY), says(20, 9, STANDBY)], False, 20),
        (DISCOVERING, [says(20, 9, STANDBY), says(10, 9, STANDBY)], False, 10),
        (MASTER, [says(60, 5, STANDBY)], True, None),
        (MASTER, [says(10, 5, MASTER)], False, 10),  # two masters: the lower yields
        (MASTER, [says(60, 5, MASTER)], True, None),
        (MASTER, [says(10, 5, STANDBY), (0, bytes(64))], False, 10),  # handed over
        (MASTER, [says(10, 5, STANDBY), None], True, None),
        (MASTER, [says(10, 5, STANDBY), (4, bytes(64))], True, None),
        (MASTER, [says(10, 6, STANDBY), says(20, 9, STANDBY), (0, bytes(64))], False, 20),
    ],
)
def test_who_is_master(state, answers, master, by):
    count = len([answer for answer in answers if answer is None or any(answer[1])])
    guids = [10, 20, 60] if count == 3 else [SmInfo.decode(a[1]).guid if a and any(a[1]) else 10 for a in answers]
    guids = guids[: len(answers)] if state != MASTER else [g for g in guids if g][: max(1, len(answers) - 1)]
    if state == MASTER and len(answers) == 1:
        guids = [SmInfo.decode(answers[0][1]).guid]
    made = Manager(state, *answers)
    assert made.election.elect(subnet(*guids)) == master
    if by is None:
        assert made.election.state == state
    else:
        assert (made.election.state, made.election._master.guid) == (STANDBY, by)
        assert made.election._next_poll_ps == 700 + POLL_PS
    handed = [one for one in made.asked if one[1] == Method.SET]
    assert len(handed) == (state == MASTER and any(a and a[1] and SmInfo.decode(a[1]).sm_state == STANDBY
                                                  and SmInfo.decode(a[1]).guid < 50 for a in answers))  # fmt: skip
    if handed:
        assert handed[0][3] == HANDOVER
        assert SmInfo.decode(handed[0][4]).guid == 50


def test_oneself_and_those_that_manage_nothing_are_not_asked():
    made = Manager(DISCOVERING, says(20, 1, STANDBY))
    fabric = subnet(50, 20, 30)
    fabric.nodes[30].ends()[0].info.capability_mask = 0
    assert made.election.elect(fabric)
    assert [one[0] for one in made.asked] == [("to", 20)]
    assert {guid: lid for guid, (lid, _) in made.election.others.items()} == {20: 20}


@pytest.mark.parametrize(
    ("answers", "after", "state"),
    [
        ([says(10, 9, MASTER)], 1, STANDBY),
        ([None], 2, STANDBY),
        ([None], 1, DISCOVERING),
        ([None, None], 2, DISCOVERING),
        ([None, says(10, 9, MASTER), None], 2, STANDBY),  # heard again: counted anew
        ([says(10, 9, MASTER, status=4), None], 2, DISCOVERING),
        ([says(10, 4, STANDBY)], 3, DISCOVERING),  # no master any more, and of lower rank
        ([says(10, 4, NOT_ACTIVE)], 3, DISCOVERING),
        ([says(10, 9, STANDBY)], 3, STANDBY),
        ([says(10, 4, DISCOVERING)], 3, STANDBY),
    ],
)
def test_a_standby_manager_takes_over_from_a_silent_master(answers, after, state):
    made = Manager(STANDBY, *answers, after=after)
    made.election._master = Record(path="master")
    for n in range(len(answers)):
        made.election.poll(n * POLL_PS)
        made.election.poll(n * POLL_PS + POLL_PS - 1)  # too early
    assert len(made.asked) == len(answers)
    assert made.election.state == state
    assert made.election.wants_sweep == (state == DISCOVERING)
    for other in (MASTER, DISCOVERING, NOT_ACTIVE):
        quiet = Manager(other)
        quiet.election._master = Record(path="master")
        quiet.election.poll(10 * POLL_PS)
        assert quiet.asked == []


@pytest.mark.parametrize(
    ("state", "modifier", "then", "sweeps"),
    [
        (STANDBY, HANDOVER, DISCOVERING, True), (STANDBY, DISABLE, NOT_ACTIVE, False), (STANDBY, DISCOVER,
        DISCOVERING, True),
        (STANDBY, ACKNOWLEDGE, STANDBY, False), (STANDBY, TO_STANDBY, STANDBY, False),
        (NOT_ACTIVE, TO_STANDBY, DISCOVERING, True), (NOT_ACTIVE, HANDOVER, NOT_ACTIVE, False),
        (NOT_ACTIVE, DISABLE, NOT_ACTIVE, False), (NOT_ACTIVE, DISCOVER, NOT_ACTIVE, False),
        (MASTER, HANDOVER, MASTER, False), (MASTER, DISABLE, MASTER, False), (MASTER, DISCOVER, MASTER, False),
        (DISCOVERING, HANDOVER, DISCOVERING, False), (DISCOVERING, DISABLE, DISCOVERING, False),
    ],
)  # fmt: skip
@pytest.mark.parametrize("method", [Method.GET, Method.SET])
def test_what_another_manager_asks(state, modifier, then, sweeps, method):
    made = Manager(state)
    data = info(77, 9, MASTER).encode().ljust(64, b"\0")
    mad = LidSmp(method=method, tid=5, attribute=AttributeId.SM_INFO, modifier=modifier, data=data).encode()
    answer = made.election.answer(Frame(3, 4, 0, 0, mad))
    asked = method == Method.SET
    assert made.election.state == (then if asked else state)
    assert made.election.wants_sweep == (sweeps and asked)
    assert (77 in made.election.others) == asked
    reply = LidSmp.decode(answer.mad)
    assert (answer.dlid, answer.slid, reply.method, reply.status, reply.tid) == (4, 3, 0x81, 0, 5)
    said = SmInfo.decode(reply.data)
    assert (said.guid, said.priority, said.sm_state, said.sm_key) == (50, 5, made.election.state, 9)
    assert (election.HANDOVER, election.DISABLE, election.STANDBY) == (HANDOVER, DISABLE, TO_STANDBY)


# ---------------------------------------------------------------------- datagrams in flight


def carried(hops, *, window=4, agent=100, hop=10, retries=0, fates=(), loss=0.0):
    """A transport after one exchange of requests over so many hops each; the clock starts at 1,000."""
    seen = []

    def send(slot, frame, now):
        seen.append((slot, now))
        fate = fates[len(seen) - 1] if len(seen) <= len(fates) else Fate.ANSWERED
        mad = bytearray(256)
        mad[4:6] = (0x8007).to_bytes(2, "big")
        return Record(fate=fate, slot=9, frame=None if fate == Fate.DROPPED else Frame(0, 0, 0, 0, bytes(mad)))

    timing = MadTiming(agent_ps=agent, hop_ps=hop, window=window, retries=retries, timeout_ps=5000)
    made = TwinTransport(Record(send=send), 3, timing=timing, now_ps=1000, loss=loss)
    requests = [(Record(hops=n, ports=bytes(64)), 1, 0x11, 0, bytes(64)) for n in hops]
    return made, made.exchange(requests), seen


@pytest.mark.parametrize("window", [1, 4])
@pytest.mark.parametrize("hops", [[0], [3], [2, 2, 2], [5, 0, 1]])
def test_a_window_of_datagrams_is_in_flight(window, hops):
    """There and back over the hops, and the agent's time; each ends 1/window of its time after the one before."""
    made, answers, seen = carried(hops, window=window)
    took = [100 + 20 * n for n in hops]
    shared = 0
    for n, (one, back, (slot, at)) in enumerate(zip(took, made.answered_ps(), seen, strict=True)):
        shared += one
        assert slot == 3
        assert back == pytest.approx(1000 + Fraction(shared, window) + one - Fraction(one, window), abs=1)
        assert at == back - 10 * hops[n]
    assert made.now_ps == pytest.approx(1000 + shared / window + max(took) * (1 - 1 / window), abs=1)
    assert answers == [(7, bytes(64))] * len(hops)  # without the bit of the direction
    assert (made.statistics.requests, made.statistics.repeated, made.statistics.unanswered) == (len(hops), 0, 0)
    assert made.statistics.by_attribute == {(1, 0x11): len(hops)}


@pytest.mark.parametrize("retries", [0, 2])
def test_what_is_lost_is_asked_again_after_its_time(retries):
    made, answers, _ = carried([1, 1], retries=retries, fates=[Fate.DROPPED, Fate.ANSWERED], window=1)
    assert (answers[0] is None) == (retries == 0)
    assert answers[1] is not None
    assert made.now_ps == 1000 + 2 * 120 + 5000 + (120 if retries else 0)
    assert (made.statistics.repeated, made.statistics.unanswered) == ((1, 0) if retries else (0, 1))
    made, answers, seen = carried([1], retries=retries, loss=1.0)
    assert (answers, seen, made.statistics.requests) == ([None], [], 1 + retries)
    for fate in (Fate.UNROUTABLE, Fate.FORWARDED):  # nobody else is there to answer
        assert carried([1], fates=[fate])[1] == [None]
