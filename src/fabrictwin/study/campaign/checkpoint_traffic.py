"""What a checkpoint takes: the copy to host memory, the way over the fabric, and what storage manages.

Every GPU has an equal share of the state, as sharded checkpoints write it. The copy and the ways over the network
are sends that the flow engine plays on the twin of the spec: to the GPU's own processor, to processors of storage
hosts in turn, or to the next host (`peer`). Storage beyond the cluster is its rate alone. What crosses the fabric
while steps go on slows them: a step is played once more with all of that traffic beginning at its start.
"""

from __future__ import annotations

from fnmatch import fnmatchcase

import numpy as np

from fabrictwin.base.arrays import I32
from fabrictwin.base.errors import did_you_mean
from fabrictwin.base.records import record
from fabrictwin.base.units import PS_PER_S
from fabrictwin.engines.base.play import play
from fabrictwin.fabric.fabric import Fabric, NodeKind
from fabrictwin.program.builder import ProgramBuilder
from fabrictwin.program.collectives import send
from fabrictwin.program.program import Program
from fabrictwin.runs.execute import Prepared
from fabrictwin.study.campaign.campaign_run import Saving
from fabrictwin.study.campaign.campaign_section import Checkpoint


@record
class CheckpointTimes:
    """Seconds that one checkpoint takes on its way, and its bytes."""

    total_bytes: float
    gpu_bytes: int
    copy_s: float  # of every GPU to its host's memory
    network_s: float  # to storage hosts; 0 where they are beyond the cluster
    storage_write_s: float
    storage_read_s: float
    peer_s: float  # to another host; 0 but for `peer`
    drag_s: float  # by which steps are longer that run meanwhile

    @property
    def write_s(self) -> float:
        return max(self.network_s, self.storage_write_s)

    @property
    def read_s(self) -> float:
        return max(self.network_s, self.storage_read_s)


def checkpoint_times(prepared: Prepared, checkpoint: Checkpoint, parameters: int) -> CheckpointTimes:
    """Play a checkpoint's traffic. Raises ConfigError for storage hosts that are not there, or train."""
    gpus = prepared.job.rank_node
    total = checkpoint.bytes_per_parameter * parameters
    each = max(1, round(total / len(gpus)))
    fabric = prepared.twin.fabric
    own = _processors(fabric, gpus)
    storage = checkpoint.storage
    network_s = peer_s = drag_s = 0.0
    if storage.hosts:
        targets = _storage_nodes(prepared, storage.hosts)
        to_storage = targets[np.arange(len(gpus)) % len(targets)]
        network_s = _sends_s(prepared, gpus, to_storage, each)
        if checkpoint.kind == "asynchronous":
            drag_s = _drag_s(prepared, to_storage, each)
    if checkpoint.kind == "peer":
        hosts, host = np.unique(fabric.node_host[gpus], return_inverse=True)
        if len(hosts) < 2:
            message = "got a job on one host, expected several: a peer is another host"
            raise prepared.spec.error("campaign.checkpoint.kind", message)
        of_host = np.array([own[host == h][0] for h in range(len(hosts))], np.int32)
        to_peer = of_host[(host + 1) % len(hosts)]
        peer_s = _sends_s(prepared, gpus, to_peer, each)
        drag_s = _drag_s(prepared, to_peer, each)
    return CheckpointTimes(
        total_bytes=total,
        gpu_bytes=each,
        copy_s=_sends_s(prepared, gpus, own, each),
        network_s=network_s,
        storage_write_s=total * 8 / storage.write,
        storage_read_s=total * 8 / (storage.read or storage.write),
        peer_s=peer_s,
        drag_s=drag_s,
    )


