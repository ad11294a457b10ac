"""Constants of NCCL's sources; those of its cost model that change by release are in `data/tuning.yaml`.

Read in the public sources of 2.18.3 to 2.30.7. The comment at each names NCCL's own word for it.
"""

from __future__ import annotations

from fabrictwin.nccl.topology.graph_types import Protocol

# --- connections: src/include/device.h, src/include/collectives.h

BUFFER_STEPS = 8  # NCCL_STEPS, in a connection's buffer
BUFFER_BYTES = {Protocol.LL: 512 << 10, Protocol.LL128: 4_915_200, Protocol.SIMPLE: 4 << 20}  # of one connection
# bytes on the wire for bytes of data: LL sends 8 for 4, LL128 128 for 120
WIRE_BYTES = {Protocol.LL: (8, 4), Protocol.LL128: (128, 120), Protocol.SIMPLE: (1, 1)}
NVLS_TREE_CHUNK_BYTES = 64 << 10  # at most, over many hosts
WARP_THREADS = 32  # WARP_SIZE
MOST_THREADS = 640  # NCCL_MAX_NTHREADS
TREE_CHILDREN = 3  # NCCL_MAX_TREE_ARITY
DIRECT_HEADS = 8  # NCCL_MAX_DIRECT_ARITY + 1
NVLS_HEADS = 32  # NCCL_MAX_NVLS_ARITY
SENDS_PER_BATCH = 8  # NCCL_MAX_DEV_WORK_P2P_PER_BATCH
ELEMENT_BYTES = {
    "int8": 1, "uint8": 1, "int32": 4, "uint32": 4, "int64": 8, "uint64": 8, "half": 2, "float": 4, "double": 8,
    "bfloat16": 2, "fp8_e4m3": 1, "fp8_e5m2": 1,
}  # fmt: skip
REDUCTIONS = ("sum", "prod", "max", "min", "avg", "mulsum")  # in the order of ncclDevRedOp_t

# --- detection and search: src/graph/topo.h, src/graph/search.cc

LOCAL_GBPS = 5000.0  # LOC_BW: a device's path to itself
INTEL_OVERHEAD = 6 / 5  # INTEL_P2P_OVERHEAD
NET_GBPS_PER_CHANNEL = 14  # src/graph/paths.cc, ncclTopoComputeP2pChannelsPerPeer
SEARCH_STEPS_ALL = 1 << 19  # NCCL_SEARCH_GLOBAL_TIMEOUT
SEARCH_STEPS_ALL_218 = 5 << 16
SEARCH_STEPS = 1 << 14  # NCCL_SEARCH_TIMEOUT
SEARCH_STEPS_SAME = 1 << 8  # NCCL_SEARCH_TIMEOUT_SAMECHANNELS
MOST_INTERFACES = 16  # MAX_IFS of NET/Socket

# candidate speeds of a channel in GB/s, tried downward: before Hopper, Hopper, Blackwell; by minor release
SPEEDS_INTRA = (40.0, 30.0, 20.0, 18.0, 15.0, 12.0, 10.0, 9.0, 7.0, 6.0, 5.0, 4.0, 3.0)
SPEEDS_INTER = (
    *(48.0, 30.0, 28.0, 24.0, 20.0, 18.0, 15.0, 12.0, 10.0, 9.0),
    *(7.0, 6.0, 5.0, 4.0, 3.0, 2.4, 1.2, 0.24, 0.12),
)
_SLOW = (6.0, 3.0, 2.4, 1.2, 0.24, 0.12)
HOPPER_INTRA = {
    18: (60.0, 40.0, 30.0, 24.0, 20.0, 15.0, 12.0, 6.0, 3.0),
    19: (60.0, 50.0, 40.0, 30.0, 24.0, 20.0, 15.0, 12.0, 6.0, 3.0),
    21: (60.0, 50.0, 40.0, 30.0, 24.0, 20.0, 15.0, 12.0, 11.0, 6.0, 3.0),
}
HOPPER_INTER = {
    18: (48.0, 45.0, 42.0, 40.0, 30.0, 24.0, 20.0, 17.5, 15.0, 12.0, *_SLOW),
    19: (48.0, 45.0, 42.0, 40.0, 30.0, 24.0, 22.0, 20.0, 17.5, 15.0, 12.0, *_SLOW),
}
BLACKWELL_INTRA = {
    25: (90.0, 80.0, 70.0, 60.0, 50.0, 40.0, 30.0, 24.0, 20.0, 19.0),
    27: (90.0, 80.0, 70.0, 60.0, 50.0, 40.0, 30.0, 24.0, 20.0, 19.0, 18.0),
    29: (90.0, 80.0, 70.0, 60.0, 50.0, 45.0, 40.0, 30.0, 24.0, 20.0, 19.0, 18.0),
}
BLACKWELL_INTER = {
    25: HOPPER_INTER[19],
    27: (96.0, 48.0, 45.1, *HOPPER_INTER[19][2:]),
    30: (96.0, 86.0, 80.0, 48.0, 45.1, *HOPPER_INTER[19][2:]),
}

# --- the cost model: src/graph/tuning.cc

LEAST_CORRECTED_BYTES = 64  # where the table of corrections begins
CORRECTIONS = 23  # of a tree; the ring's table is as long as it is
# Of 2.30's rings by protocol: latency in µs once, of a hop over NVLink, of one over the network, each with the
# wire's own; and the share of the wire's rate
RING_LL128 = (14.0, 1.9, 4.0, 0.92)
RING_SIMPLE = (8.4, 3.4, 14.0, 1.0)
