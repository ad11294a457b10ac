"""Bytes that a GPU of a server sends to others for a token of a step, by what for.

An all-reduce among n GPUs is counted as 2 (n - 1) / n of a tensor from each, the least that it can be (in one shot
each sends n - 1 tensors); a pipeline's stage sends its slice of hidden state and residual; to experts and back go
each token's rows to all ranks and sums from them (`allgather_reducescatter`), or its copies (DeepEP). Padding of
captured steps, logits and KV of prompts that are prefilled elsewhere are left out.
"""

from __future__ import annotations

from fabrictwin.serving.step.analytic import HIDDEN_BYTES, ServedModel
from fabrictwin.serving.step.expert_parallel import DeepEpTraffic, GatherScatter

TENSOR_PARALLEL = "all-reduces of TP"
PIPELINE = "sends to the next stage"
EXPERTS = "tokens to experts and back"


def sent_per_token(served: ServedModel) -> dict[str, float]:
    """Return bytes by purpose, the mean over stages; purposes of which there is nothing are left out."""
    model, size, stages = served.model, served.group.size, served.pipeline
    row = model.hidden * HIDDEN_BYTES
    traffic = served.experts.traffic
    ends = model.layers if traffic is None or served.experts.reduces else model.layers - model.sparse_layers
    found = {
        TENSOR_PARALLEL: (model.layers + ends + 1) * row * 2 * (size - 1) / size / stages,
        PIPELINE: 2 * row / size * (stages - 1) / stages,
    }
    if isinstance(traffic, GatherScatter):
        rows = (2 * traffic.hidden + traffic.experts) * HIDDEN_BYTES
        found[EXPERTS] = (traffic.data - 1) * rows * model.sparse_layers / stages
    elif isinstance(traffic, DeepEpTraffic):
        calls = traffic.calls
        tokens = calls.tokens
        copies = tokens.top_k if calls.mode == "low latency" else calls.ranks * tokens.reaches(1 / calls.ranks)
        away = copies * (1 - 1 / calls.ranks) / traffic.tensor
        both = tokens.bytes_of("dispatch") + tokens.bytes_of("combine")
        found[EXPERTS] = away * both * model.sparse_layers / stages
    return {what: moved for what, moved in found.items() if moved}