def saving_of(checkpoint: Checkpoint, times: CheckpointTimes) -> Saving:
    """Return what steps wait for, and when a checkpoint counts."""
    if checkpoint.kind == "blocking":
        return Saving(times.copy_s + times.write_s, 0.0, times.read_s)
    waits_s = times.copy_s + times.drag_s
    if checkpoint.kind == "asynchronous":
        return Saving(waits_s, times.write_s, times.read_s)
    persist_s = checkpoint.persist / PS_PER_S
    return Saving(waits_s, times.peer_s, times.peer_s + times.copy_s, times.read_s, persist_s)


def _processors(fabric: Fabric, nodes: I32) -> I32:
    """[n] the processor of each GPU's host: all shares of a host divide over its sockets in turn."""
    found = np.empty(len(nodes), np.int32)
    hosts = fabric.node_host[nodes]
    for host in np.unique(hosts):
        first, last = (int(fabric.host_node_start[host + k]) for k in (0, 1))
        cpus = first + np.flatnonzero(fabric.node_kind[first:last] == NodeKind.CPU)
        here = np.flatnonzero(hosts == host)
        found[here] = cpus[np.arange(len(here)) * len(cpus) // max(1, len(here))]
    return found


def _storage_nodes(prepared: Prepared, names: tuple[str, ...]) -> I32:
    """Processors of the storage hosts, host by host. Raises ConfigError."""
    spec, fabric = prepared.spec, prepared.twin.fabric
    training = set(fabric.node_host[prepared.job.rank_node].tolist())
    nodes: list[int] = []
    for i, name in enumerate(names):
        key = f"campaign.checkpoint.storage.hosts[{i}]"
        hosts = [h for h, known in enumerate(fabric.host_names) if fnmatchcase(known, name)]
        if not hosts:
            hint = did_you_mean(name, fabric.host_names)
            raise spec.error(key, f"got {name!r}, expected a host of the cluster, or a glob{hint}")
        for host in hosts:
            if host in training:
                busy = fabric.host_names[host]
                raise spec.error(key, f"got {busy!r}, which trains, expected a host that the job leaves free")
            first, last = (int(fabric.host_node_start[host + k]) for k in (0, 1))
            cpus = first + np.flatnonzero(fabric.node_kind[first:last] == NodeKind.CPU)
            if not len(cpus):
                raise spec.error(key, f"got {fabric.host_names[host]!r}, expected a host with a processor")
            nodes += cpus.tolist()
    return np.array(sorted(set(nodes)), np.int32)


def _sends(sources: I32, targets: I32, size_bytes: int) -> tuple[Program, I32]:
    """A program in which every source sends so much to its target at once, and the node of each of its ranks."""
    nodes, place = np.unique(np.concatenate([sources, targets]), return_inverse=True)
    n = len(sources)
    program = ProgramBuilder("checkpoint", len(nodes))
    everyone = program.actor("ranks", np.arange(len(nodes)))
    pairs = np.stack([place[:n], place[n:]], axis=1)
    program.communicate(
        program.communication(send(pairs, size_bytes, name="checkpoint"), [everyone]),
        program.label("checkpoint", "other"),
    )
    return program.build(), nodes.astype(np.int32)


def _sends_s(prepared: Prepared, sources: I32, targets: I32, size_bytes: int) -> float:
    """Seconds until every source has sent so much to its target, all at once."""
    program, nodes = _sends(sources, targets, size_bytes)
    return play(program, nodes, prepared.twin.start_engine("flow")).end_ps / PS_PER_S


def _drag_s(prepared: Prepared, targets: I32, size_bytes: int) -> float:
    """Seconds by which a step is longer while every GPU sends so much to its target."""
    step, ends = prepared.job.program, []
    for others in ((), (_sends(prepared.job.rank_node, targets, size_bytes),)):
        engine = prepared.twin.start_engine("flow")
        first = engine.post(step.operations, step.communications, prepared.job.rank_node)
        for program, nodes in others:
            engine.post(program.operations, program.communications, nodes)
        engine.advance()
        ends.append(int(engine.ended_ps()[first : first + len(step.operations)].max()))
    return max(0, ends[1] - ends[0]) / PS_PER_S
