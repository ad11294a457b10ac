"""A queue pair as its builder asks for it, grouped by what each part decides.

Defaults are those of a RoCE adapter with nothing limited.
"""

from __future__ import annotations

from dataclasses import dataclass

from fabrictwin.kernel.packet.state import constants as s


@dataclass(frozen=True)
class Framing:
    """Bytes around payload, and the service levels of packets."""

    header_bytes: int = 82
    first_header_bytes: int = 0
    ack_bytes: int = 86
    mtu_bytes: int = 0  # 0: the fabric's
    sl: int = 0
    ack_sl: int = 0


@dataclass(frozen=True)
class Reliability:
    """The reliable transport: what is acknowledged when, and what is sent again."""

    mode: int = s.GO_BACK_N
    window_bytes: int = s.NEVER
    ack_every: int = 1
    reorder: int = 0
    rto_ps: int = 0
    retry_limit: int = 7
    rnr_limit: int = 7
    rnr_ps: int = 0


@dataclass(frozen=True)
class Paths:
    """Ways of packets: ports where they are source-routed, hashed values where switches choose."""

    before: tuple[int, ...] = ()  # ports after the first, up to the receiving adapter or the first table
    after: tuple[int, ...] = ()  # ports from the receiving adapter to memory
    back: tuple[int, ...] = ()  # ports of acknowledgements after the adapter's, where they are source-routed
    entropy: int = 0
    ack_entropy: int = 0
    spray: bool = False


@dataclass(frozen=True)
class Pacing:
    """Limits on the rate: congestion control, and the adapter's on messages of one queue pair."""

    control: int = 0
    base_ps: int = 0  # NSCC: round trip without queues
    message_ps: int = 0


@dataclass(frozen=True)
class Delivery:
    """What a message needs and causes at its ends."""

    service: int = s.RC  # of a channel
    receives: int = s.NONE
    noted: bool = False  # its tasks are single messages
    late_ps: int = 0  # of such: from the adapter to the sender's completion


@dataclass(frozen=True)
class Connection:
    """A queue pair: its first port, the endpoints, and the parts above."""

    port: int
    src: int
    dst: int
    framing: Framing = Framing()
    reliability: Reliability = Reliability()
    paths: Paths = Paths()
    pacing: Pacing = Pacing()
    delivery: Delivery = Delivery()


def local(port: int, before: tuple[int, ...] = ()) -> Connection:
    """Return a queue pair inside a host: bytes without headers, from port to port."""
    return Connection(
        port=port,
        src=s.NONE,
        dst=s.NONE,
        framing=Framing(header_bytes=0),
        reliability=Reliability(mode=s.LOCAL),
        paths=Paths(before=before),
    )
