"""A job without RDMA: what crosses the network goes over TCP sockets, as NCCL falls back to them.

Bytes pass host memory at either end and cost a processor core per byte there (`nccl.lowering.transport`). The
channels and the order of ranks stay those of the job's own lowering; between hosts only the way changes.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from fabrictwin.nccl.communicator.communicator import initialise
from fabrictwin.nccl.lowering.connector import Connector
from fabrictwin.nccl.lowering.transport import Transports
from fabrictwin.nccl.settings.settings import read_settings
from fabrictwin.nccl.topology.graph_types import Algorithm, Protocol
from fabrictwin.nccl.tuning.step_costs import calibration
from fabrictwin.program import patterns
from fabrictwin.program.program import Communication
from fabrictwin.runs.execute import Prepared

WITHOUT_RDMA = {"NCCL_IB_DISABLE": "1"}


def over_sockets(prepared: Prepared) -> Prepared:
    """The same job with its network traffic on TCP. Raises ConfigError."""
    twin, rank_node = prepared.twin, prepared.job.rank_node
    communicator = initialise(twin, rank_node, settings=read_settings(WITHOUT_RDMA))
    transports = Transports(communicator)
    hops_us = calibration().of(communicator).hops_us(Algorithm.RING, Protocol.SIMPLE)
    host = twin.fabric.node_host[rank_node]

    def changed(communication: Communication) -> Communication:
        edges = patterns.edges(communication.channels)
        if not (host[edges.source] != host[edges.target]).any():
            return communication
        connections = Connector(transports).connect(edges, hops_us)
        # a job's steps carry their own cost already
        cost = np.maximum(connections.cost_ps, communication.costs.step_ps)
        connections = replace(connections, cost_ps=cost)
        return replace(communication, transport=replace(communication.transport, connections=connections))

    program = replace(
        prepared.job.program,
        communications=tuple(changed(one) for one in prepared.job.program.communications),
    )
    notes = (*prepared.job.notes, "between hosts: TCP sockets, no RDMA")
    return replace(prepared, job=replace(prepared.job, program=program, notes=notes))
