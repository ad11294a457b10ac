"""Parts of the time of steps."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Parts:
    """Microseconds by what they were spent on.

    Attributes:
        linear: Products with weights, norms, rotations.
        attention: Attention.
        experts: Routed experts.
        launches: Waiting for the host to launch kernels, in steps without a graph.
        tensor_parallel: All-reduces.
        expert_parallel: Ways of tokens to experts and back.
        pipeline: Sends to the next stage.
        ends: Embedding, logits and sampling.
    """

    linear: float = 0.0
    attention: float = 0.0
    experts: float = 0.0
    launches: float = 0.0
    tensor_parallel: float = 0.0
    expert_parallel: float = 0.0
    pipeline: float = 0.0
    ends: float = 0.0
