"""Experts of a mixture over the ranks of a server, and how tokens get to them.

With data parallelism every rank of tensor × data parallelism holds a part of the experts: some experts whole
(`enable_expert_parallel`), or a part of each. By default all ranks gather all tokens, and scatter what comes out
(`allgather_reducescatter`): the experts of a rank see every token. DeepEP sends each token to where its experts
are; its low latency kernels take 256 tokens of a rank at a time (`VLLM_MOE_DP_CHUNK_SIZE`). Without data
parallelism tokens are on all ranks anyway, and an all-reduce joins what comes out.
"""

from __future__ import annotations

from typing import Literal, Protocol

from fabrictwin.base.records import record
from fabrictwin.serving.network.nccl_times import NcclTimes
from fabrictwin.serving.step.deepep import DeepEp
from fabrictwin.workload.model.model_sizes import Model

Backend = Literal["allgather_reducescatter", "deepep_high_throughput", "deepep_low_latency"]
MoeBackend = Literal["auto", "marlin"]
"""Kernels of experts by vLLM's names (`--moe-backend`)."""
CHUNK_TOKENS = 256
VALUE_BYTES = 2


class Traffic(Protocol):
    """Ways of tokens to experts and back."""

    def time_us(self, tokens: int) -> float:
        """Return how long they take in one layer with `tokens` on each data parallel rank, microseconds."""


@record
class GatherScatter:
    """All tokens and their router's logits to all ranks, and sums back, by NCCL."""

    nccl: NcclTimes
    data: int
    hidden: int
    experts: int

    def time_us(self, tokens: int) -> float:
        """Return the time of the all-gather and the reduce-scatter."""
        rows = self.data * tokens * VALUE_BYTES
        gathered = self.nccl.time_us("all_gather", rows * (self.hidden + self.experts))
        return gathered + self.nccl.time_us("reduce_scatter", rows * self.hidden)


@record
class DeepEpTraffic:
    """DeepEP, and the all-gather of tensor parallel ranks, which each send a part of the tokens."""

    calls: DeepEp
    tensor: int
    gather: NcclTimes | None

    def time_us(self, tokens: int) -> float:
        """Return the time of dispatch and combine, chunk by chunk for low latency."""
        own = -(-tokens // self.tensor)
        chunks = [own]
        if self.calls.mode == "low latency":
            chunks = [CHUNK_TOKENS] * (own // CHUNK_TOKENS) + ([own % CHUNK_TOKENS] if own % CHUNK_TOKENS else [])
        time = sum(
            self.calls.time_us("dispatch", chunk) + self.calls.time_us("combine", chunk) for chunk in chunks
        )
        if self.gather:
            time += self.gather.time_us("all_gather", tokens * self.calls.tokens.hidden * VALUE_BYTES)
        return time


@record
class ExpertLayout:
    """Experts over `data` × `tensor` ranks.

    Attributes:
        data: Data parallel ranks, which step together.
        tensor: Tensor parallel ranks of each.
        whole: Experts are whole on their ranks.
        traffic: Ways of tokens to them, None without data parallelism.
        reduces: An all-reduce of the tensor parallel group ends the layer.
        padded: Each expert's tokens are padded to blocks of 128 rows, which are all worked on (DeepGEMM).
        backend: Kernels that were asked for.
    """

    data: int = 1
    tensor: int = 1
    whole: bool = False
    traffic: Traffic | None = None
    reduces: bool = True
    padded: bool = False
    backend: MoeBackend = "auto"

    @property
    def ranks(self) -> int:
        """Ranks that share the experts."""
        return self.data * self.tensor

    def inner(self, ffn: int) -> int:
        """Return the width of an expert on a rank."""
        return ffn if self.whole else -(-ffn // self.ranks)

    def parameters(self, model: Model) -> int:
        """Return the parameters of one layer's routed experts on the fullest rank."""
        assert model.experts is not None
        if self.whole:
            return -(-model.experts.count // self.ranks) * model.expert_parameters()
        return model.experts.count * model.expert_parameters() // self.ranks
