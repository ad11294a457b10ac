"""Options of perftest's tools, with their defaults (linux-rdma/perftest, `perftest_parameters`)."""

from __future__ import annotations

from enum import StrEnum

from fabrictwin.base.errors import ConfigError, did_you_mean
from fabrictwin.base.records import record
from fabrictwin.capture.recorder import CaptureRequest
from fabrictwin.engines.base.messages import Opcode, Service


class Verb(StrEnum):
    WRITE = "write"
    READ = "read"
    SEND = "send"
    ATOMIC = "atomic"


TESTS = tuple(f"ib_{verb}_{kind}" for verb in Verb for kind in ("bw", "lat"))
CONNECTIONS = {
    "RC": Service.RELIABLE_CONNECTION,
    "UC": Service.UNRELIABLE_CONNECTION,
    "UD": Service.UNRELIABLE_DATAGRAM,
}
ATOMICS = {"FETCH_AND_ADD": Opcode.FETCH_ADD, "CMP_AND_SWAP": Opcode.COMPARE_SWAP}
ATOMIC_BYTES = 8
LARGEST = 1 << 23  # of -a
DEFAULT_BYTES = {"bw": 65536, "lat": 2}
ITERATIONS = {"bw": 5000, "lat": 1000}
TX_DEPTH, RX_DEPTH = 128, 512
INLINE = {(Verb.WRITE, "lat"): 220, (Verb.SEND, "lat"): 236}  # bytes; nothing elsewhere
INLINE_UD = 188
MTUS = (256, 512, 1024, 2048, 4096)
# a simulated second is not free: without -n, large messages are sent so often that about this much moves
MOVED_BYTES = 128 << 20
LEAST_ITERATIONS = 100


@record(kw_only=True)
class PerftestOptions:
    """One run of one tool. Raises ConfigError where the tool would refuse."""

    test: str
    source: str  # host
    target: str
    size: int | None = None
    all_sizes: bool = False
    iterations: int | None = None
    bidirectional: bool = False
    queue_pairs: int = 1
    gid_index: int | None = None
    mtu: int | None = None
    report_gbits: bool = False
    device: str | None = None
    connection: str = "RC"
    inline: int | None = None
    tx_depth: int | None = None
    outstanding: int = 16  # READs and atomics, as the catalog's adapters have it
    atomic: str = "FETCH_AND_ADD"
    gpu: int | None = None  # memory of this GPU of each host
    capture: CaptureRequest | None = None

    def __post_init__(self) -> None:
        if self.test not in TESTS:
            raise ConfigError(
                f"got {self.test!r}, expected one of {', '.join(TESTS)}{did_you_mean(self.test, TESTS)}",
                key="test",
            )
        if self.connection not in CONNECTIONS:
            raise ConfigError(f"got {self.connection!r}, expected RC, UC or UD", key="-c")
        service = CONNECTIONS[self.connection]
        if service != Service.RELIABLE_CONNECTION and self.verb in (Verb.READ, Verb.ATOMIC):
            raise ConfigError(
                f"got {self.connection} for {self.test}, expected RC: no other has a response", key="-c"
            )
        if service == Service.UNRELIABLE_DATAGRAM and self.verb != Verb.SEND:
            raise ConfigError(f"got UD for {self.test}, expected RC or UC: datagrams are sent", key="-c")
        if self.atomic not in ATOMICS:
            raise ConfigError(f"got {self.atomic!r}, expected one of {', '.join(ATOMICS)}", key="-A")
        if self.verb == Verb.ATOMIC and (self.all_sizes or self.size not in (None, ATOMIC_BYTES)):
            raise ConfigError(f"got sizes for {self.test}, expected none: atomics are 8 bytes", key="-s")
        if self.latency and self.bidirectional:
            raise ConfigError("got -b for a latency test, expected it for bandwidth", key="-b")
        if self.latency and self.queue_pairs != 1:
            raise ConfigError(f"got {self.queue_pairs} queue pairs for a latency test, expected 1", key="-q")
        if self.all_sizes and self.size is not None:
            raise ConfigError("got -a and -s, expected one of them", key="-a")
        if self.mtu is not None and self.mtu not in MTUS:
            raise ConfigError(f"got {self.mtu}, expected one of {', '.join(map(str, MTUS))}", key="-m")
        bounds = {
            "-s": (self.size, 1, 1 << 31),
            "-n": (self.iterations, 5, 100_000_000),
            "-q": (self.queue_pairs, 1, 16384),
            "-t": (self.tx_depth, 1, 15000),
            "-o": (self.outstanding, 1, 128),
            "-I": (self.inline, 0, 912),
        }
        for key, (value, least, most) in bounds.items():
            if value is not None and not least <= value <= most:
                raise ConfigError(f"got {value}, expected {least} to {most}", key=key)

    @property
    def verb(self) -> Verb:
        return Verb(self.test.split("_")[1])

    @property
    def latency(self) -> bool:
        return self.test.endswith("lat")

    @property
    def kind(self) -> str:
        return "lat" if self.latency else "bw"

    @property
    def inline_bytes(self) -> int:
        """Up to this size payload goes with the work request."""
        if self.inline is not None:
            return self.inline
        default = INLINE.get((self.verb, self.kind), 0)
        return min(default, INLINE_UD) if self.connection == "UD" else default

    @property
    def depth(self) -> int:
        """Work requests that are outstanding."""
        depth = self.tx_depth or TX_DEPTH
        return min(depth, self.outstanding) if self.verb in (Verb.READ, Verb.ATOMIC) else depth

    def sizes(self, mtu: int) -> list[int]:
        """Message sizes, one row each; datagrams end at the MTU."""
        largest = mtu if self.connection == "UD" else LARGEST
        if self.verb == Verb.ATOMIC:
            return [ATOMIC_BYTES]
        if self.all_sizes:
            return [1 << k for k in range(1, largest.bit_length())]
        size = self.size or min(DEFAULT_BYTES[self.kind], largest)
        if size > largest and self.connection == "UD":
            raise ConfigError(
                f"got {size} bytes, expected at most the MTU of {mtu}: datagrams are one packet", key="-s"
            )
        return [size]

    def rounds(self, size: int) -> int:
        """Iterations of a row: as asked for, else the tool's, fewer of messages so large that it takes long."""
        if self.iterations is not None:
            return self.iterations
        usual = ITERATIONS[self.kind]
        return min(usual, max(MOVED_BYTES // (size * self.queue_pairs), LEAST_ITERATIONS))
