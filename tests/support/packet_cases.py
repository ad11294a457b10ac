"""Random small fabrics and traffic as plain values, and machines made of them."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st
from support.packet_wiring import US, dumbbell, fat_tree, infiniband, machine, post, roce, set_dcqcn, star

from fabrictwin.kernel.packet import invariants as checks
from fabrictwin.kernel.packet.machine import Machine
from fabrictwin.kernel.packet.state import constants as s

SHAPES = ("star", "dumbbell", "tree")
SAMPLE = {
    "lossy": False, "lanes": 2, "selective": True, "control": 1, "ack_every": 2, "window": s.NEVER, "seed": 5,
    "batch": 4096,
}  # fmt: skip


@st.composite
def cases(draw, kinds=("ethernet", "infiniband"), lossy=(False, True), largest=120_000):
    """A fabric, a configuration, flows and queue pair options, as plain values."""
    shape = draw(st.sampled_from(SHAPES))
    hosts = {"star": 5, "dumbbell": 6, "tree": 16}[shape]
    pair = st.tuples(st.integers(0, hosts - 1), st.integers(0, hosts - 1)).filter(lambda p: p[0] != p[1])
    flows = draw(st.lists(st.tuples(pair, st.integers(0, largest)), min_size=1, max_size=12))
    return {
        "shape": shape,
        "kind": draw(st.sampled_from(kinds)),
        "lossy": draw(st.sampled_from(lossy)),
        "cut": draw(st.booleans()),
        "lanes": draw(st.sampled_from([1, 2])),
        "balance": draw(st.sampled_from([s.ECMP, s.ADAPTIVE])),
        "selective": draw(st.booleans()),
        "control": draw(st.sampled_from([0, 1])),
        "ack_every": draw(st.integers(1, 5)),
        "window": draw(st.sampled_from([10_000, 60_000, s.NEVER])),
        "errors": draw(st.sampled_from([0, 0, 10**8, 10**9])),
        "seed": draw(st.integers(1, 1000)),
        "batch": draw(st.sampled_from([0, 4096])),
        "flows": [(a, b, size) for (a, b), size in flows],
    }


def make_case(case: dict[str, Any]) -> Machine:
    """Return a machine on which a case is posted."""
    options = {
        "kind": case["kind"],
        "cut_through": case["cut"],
        "latency_ps": 200_000,
        "switch_latency_ps": 100_000,
        "buffer_bytes": 200_000 if case["lossy"] else 4 << 20,
        "credit_bytes": 16 << 10,
    }
    builders = {
        "star": lambda: star(5, **options),
        "dumbbell": lambda: dumbbell(3, 3, **options),
        "tree": lambda: fat_tree(4, **options),
    }
    changes = {
        "lanes": case["lanes"],
        "balance": case["balance"],
        "seed": case["seed"],
        "window_packets": 256,
        "credit_batch_bytes": case["batch"],
        "ecn_kmin_bytes": 20_000,
        "ecn_kmax_bytes": 80_000,
        "ecn_bps": 400 * 10**9,
        "ecn_pmax_q": 2**30,
        "cnp_ps": 10 * US,
    }
    if case["kind"] == "ethernet":
        config = roce(lossless=0 if case["lossy"] else 0xFF, **changes)
    else:
        config = infiniband(**changes)
    selective = case["selective"] or case["balance"] == s.ADAPTIVE
    m = machine(
        builders[case["shape"]](),
        config,
        [],
    )
    flows = case["flows"]
    post(
        m,
        flows,
        mode=s.SELECTIVE if selective else s.GO_BACK_N,
        reorder=s.NEVER if case["balance"] == s.ADAPTIVE else 0,
        control=case["control"],
        ack_every=case["ack_every"],
        window_bytes=case["window"],
        rto_ps=200 * US,
        retry_limit=1000,
        sl=case["lanes"] - 1,
    )
    set_dcqcn(m)
    extra = [(i % len(flows), 100 * i) for i in range(2 * len(flows))]
    m.add_tasks([s.MESSAGE] * len(extra), [q for q, _ in extra], [size for _, size in extra], [0] * len(extra))
    if case["errors"]:
        for port in range(0, len(m.state.port), 3):
            m.set_errors(port, case["errors"])
    return m


def run_case(case: dict[str, Any], *, check: bool = True) -> Machine:
    """Play a case to its very end."""
    m = make_case(case)
    if check:
        for stop in (1, 3, 10, 30, 100):
            m.run(stop * US)
            assert checks.violations(m.state) == []
    m.run(drain=True)
    return m


def assert_every_byte_arrived(m: Machine) -> None:
    """Hold a drained machine to its laws: all tasks done, all bytes delivered, every packet back in the pool."""
    assert checks.violations(m.state) == []
    clock = m.state.clock[0]
    assert (m.state.task.status == s.DONE).all()
    assert clock.payload_delivered == m.state.task.size_bytes.sum()
    assert clock.free == len(m.state.packet)
    assert clock.created == clock.delivered + clock.refused + clock.dropped
