"""Blocks that models are made of: weight matrices, latent attention, experts, Mamba-2."""

from __future__ import annotations

from typing import Literal, NamedTuple

from fabrictwin.base.records import record

Split = Literal["column", "row", "whole"]


class Linear(NamedTuple):
    """A weight matrix of `inner` by `out`; `split` says which side tensor parallelism divides."""

    name: str
    inner: int
    out: int
    split: Split
    bias: bool = False

    @property
    def weights(self) -> int:
        return self.inner * self.out

    @property
    def parameters(self) -> int:
        return self.weights + (self.out if self.bias else 0)

    def on_rank(self, tp: int) -> int:
        """Parameters on one of `tp` ranks: a column split divides the bias too."""
        if self.split == "whole":
            return self.parameters
        bias = self.out if self.bias else 0
        return self.weights // tp + (bias // tp if self.split == "column" else bias)


@record
class Weights:
    """How published weights are stored: `none` for 16 bits, `fp8`, `fp4`, `int4`, `mxfp4`, or what a file says.

    Attributes:
        linear: Of linear layers.
        experts: Of routed experts.
    """

    linear: str = "none"
    experts: str = "none"


WIDE = Weights()


@record
class Latent:
    """Multi-head latent attention. `query_rank` 0: queries come from one product."""

    query_rank: int
    kv_rank: int
    rope_size: int
    nope_size: int
    value_size: int


@record
class Experts:
    """A mixture of experts in place of the MLP of most layers."""

    count: int
    top_k: int
    ffn: int  # width of one expert
    shared_ffn: int = 0  # width of all shared experts together
    shared_gate: bool = False  # a learned scalar weighs the shared experts' output
    routing_bias: bool = False  # one number an expert, added to its score (DeepSeek-V3)
    first_dense: int = 0  # this many layers at the start are dense
    every: int = 1  # of the rest, one in so many has experts
    latent: int = 0  # dimensions that experts work on, where they are not the model's


@record
class Mamba:
    """A Mamba-2 layer (Dao and Gu 2024, arXiv 2405.21060): a state of `state` by `head_size` for every head."""

    heads: int
    head_size: int
    state: int
    groups: int  # of heads that share what they write to and read from their states
    kernel: int  # of the convolution
    chunk: int  # tokens that are worked on at once

    @property
    def inner(self) -> int:
        return self.heads * self.head_size

    @property
    def channels(self) -> int:
        """Channels that the convolution works on: inputs, and both vectors of each group."""
        return self.inner + 2 * self.groups * self.state
