"""A dry run: what would run, whether it would be refused, about how long it takes and how much memory."""

from __future__ import annotations

import json
from dataclasses import fields
from typing import Any

import numpy as np

from fabrictwin.base.progress import Stage, silent
from fabrictwin.base.records import record
from fabrictwin.base.units import format_size
from fabrictwin.capture.recorder import CaptureRequest
from fabrictwin.cluster.spec.spec import Spec
from fabrictwin.engines.packet.run_estimate import PacketSize
from fabrictwin.fabric.fabric import NONE
from fabrictwin.program.program import OpKind
from fabrictwin.runs.execute import Prepared, check_capture, cluster_line, located, packets_needed, prepare

BASE_BYTES = 180 << 20
OPERATION_BYTES = 500
EDGE_BYTES = 700  # of a communication bound to links: a GPU reaches another over several NVSwitches

# On one core of 2021, kernels compiled: what a run takes from its lowering to its report.
BASE_S = 1.0
OPERATIONS_PER_S = {"packet": 50_000, "flow": 100_000, "analytic": 150_000}
EDGES_PER_S = 300_000  # of communications, bound to links
PACKET_HOPS_PER_S = 4e6


@record
class DryRun:
    """What would run."""

    prepared: Prepared
    packets: PacketSize | None  # None where no packet is simulated


def dry_run(spec: Spec, stage: Stage = silent, capture: CaptureRequest | None = None) -> DryRun:
    """Everything short of simulating, refused where the run would be. Raises ConfigError."""
    check_capture(spec, capture)
    prepared = prepare(spec, stage)
    if spec.run.fidelity != "analytic" and spec.run.subnet_manager is None:
        stage("routing")
        with located(spec):
            _ = prepared.twin.routes
    stage("counting packets")
    return DryRun(prepared, packets_needed(prepared))


def wall_s(found: DryRun) -> float:
    """About how many seconds the run takes, first compilation left out."""
    prepared = found.prepared
    took = BASE_S + len(prepared.job.program.operations) / OPERATIONS_PER_S[prepared.spec.run.fidelity]
    took += _edges(prepared) / EDGES_PER_S
    return took + (0.0 if found.packets is None else found.packets.hops / PACKET_HOPS_PER_S)


def _edges(prepared: Prepared) -> int:
    """About how many edges the job's communications have: one for each rank of a channel."""
    return sum(len(each.channels.ranks) for each in prepared.job.program.communications)


def _array_bytes(thing: Any) -> int:
    """Bytes of the arrays in a dataclass, and of those in dataclasses it holds."""
    total = 0
    for field in fields(thing):
        value = getattr(thing, field.name)
        if isinstance(value, np.ndarray):
            total += value.nbytes
        elif isinstance(value, tuple) and value and hasattr(value[0], "__dataclass_fields__"):
            total += sum(_array_bytes(item) for item in value)
        elif hasattr(value, "__dataclass_fields__"):
            total += _array_bytes(value)
    return total


def memory_bytes(found: DryRun) -> int:
    """An estimate of what the whole run takes, its report included.

    Python with compiled code, the arrays that were built and their working copies, a byte of table for each
    switch and destination, and what an operation takes from its posting to its slice in the timeline. It came out
    within a tenth of the peak of runs of 32, 1,536 and 16,384 GPUs.
    """
    prepared = found.prepared
    fabric = prepared.twin.fabric
    packets = 0 if found.packets is None else found.packets.memory_bytes
    built = _array_bytes(fabric) + _array_bytes(prepared.job.program)
    tables = len(fabric.switch_nodes) * (len(fabric.nic_node) + len(fabric.switch_nodes))
    bound = EDGE_BYTES * _edges(prepared) + OPERATION_BYTES * len(prepared.job.program.operations)
    return BASE_BYTES + packets + 3 * built + tables + bound


def dry_run_data(found: DryRun) -> dict[str, Any]:
    """Plain data of a dry run."""
    prepared = found.prepared
    fabric, program = prepared.twin.fabric, prepared.job.program
    kinds = program.operations.kind
    hosts = np.unique(fabric.node_host[prepared.job.rank_node])
    return {
        "name": prepared.spec.name,
        "cluster": cluster_line(prepared.twin.blueprint, fabric),
        "job": prepared.job.layout_line,
        "fidelity": prepared.spec.run.fidelity,
        "seed": prepared.spec.run.seed,
        "gpus": fabric.gpus,
        "ranks": program.ranks,
        "hosts_used": len(hosts),
        "first_host": fabric.host_names[int(hosts[0])] if len(hosts) and hosts[0] != NONE else None,
        "actors": len(program.actors),
        "operations": len(program.operations),
        "compute_operations": int((kinds == OpKind.COMPUTE).sum()),
        "communication_operations": int((kinds == OpKind.COMMUNICATE).sum()),
        "distinct_communications": len(program.communications),
        "nodes": fabric.nodes,
        "links": int((fabric.port_peer != NONE).sum()),
        "estimated_memory_bytes": memory_bytes(found),
        "estimated_wall_s": round(wall_s(found), 1),
        "estimated_packet_hops": None if found.packets is None else found.packets.hops,
        "notes": list(prepared.job.notes),
    }


def dry_run_json(found: DryRun) -> str:
    return json.dumps(dry_run_data(found), indent=2, ensure_ascii=False) + "\n"


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{max(seconds, 1):.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.0f} h"


def dry_run_text(found: DryRun) -> str:
    """Text of a dry run."""
    data = dry_run_data(found)
    memory = format_size(data["estimated_memory_bytes"])
    lines = [
        data["name"],
        f"  cluster     {data['cluster']}",
        f"  job         {data['job']}",
        f"  fidelity    {data['fidelity']}, seed {data['seed']}",
        f"  ranks       {data['ranks']:,} of {data['gpus']:,} GPUs, on {data['hosts_used']:,} hosts, "
        f"simulated as {data['actors']:,} actors",
        f"  operations  {data['operations']:,}: {data['compute_operations']:,} compute, "
        f"{data['communication_operations']:,} communication ({data['distinct_communications']:,} distinct)",
        f"  fabric      {data['nodes']:,} nodes, {data['links']:,} directed links",
        f"  would take  about {_duration(data['estimated_wall_s'])} and {memory} of this machine's memory",
    ]
    held = found.prepared.job.memory
    if held is not None:
        lines.append(f"  GPU memory  {held.line}")
    if data["notes"]:
        lines += ["  notes", *(f"    {note}" for note in data["notes"])]
    return "\n".join([*lines, "  nothing was simulated", ""])
