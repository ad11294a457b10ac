"""Which GID NCCL takes on RoCE, and what a wrong one ends in.

An adapter has four: 0 and 1 link-local, 2 and 3 of its IPv4 address, even ones RoCE v1, odd ones RoCE v2. NCCL
takes what NCCL_IB_GID_INDEX says, or from 2.21 on looks for RoCE v2 over IPv4 itself. It never turns to another
transport:

- inside one subnet (here: one switch) every GID works. RoCE v1 has no IP header: switches cannot mark it (ECN), so
  DCQCN does not slow it down, and no UDP port to hash.
- an index beyond the table has no GID: `ibv_modify_qp` fails with ENODATA.
- a link-local GID of RoCE v2: Linux resolves the peer's address by neighbour discovery, which no router passes on:
  `ibv_modify_qp` fails with ETIMEDOUT.
- RoCE v1: queue pairs come up (a link-local address holds the MAC address, another resolves to the router's), but
  routers know no such frames: the first message is sent again until retries are spent, and ends with error 12.

Sources: NCCL 2.18 to 2.30 (transport/net_ib, misc/ibvwrap.cc), Linux drivers/infiniband/core/verbs.c
(`ib_resolve_unicast_gid_dmac`). That a fabric of several switches is routed is the twin's own convention.
"""

from __future__ import annotations

from fabrictwin.base.records import record
from fabrictwin.cluster.faults import HostCause
from fabrictwin.nccl.settings.settings import Settings
from fabrictwin.nccl.settings.version import version_of
from fabrictwin.nccl.topology.failures import Failure

ROUTED = 3  # RoCE v2 of the IPv4 address
MOST = 3


@record
class Gid:
    index: int

    @property
    def exists(self) -> bool:
        return self.index <= MOST

    @property
    def link_local(self) -> bool:
        return self.index < 2

    @property
    def first_version(self) -> bool:
        """RoCE v1."""
        return self.exists and self.index % 2 == 0

    @property
    def routed(self) -> bool:
        return self.index == ROUTED

    @property
    def text(self) -> str:
        """The GID as NCCL prints it."""
        if not self.exists:
            return "::"
        return "fe80::" if self.link_local else "::ffff:10.0.0.0"


def gid_of(settings: Settings, wrong: HostCause | None = None) -> Gid:
    """The GID that a host's queue pairs on RoCE use; `wrong` is the cause `wrong-gid`, where it has it."""
    if wrong is not None:
        return Gid(2 if wrong.gid == "roce-v1" else 1)
    return Gid(ROUTED if settings.ib_gid_index < 0 else int(settings.ib_gid_index))


def unreachable(host: int, gid: Gid, settings: Settings, device: str) -> Failure | None:
    """Return what a GID ends in that does not reach the peer; None where routers pass it on."""
    if gid.routed:
        return None
    if gid.first_version:
        seconds = 4.096e-6 * 2**settings.ib_timeout * (1 + settings.ib_retry_cnt)
        why = (
            f"GID {gid.index} is of RoCE version 1, whose frames no router passes on: sent again "
            f"{settings.ib_retry_cnt} times, {seconds:.0f} s; GID {ROUTED} is RoCE v2"
        )
        return Failure(host, _completion(gid, settings, device), "ncclRemoteError", why, connected=True)
    if not gid.exists:
        error, words, why = 61, "No data available", f"GID {gid.index}: there is none"
    else:
        error, words, why = 110, "Connection timed out", f"GID {gid.index} is link-local: no router passes it on"
    warning = f"Call to ibv_modify_qp failed with error {words} errno {error}"
    if settings.release >= version_of("2.24"):
        warning = (
            f"Call to ibv_modify_qp failed with {error} {words}, on dev {device}:1, curr state INIT, next state "
            f"RTR, local GID index {gid.index}, local GID {gid.text}, remote GID {gid.text}"
        )
    return Failure(host, warning, "ncclSystemError", f"{why}; {ROUTED} is RoCE v2")


def _completion(gid: Gid, settings: Settings, device: str) -> str:
    peer, release = "10.1.0.2<0>", settings.release
    ends = f"localGid {gid.text} remoteGids{gid.text}"
    if release >= version_of("2.28"):
        return (
            f"NET/IB: Got completion from peer {peer} with status=IBV_WC_RETRY_EXC_ERR(12) "
            f"opcode=IBV_WC_RDMA_WRITE(1) vendor_err=129 {ends} hca {device}"
        )
    if release >= version_of("2.24"):
        return (
            f"NET/IB: Got completion from peer {peer} with status=12 opcode=1 len=0 vendor err 129 (Send) {ends} "
            f"hca {device}"
        )
    if release >= version_of("2.19"):
        return (
            f"NET/IB : Got completion from peer {peer} with status=12 opcode=1 len=0 vendor err 129 (Send) {ends}"
        )
    return f"NET/IB : Got completion from peer {peer} with error 12, opcode 1, len 0, vendor err 129 (Send) {ends}"
