"""Random verbs calls on random small fabrics, against a plain reference: same bytes, same statuses, nothing lost,
order kept within a queue pair.

The reference knows no fabric and no time: each queue pair's requests happen one after the other, when both the
request and what it needs are there. What different queue pairs do to the same bytes at the same time has no order,
so each has memory of its own.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from functools import cache

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test
from support import verbs_ends
from support.clusters import blueprint
from support.verbs_ends import ALL, End, connect

from fabrictwin.twin import Twin
from fabrictwin.verbs import current_host as place
from fabrictwin.verbs.pyverbs import enums as e
from fabrictwin.verbs.pyverbs.qp import QPAttr
from fabrictwin.verbs.pyverbs.wr import SGE, RecvWR

SIZE = 4096  # of an end's region; its last 8 bytes are the word that atomics add to
WORD = SIZE - 8
DEPTH = 32


@dataclass
class Model:
    """One direction: requests that wait, receives that wait, and what each end is to be told."""

    memory: bytearray = field(default_factory=lambda: bytearray(SIZE))
    sends: deque = field(default_factory=deque)
    receives: deque = field(default_factory=deque)
    told: list = field(default_factory=list)  # (wr_id, status) of sends, in order
    received: list = field(default_factory=list)  # (wr_id, status) of receives, in order
    failed: bool = False

    def fail(self) -> None:
        self.failed = True
        self.told += [(wr_id, e.IBV_WC_WR_FLUSH_ERR) for wr_id, *_ in self.sends]
        self.received += [(wr_id, e.IBV_WC_WR_FLUSH_ERR) for wr_id, *_ in self.receives]
        self.sends.clear()
        self.receives.clear()


@cache
def fabric(technology: str, hosts: int) -> Twin:
    shape = {"kind": "fat-tree", "tiers": 2, "leaf_down": 2, "oversubscription": 1}
    switch = "qm8700" if technology == "infiniband" else "spectrum-4"
    return Twin(blueprint(hosts, "pcie-box", technology=technology, switch=switch, topology=shape))


class Verbs(RuleBasedStateMachine):
    """Pairs of queue pairs; each rule posts something, and now and then everything is looked at."""

    @initialize(
        technology=st.sampled_from(["infiniband", "ethernet"]),
        hosts=st.integers(2, 6),
        pairs=st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), min_size=1, max_size=3),
    )
    def build(self, technology, hosts, pairs):
        twin = fabric(technology, hosts)
        verbs_ends.world(twin)
        names = twin.fabric.host_names
        self.ends, self.models = [], []
        for a, b in pairs:
            one, other = (
                End(names[h % hosts], size=SIZE, depth=DEPTH, cqe=8 * DEPTH, signal_all=1) for h in (a, b)
            )
            connect(one, other, qp_access_flags=ALL)
            self.ends += [one, other]
            self.models += [Model(), Model()]
        self.posted = 0

    # ------------------------------------------------------------------ posting

    def pick(self, which):
        at = which % len(self.ends)
        return at, at ^ 1

    def room(self, at):
        return self.ends[at].qp.qp.occupied < DEPTH

    def post(self, at, opcode, entry, /, **wanted):
        """Post to an end's queue pair and to its model."""
        self.posted += 1
        self.ends[at].send(opcode, wr_id=self.posted, **wanted)
        self.models[at].sends.append((self.posted, opcode, *entry))

    spans = st.tuples(st.integers(0, 1000), st.integers(0, 1000), st.integers(0, 900))

    @rule(which=st.integers(0, 5), span=spans, data=st.binary(min_size=1, max_size=8))
    def write_memory(self, which, span, data):
        """Only where no request is under way: what is sent meanwhile has no defined bytes."""
        self.look()
        at, _ = self.pick(which)
        if self.models[at].sends:
            return
        start = span[0]
        self.ends[at].mr.write(data, len(data), start)
        self.models[at].memory[start : start + len(data)] = data

    @rule(which=st.integers(0, 5), span=spans)
    def rdma_write(self, which, span):
        at, far = self.pick(which)
        if self.room(at):
            # sources in the first half, targets in the second: both directions may be under way
            source, target, length = span[0], 2048 + span[1], span[2]
            request = {"offset": source, "length": length, "remote": self.ends[far], "at": target}
            self.post(at, e.IBV_WR_RDMA_WRITE, (source, target, length, 0), **request)

    @rule(which=st.integers(0, 5), span=spans)
    def rdma_read(self, which, span):
        at, far = self.pick(which)
        self.look()  # what is under way could change what is read, or lie where it lands
        if not self.models[at].sends and not self.models[far].sends:
            source, target, length = span[0], 2048 + span[1], span[2]
            request = {"offset": target, "length": length, "remote": self.ends[far], "at": source}
            self.post(at, e.IBV_WR_RDMA_READ, (source, target, length, 0), **request)
            self.look()

    @rule(which=st.integers(0, 5), add=st.integers(0, 2**64 - 1))
    def fetch_add(self, which, add):
        at, far = self.pick(which)
        if self.room(at):
            request = {"offset": 2040, "length": 8, "remote": self.ends[far], "at": WORD, "operands": (add,)}
            self.post(at, e.IBV_WR_ATOMIC_FETCH_AND_ADD, (0, 0, 8, add), **request)

    @rule(which=st.integers(0, 5), span=spans)
    def send(self, which, span):
        at, _far = self.pick(which)
        if self.room(at):
            self.post(at, e.IBV_WR_SEND, (span[0], 0, span[2], 0), offset=span[0], length=span[2])

    @rule(which=st.integers(0, 5), span=spans)
    def receive(self, which, span):
        at, _ = self.pick(which)
        end, model = self.ends[at], self.models[at]
        if end.qp.qp.receives.posted >= DEPTH:
            return
        self.posted += 1
        target = 2048 + span[1]
        end.qp.post_recv(RecvWR(self.posted, 1, [end.sge(target, 900)]))
        model.receives.append((self.posted, target))

    @precondition(lambda self: self.posted > 4)
    @rule(
        which=st.integers(0, 5), what=st.sampled_from(["rkey", "bounds", "lkey", "room"]), behind=st.integers(0, 3)
    )
    def do_wrong(self, which, what, behind):
        """One wrong request, with right ones behind it; then both ends begin anew."""
        self.look()
        at, far = self.pick(which)
        one, other = self.ends[at], self.ends[far]
        if self.models[at].sends or self.models[far].sends or (what == "room" and self.models[far].receives):
            return
        request, status, opcode = {"length": 64, "remote": other}, e.IBV_WC_REM_ACCESS_ERR, e.IBV_WR_RDMA_WRITE
        if what == "rkey":
            request["rkey"] = other.mr.rkey + 1
        elif what == "bounds":
            request["at"] = SIZE - 63
        elif what == "lkey":
            del request["length"]
            request["sge"], status = SGE(one.mr.buf, 64, one.mr.lkey + 1), e.IBV_WC_LOC_PROT_ERR
        else:
            del request["remote"]
            opcode, status = e.IBV_WR_SEND, e.IBV_WC_REM_INV_REQ_ERR
            self.posted += 1
            other.qp.post_recv(RecvWR(self.posted, 1, [other.sge(2048, 63)]))
            self.models[far].received.append((self.posted, e.IBV_WC_LOC_LEN_ERR))
        self.post(at, opcode, (0, 0, -status, 0), **request)
        for _ in range(behind):
            self.post(at, e.IBV_WR_RDMA_WRITE, (0, 2048, 64, 0), offset=0, length=64, remote=other, at=2048)
        self.look()
        for end, model in ((one, self.models[at]), (other, self.models[far])):
            end.qp.modify(QPAttr(qp_state=e.IBV_QPS_RESET), e.IBV_QP_STATE)
            model.receives.clear()
            model.failed = False
        connect(one, other, qp_access_flags=ALL)

    # ------------------------------------------------------------------ looking

    @rule()
    def look(self):
        """Let everything happen that can, in both, and compare."""
        world = place.world()
        world.settle()
        for at, model in enumerate(self.models):
            self.play(model, self.models[at ^ 1])
        for at, (end, model) in enumerate(zip(self.ends, self.models, strict=True)):
            _, seen = end.cq.poll(8 * DEPTH)
            sends = [(wc.wr_id, wc.status) for wc in seen if wc.opcode < 128]
            receives = [(wc.wr_id, wc.status) for wc in seen if wc.opcode >= 128]
            assert sends == model.told, at
            assert receives == model.received, at
            assert [wc.timestamp_ps for wc in seen] == sorted(wc.timestamp_ps for wc in seen)
            assert end.mr.read(SIZE, 0) == bytes(model.memory), at
            model.told.clear()
            model.received.clear()

    def play(self, model, far):
        """Do what an end has posted, until it waits for a receive."""
        while model.sends and not model.failed:
            wr_id, opcode, source, target, length, add = model.sends[0]
            status = e.IBV_WC_SUCCESS
            if length < 0:
                status = -length
            elif opcode == e.IBV_WR_SEND:
                if not far.receives:
                    return
                theirs, at = far.receives.popleft()
                far.received.append((theirs, e.IBV_WC_SUCCESS))
                far.memory[at : at + length] = model.memory[source : source + length]
            elif opcode == e.IBV_WR_RDMA_WRITE:
                far.memory[target : target + length] = model.memory[source : source + length]
            elif opcode == e.IBV_WR_RDMA_READ:
                model.memory[target : target + length] = far.memory[source : source + length]
            else:
                before = int.from_bytes(far.memory[WORD:], "little")
                model.memory[2040:2048] = before.to_bytes(8, "little")
                far.memory[WORD:] = ((before + add) % 2**64).to_bytes(8, "little")
            model.sends.popleft()
            model.told.append((wr_id, status))
            if status != e.IBV_WC_SUCCESS:
                model.fail()
                if status != e.IBV_WC_LOC_PROT_ERR:
                    far.fail()


@pytest.mark.parametrize(
    "engine",
    ["analytic", pytest.param("flow", marks=pytest.mark.second), pytest.param("packet", marks=pytest.mark.second)],
)
def test_random_calls_do_what_the_reference_does(engine, monkeypatch):
    monkeypatch.setattr(verbs_ends, "ENGINE", engine)
    run_state_machine_as_test(
        Verbs,
        settings=settings(
            max_examples=12,
            stateful_step_count=20,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
