"""A small pipeline, made by hand, for the tests of run/: a program, what a simulation might say of it, a fabric.

Nothing here is simulated. Durations are given, and each operation starts when what it waits for has ended.
"""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace
from typing import Any

import numpy as np

from fabrictwin.fabric.fabric import NONE, Fabric, LinkKind, NodeKind
from fabrictwin.program.program import (
    Actor,
    Channels,
    Communication,
    Label,
    Operations,
    OpKind,
    Pattern,
    Program,
)
from fabrictwin.report.result import Asked, Reference, RunResult
from fabrictwin.trace.trace import Counters, Trace
from fabrictwin.workload.step.step_work import Lowered, Work

LABELS = (
    Label("forward", "compute"),
    Label("recompute", "recompute"),
    Label("backward", "compute"),
    Label("tensor all-reduce", "tp"),
    Label("activations", "pp"),
    Label("gradients", "dp"),
    Label("optimizer", "optimizer"),
)
FORWARD, RECOMPUTE, BACKWARD, TENSOR, ACTIVATIONS, GRADIENTS, OPTIMIZER = range(7)


def ring(ranks: np.ndarray, payload_bytes: int) -> Channels:
    """One all-reduce ring over `ranks`."""
    n = len(ranks)
    return Channels(
        pattern=np.array([Pattern.RING_ALL_REDUCE], np.int8),
        rank_start=np.array([0, n], np.int32),
        ranks=np.asarray(ranks, np.int32),
        parent=np.full(n, NONE, np.int32),
        shift=np.zeros(1, np.int32),
        payload_bytes=np.array([payload_bytes]),
        offset_bytes=np.zeros(1, np.int64),
        chunk_bytes=np.array([payload_bytes // n]),
    )


def message(source: int, target: int, payload_bytes: int) -> Channels:
    """One message."""
    return Channels(
        pattern=np.array([Pattern.MESSAGE], np.int8),
        rank_start=np.array([0, 2], np.int32),
        ranks=np.array([source, target], np.int32),
        parent=np.full(2, NONE, np.int32),
        shift=np.zeros(1, np.int32),
        payload_bytes=np.array([payload_bytes]),
        offset_bytes=np.zeros(1, np.int64),
        chunk_bytes=np.array([payload_bytes]),
    )


class Builder:
    """Collects operations and plays them: an operation starts when all it waits for has ended."""

    def __init__(self, actors: tuple[Actor, ...]) -> None:
        self.actors = actors
        self.rows: list[tuple[int, int, int, int, int, int, list[int]]] = []
        self.lasts: list[int] = []
        self.communications: list[Communication] = []
        self.participants: list[list[int]] = []

    def compute(self, actor: int, label: int, duration: int, after: list[int], micro_batch: int = NONE) -> int:
        self.rows.append((OpKind.COMPUTE, actor, duration, NONE, label, micro_batch, after))
        self.lasts.append(duration)
        return len(self.rows) - 1

    def communicate(
        self, communication: int, label: int, duration: int, after: list[int], micro_batch: int = NONE
    ) -> int:
        actor = self.participants[communication][0]
        self.rows.append((OpKind.COMMUNICATE, actor, 0, communication, label, micro_batch, after))
        self.lasts.append(duration)
        return len(self.rows) - 1

    def communication(self, communication: Communication, participants: list[int]) -> int:
        self.communications.append(communication)
        self.participants.append(participants)
        return len(self.communications) - 1

    def program(self, name: str = "sample") -> Program:
        after = [row[6] for row in self.rows]
        starts = np.cumsum([0, *(len(a) for a in after)]).astype(np.int32)
        columns = [np.array([row[k] for row in self.rows]) for k in range(6)]
        operations = Operations(
            kind=columns[0].astype(np.int8),
            actor=columns[1].astype(np.int32),
            duration_ps=columns[2].astype(np.int64),
            communication=columns[3].astype(np.int32),
            label=columns[4].astype(np.int16),
            micro_batch=columns[5].astype(np.int32),
            after_start=starts,
            after=np.array([i for a in after for i in a], np.int32),
        )
        return Program(
            name=name,
            ranks=sum(len(a.ranks) for a in self.actors),
            actors=self.actors,
            labels=LABELS,
            communications=tuple(self.communications),
            operations=operations,
            participants_start=np.cumsum([0, *map(len, self.participants)]).astype(np.int32),
            participants=np.array([a for p in self.participants for a in p], np.int32),
        )

    def trace(self, tx_bytes: np.ndarray | None = None) -> Trace:
        ends: list[int] = []
        begins: list[int] = []
        for row, duration in zip(self.rows, self.lasts, strict=True):
            begins.append(max((ends[i] for i in row[6]), default=0))
            ends.append(begins[-1] + duration)
        counters = Counters(tx_bytes=np.zeros(0, np.int64) if tx_bytes is None else tx_bytes)
        return Trace("flow", max(ends, default=0), np.array(begins, np.int64), np.array(ends, np.int64), counters)


def pipeline(stages: int = 2, micro_batches: int = 4, ranks_per_stage: int = 2, scale: int = 1_000_000) -> Builder:
    """1F1B: per micro-batch forward, tensor all-reduce, a message on; backward with recomputation; gradients."""
    actors = tuple(
        Actor(f"stage {s}", np.arange(s * ranks_per_stage, (s + 1) * ranks_per_stage, dtype=np.int32))
        for s in range(stages)
    )
    b = Builder(actors)
    tensor, gradients = (
        [
            b.communication(
                Communication(
                    f"{group} all-reduce, stage {s}", "all_reduce", "ring", size, 1, ring(actors[s].ranks, size)
                ),
                [s],
            )
            for s in range(stages)
        ]
        for group, size in (("tp", 1 << 20), ("dp", 1 << 26))
    )
    pair = {
        (s, t): b.communication(
            Communication(
                f"pp send, stage {s} to {t}",
                "send",
                "message",
                1 << 19,
                1,
                message(int(actors[s].ranks[0]), int(actors[t].ranks[0]), 1 << 19),
            ),
            [s, t],
        )
        for s in range(stages)
        for t in (s - 1, s + 1)
        if 0 <= t < stages
    }
    # the order of 1F1B on stage s: stages - 1 - s forwards first, then alternate, then the rest backward
    orders = []
    for s in range(stages):
        warm = min(stages - 1 - s, micro_batches)
        order = [("f", m) for m in range(warm)]
        for m in range(micro_batches - warm):
            order += [("f", warm + m), ("b", m)]
        order += [("b", m) for m in range(micro_batches - warm, micro_batches)]
        orders.append(order)
    chain: list[list[int]] = [[] for _ in range(stages)]
    sent: dict[tuple[str, int, int], int] = {}
    place = [0] * stages
    while any(place[s] < len(orders[s]) for s in range(stages)):
        for s in range(stages):
            while place[s] < len(orders[s]):
                way, m = orders[s][place[s]]
                source = s - 1 if way == "f" else s + 1
                waits = 0 <= source < stages
                if waits and (way, source, m) not in sent:
                    break
                after = chain[s] + ([sent[way, source, m]] if waits else [])
                if way == "f":
                    last = b.compute(s, FORWARD, 10 * scale, after, m)
                    last = b.communicate(tensor[s], TENSOR, 3 * scale, [last], m)
                else:
                    last = b.compute(s, RECOMPUTE, 10 * scale, after, m)
                    last = b.compute(s, BACKWARD, 20 * scale, [last], m)
                    last = b.communicate(tensor[s], TENSOR, 3 * scale, [last], m)
                chain[s] = [last]
                target = s + 1 if way == "f" else s - 1
                if 0 <= target < stages:
                    sent[way, s, m] = b.communicate(pair[s, target], ACTIVATIONS, 2 * scale, [last], m)
                place[s] += 1
    for s in range(stages):
        reduced = b.communicate(gradients[s], GRADIENTS, 15 * scale, chain[s])
        b.compute(s, OPTIMIZER, 4 * scale, [reduced])
    return b


def fabric(hosts: int = 4, leaves: int = 2, spines: int = 2, *, gpus: int = 2, tiers: bool = True) -> Fabric:
    """Two tiers: hosts of `gpus` GPUs behind one NVSwitch and as many NICs, each NIC on the host's leaf."""
    kinds: list[int] = []
    hosts_of: list[int] = []
    tier: list[int] = []
    pod: list[int] = []
    ports: list[list[tuple[int, int]]] = []  # per node: (peer node, link kind), in order of port number
    names: list[str] = [f"gpu{i}" for i in range(gpus)] + ["nvswitch0"] + [f"mlx5_{i}" for i in range(gpus)]
    inside = len(names)

    def node(kind: NodeKind, host: int, at_tier: int, in_pod: int = NONE) -> int:
        kinds.append(kind)
        hosts_of.append(host)
        tier.append(at_tier)
        pod.append(in_pod)
        ports.append([])
        return len(kinds) - 1

    def cable(a: int, b: int, kind: LinkKind) -> None:
        ports[a].append((b, kind))
        ports[b].append((a, kind))

    for h in range(hosts):
        for _ in range(gpus):
            node(NodeKind.GPU, h, NONE)
        node(NodeKind.NVSWITCH, h, NONE)
        for _ in range(gpus):
            node(NodeKind.NIC, h, 0)
    first_switch = len(kinds)
    for leaf in range(leaves):
        node(NodeKind.SWITCH, NONE, 1 if tiers else NONE, leaf if tiers else NONE)
    for _ in range(spines):
        node(NodeKind.SWITCH, NONE, 2 if tiers else NONE)
    for h in range(hosts):
        for g in range(gpus):
            cable(h * inside + g, h * inside + gpus, LinkKind.NVLINK)
            cable(h * inside + g, h * inside + gpus + 1 + g, LinkKind.PCIE)
            cable(h * inside + gpus + 1 + g, first_switch + h * leaves // hosts, LinkKind.INFINIBAND)
    for leaf in range(leaves):
        for spine in range(spines):
            cable(first_switch + leaf, first_switch + leaves + spine, LinkKind.INFINIBAND)

    start = np.cumsum([0, *map(len, ports)]).astype(np.int32)
    seen: dict[tuple[int, int], list[int]] = {}
    for n, cables in enumerate(ports):
        for k, (peer, _) in enumerate(cables):
            seen.setdefault((n, peer), []).append(int(start[n]) + k)
    peers = np.full(int(start[-1]), NONE, np.int32)
    for (n, peer), mine in seen.items():
        peers[mine] = seen[peer, n]
    kind = np.array([k for cables in ports for _, k in cables], np.int8)
    rate = np.where(kind == LinkKind.NVLINK, 2_400, np.where(kind == LinkKind.PCIE, 256, 200)) * 10**9
    nodes = len(kinds)
    gpu_node = np.flatnonzero(np.array(kinds) == NodeKind.GPU).astype(np.int32)
    nic_node = np.flatnonzero(np.array(kinds) == NodeKind.NIC).astype(np.int32)
    template: Any = SimpleNamespace(node_names=tuple(names))
    zero = np.zeros(len(nic_node), np.int64)
    return Fabric(
        technology="infiniband",
        mtu_bytes=4096,
        host_names=tuple(f"host-{h}" for h in range(hosts)),
        switch_names=tuple(f"leaf-{i}" for i in range(leaves)) + tuple(f"spine-{i}" for i in range(spines)),
        templates=(template,),
        host_template=np.zeros(hosts, np.int32),
        host_node_start=np.arange(0, (hosts + 1) * inside, inside, dtype=np.int32),
        type_names=("sample",),
        node_kind=np.array(kinds, np.int8),
        node_host=np.array(hosts_of, np.int32),
        node_type=np.zeros(nodes, np.int16),
        node_tier=np.array(tier, np.int8),
        node_pod=np.array(pod, np.int32),
        node_plane=np.where(np.array(kinds) >= NodeKind.NIC, 0, NONE).astype(np.int16),
        node_guid=np.zeros(nodes, np.uint64),
        node_lid=np.zeros(nodes, np.int32),
        node_latency_ps=np.zeros(nodes, np.int64),
        node_buffer_bytes=np.zeros(nodes, np.int64),
        node_port_start=start,
        port_node=np.repeat(np.arange(nodes, dtype=np.int32), np.diff(start)),
        port_peer=peers,
        port_kind=kind,
        port_rate_bps=rate,
        port_payload_bps=rate * 9 // 10,
        port_latency_ps=np.full(len(rate), 5_000),
        gpu_node=gpu_node,
        gpu_local=np.tile(np.arange(gpus, dtype=np.int32), hosts),
        nic_node=nic_node,
        nic_port=start[nic_node] + 1,
        nic_message_ps=zero,
        nic_post_ps=zero,
        nic_deliver_ps=zero,
        nic_qp_message_ps=zero,
    )


def sample(tx: np.ndarray | None = None, **changes: object) -> RunResult:
    """The result of a run of the pipeline, with `tx` bytes on the ports and `changes` of its fields."""
    made = pipeline(4, 8)
    net = fabric()
    if tx is None:
        tx = np.random.default_rng(3).integers(1, 2_000_000, net.ports)
    result = RunResult(
        Asked(
            name="sample",
            seed=7,
            resolved={"schema": 1, "name": "sample", "run": {"fidelity": "flow", "seed": 7}},
            cluster_line="4 × sample host (8 GPUs)",
        ),
        fabric=net,
        job=Lowered(
            made.program(),
            net.gpu_node.copy(),
            Work(32_768, 1e12, 1.3e12, 1_000_000, 312e12, "bf16"),
            "TP 2 × PP 4, 8 micro-batches",
            ("assumed nothing",),
        ),
        trace=made.trace(tx),
        reference=Reference("a paper, table 1", {"hardware_tflops_per_gpu": 300.0}),
    )
    asked, job = (
        dataclasses.replace(
            group, **{f.name: changes.pop(f.name) for f in dataclasses.fields(group) if f.name in changes}
        )
        for group in (result.asked, result.job)
    )
    return dataclasses.replace(result, asked=asked, job=job, **changes)  # type: ignore[arg-type]
