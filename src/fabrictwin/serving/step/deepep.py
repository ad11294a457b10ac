"""DeepEP's dispatch and combine of experts' tokens, from bytes, NVLink and the routes between hosts.

Low latency (`internode_ll.cu`): every copy of a token goes from its GPU to the expert's, over NVLink within a host
and by RDMA between hosts, dispatched in fp8 with a scale of 4 bytes for every 128 values (or in 16 bits), combined
in 16 bits. Experts are taken to be drawn at random, so that some rank gets more copies than the mean; all wait for
the rank with most. Normal (`internode.cu`): one copy a token and destination host goes by RDMA to the GPU of the
same number, which forwards it over NVLink, one copy a destination GPU.

A call takes a base, and the longer of what NVLink and the network carry. Base and rate inside a host were fitted
to calls on one host (NVIDIA's measurements in aiconfigurator's database, Apache-2.0, 20 SMs for normal calls);
nothing was fitted to calls between hosts: their time is the routes', and the latency of the longest path. A low
latency call ends with a flag behind its writes. On one host, and so in the base, that is five ways over NVLink:
stores and their fence, the flag's fence, the flag. Between hosts a kernel copies a token to its send buffer,
writes work requests and rings the adapter, which fetches them and the data and adds to the flag at the other end
(IBGDA). The copy of one token is in a call of one token on one host; what comes after it was measured beside the
route in ping-pongs (`device_put` of the catalog's adapters).

Dispatch ends on each rank when its own copies are there, and is timed as their mean. Combine begins where dispatch
ended, and no rank ends it before the fullest one has sent: it waits for that one's dispatch too, so that the two
add up to the time of the slowest.
"""

from __future__ import annotations

from math import comb, log, sqrt
from typing import Literal

from fabrictwin.base.records import record
from fabrictwin.serving.network.exchange import Exchange

Mode = Literal["low latency", "normal"]
Call = Literal["dispatch", "combine"]
SCALE_BYTES = 4 / 128
WIDE_BYTES = 2.0
WAYS_OF_A_FLAG = 5


@record
class _Inside:
    """A call on one host: a base in microseconds, GB/s of all copies that a GPU sends, and a call of one token."""

    base: float
    rate: float
    least: float = 0.0

    def time_us(self, sent_bytes: float) -> float:
        """Return how long a call takes in which a GPU sends so much to others of its host, microseconds."""
        return max(self.base + sent_bytes / self.rate / 1e3, self.least)


INSIDE: dict[tuple[str, Mode, Call], _Inside] = {
    ("nvlink4", "low latency", "dispatch"): _Inside(14.5, 283, least=13.8),
    ("nvlink4", "low latency", "combine"): _Inside(10.5, 237, least=13.1),
    ("nvlink5", "low latency", "dispatch"): _Inside(20.0, 541, least=19.2),
    ("nvlink5", "low latency", "combine"): _Inside(19.0, 679, least=20.1),
    ("nvlink4", "normal", "dispatch"): _Inside(35.5, 339),
    ("nvlink4", "normal", "combine"): _Inside(51.0, 323),
    ("nvlink5", "normal", "dispatch"): _Inside(36.0, 241),
    ("nvlink5", "normal", "combine"): _Inside(47.5, 302),
}


@record
class Tokens:
    """What is exchanged: values of a token, experts it goes to, experts in all, bytes of a dispatched value."""

    hidden: int
    top_k: int
    experts: int
    dispatch_bytes: float = 1 + SCALE_BYTES

    def bytes_of(self, call: Call) -> float:
        """Return the bytes of one copy of a token."""
        return self.hidden * (self.dispatch_bytes if call == "dispatch" else WIDE_BYTES)

    def reaches(self, share: float) -> float:
        """Return the chance that a token has an expert among a share of them all."""
        held = round(self.experts * share)
        return 1 - comb(self.experts - held, self.top_k) / comb(self.experts, self.top_k)


@record
class DeepEp:
    """Experts over ranks: how many, how many of them on a host, and the ways between hosts.

    Attributes:
        ranks: Ranks in all.
        per_host: Of them on one host.
        nvlink: NVLink generation.
        mode: Kernels.
        tokens: What is exchanged.
        network: Low latency: each rank to each of other hosts; normal: to its fellow in every other host.
        put_us: What a kernel's write and its flag take between hosts beside their way.
        nvlink_us: One way over NVLink, between GPUs of a host.
    """

    ranks: int
    per_host: int
    nvlink: str
    mode: Mode
    tokens: Tokens
    network: Exchange
    put_us: float = 0.0
    nvlink_us: float = 0.0

    def time_us(self, call: Call, tokens: int) -> float:
        """Return how long a call takes for `tokens` on each rank, microseconds."""
        inside = INSIDE[self.nvlink, self.mode, call]
        size = self.tokens.bytes_of(call)
        if self.mode == "low latency":
            near = tokens * self.tokens.top_k * self.per_host / self.ranks * size
            far = self._mean_far(tokens) * size
            if call == "combine":
                more = self._fullest(tokens) - 1
                far += self._mean_far(tokens) * more * (size + self.tokens.bytes_of("dispatch"))
        else:
            near = tokens * self.ranks * self.tokens.reaches(1 / self.ranks) * size
            far = tokens * self.tokens.reaches(self.per_host / self.ranks) * size
        time = inside.time_us(near)
        if self.ranks > self.per_host:
            outside = self.network.us_per_byte * far + self.network.latency_us
            if self.mode == "low latency":
                return max(time, inside.least + self.put_us - WAYS_OF_A_FLAG * self.nvlink_us + outside)
            return max(time + self.network.latency_us, inside.base + outside)
        return time

    def _mean_far(self, tokens: int) -> float:
        """Return the copies that a rank sends to each rank of other hosts, in the mean."""
        return tokens * self.tokens.top_k / self.ranks

    def _fullest(self, tokens: int) -> float:
        """Copies that the rank with most gets from other hosts, over the mean: the largest of normal variables."""
        senders = tokens * (self.ranks - self.per_host)
        share, count, top_k = 1 / self.ranks, self.tokens.experts, self.tokens.top_k
        if not senders or count <= 1:
            return 1.0
        mean = senders * top_k * share
        spread = sqrt(senders * top_k * share * (1 - share) * (count - top_k) / (count - 1))
        return 1 + _largest(self.ranks) * spread / mean


def _largest(count: int) -> float:
    """Return the expected largest of so many standard normal variables (Blom's approximation of its quantile)."""
    place = (count - 0.375) / (count + 0.25)
    # rational approximation of the normal quantile (Abramowitz and Stegun 26.2.23), within 0.00045
    t = sqrt(-2 * log(1 - place))
    over = 2.515517 + 0.802853 * t + 0.010328 * t * t
    under = 1 + 1.432788 * t + 0.189269 * t * t + 0.001308 * t**3
    return t - over / under
