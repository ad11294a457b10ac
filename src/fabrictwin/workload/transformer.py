"""What a transformer layer computes, kernel by kernel, forward and backward, on one of its tensor-parallel ranks.

Kernels are those of Megatron-LM: column-parallel QKV and MLP-up products, row-parallel output and MLP-down
products, fused bias-dropout-residual, fused scale-mask-softmax. What stands between two all-reduces of a layer is
one stretch of compute: the attention block and the MLP block.

Bytes are counted per element moved: norms read and write; backward they read input and gradient and write one.
Dropout keeps a one-byte mask. Left out: the all-reduces of a few bytes a token inside the vocabulary-parallel
cross-entropy, and rotary tables.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from fabrictwin.workload.models import Model
from fabrictwin.workload.roofline import Roofline

Attention = Literal["flash", "materialised"]


@dataclass(frozen=True)
class LayerTimes:
    """One layer and one micro-batch, in picoseconds. Each all-reduce follows its block."""

    attention_forward: int
    mlp_forward: int
    attention_backward: int
    mlp_backward: int

    @property
    def forward(self) -> int:
        return self.attention_forward + self.mlp_forward


@dataclass(frozen=True)
class EndTimes:
    """What only the first or the last stage does for one micro-batch, in picoseconds."""

    embedding_forward: int
    embedding_backward: int
    output_forward: int  # final norm, logits, cross-entropy
    output_backward: int


@dataclass(frozen=True)
class Shape:
    """One micro-batch on one rank."""

    model: Model
    tp: int
    batch: int  # sequences in a micro-batch
    sequence: int
    vocab: int  # padded
    attention: Attention

    @property
    def tokens(self) -> int:
        return self.batch * self.sequence


def _linear(roof: Roofline, tokens: int, out: int, inner: int) -> tuple[float, float]:
    """(forward, backward) of a linear layer: backward is the input's gradient and the weight's."""
    forward = roof.gemm(tokens, out, inner)
    return forward, roof.gemm(tokens, inner, out) + roof.gemm(out, inner, tokens, accumulate=True)


def _core_attention(roof: Roofline, shape: Shape) -> tuple[float, float]:
    """(forward, backward) of softmax(Q K^T) V on a rank's heads."""
    model, s = shape.model, shape.sequence
    heads, batch = model.heads // shape.tp, shape.batch
    if shape.attention == "flash":
        return (
            roof.flash_attention(batch, heads, s, model.head_size, "f"),
            roof.flash_attention(batch, heads, s, model.head_size, "b"),
        )
    rows, d = batch * heads, model.head_size
    scores = rows * s * s
    e = roof.element_bytes
    forward = roof.gemm(s, s, d, batch=rows) + roof.stream(2 * e * scores) + roof.gemm(s, d, s, batch=rows)
    backward = (
        2 * roof.gemm(s, s, d, batch=rows) + 2 * roof.gemm(s, d, s, batch=rows) + roof.stream(3 * e * scores)
    )
    if model.dropout:
        forward += roof.stream((2 * e + 1) * scores)
        backward += roof.stream((2 * e + 1) * scores)
    return forward, backward


def _residual(roof: Roofline, shape: Shape) -> tuple[float, float]:
    """(forward, backward) of bias, dropout and residual sum after a block."""
    elements = shape.tokens * shape.model.hidden
    e = roof.element_bytes
    if shape.model.dropout:
        return roof.stream((3 * e + 1) * elements), roof.stream((2 * e + 1) * elements)
    return roof.stream(3 * e * elements), 0.0


def _norm(roof: Roofline, shape: Shape) -> tuple[float, float]:
    elements = shape.tokens * shape.model.hidden
    return roof.stream(2 * roof.element_bytes * elements), roof.stream(3 * roof.element_bytes * elements)


def layer_times(roof: Roofline, shape: Shape) -> LayerTimes:
    """One layer of the model over one micro-batch."""
    model, tokens, t = shape.model, shape.tokens, shape.tp
    e = roof.element_bytes
    norm_f, norm_b = _norm(roof, shape)
    residual_f, residual_b = _residual(roof, shape)
    qkv_f, qkv_b = _linear(roof, tokens, model.qkv_width // t, model.hidden)
    core_f, core_b = _core_attention(roof, shape)
    projection_f, projection_b = _linear(roof, tokens, model.hidden, model.heads * model.head_size // t)
    rotary = 0.0
    if model.positions == 0:
        rotary = roof.stream(2 * e * tokens * (model.heads + model.kv_heads) * model.head_size // t)
    up_f, up_b = _linear(roof, tokens, model.up_width // t, model.hidden)
    down_f, down_b = _linear(roof, tokens, model.hidden, model.ffn // t)
    inner = tokens * model.ffn // t
    reads = 2 if model.gated else 1
    act_f = roof.stream((reads + 1) * e * inner)
    act_b = roof.stream((2 * reads + 1) * e * inner)
    return LayerTimes(
        attention_forward=round(norm_f + qkv_f + rotary + core_f + projection_f + residual_f),
        mlp_forward=round(norm_f + up_f + act_f + down_f + residual_f),
        attention_backward=round(norm_b + qkv_b + rotary + core_b + projection_b + residual_b),
        mlp_backward=round(norm_b + up_b + act_b + down_b + residual_b),
    )


def end_times(roof: Roofline, shape: Shape) -> EndTimes:
    """Embedding and output projection over one micro-batch."""
    model, tokens = shape.model, shape.tokens
    e = roof.element_bytes
    elements = tokens * model.hidden
    norm_f, norm_b = _norm(roof, shape)
    logits_f, logits_b = _linear(roof, tokens, shape.vocab // shape.tp, model.hidden)
    scores = tokens * shape.vocab // shape.tp
    # cross-entropy in 4-byte floats: read for the maximum, again for the exponentials, written once
    loss_f, loss_b = roof.stream((e + 4 + 4) * scores), roof.stream((4 + e) * scores)
    return EndTimes(
        embedding_forward=round(roof.stream(2 * e * elements)),
        embedding_backward=round(roof.stream((e + 8) * elements)),
        output_forward=round(norm_f + logits_f + loss_f),
        output_backward=round(norm_b + logits_b + loss_b),
    )


ADAM_BYTES = 38  # a parameter: gradient 4 for its norm and 4 for the step, zeroed 4; master, two moments read and
# written 24; the copy in 2 bytes written


def optimizer_ps(roof: Roofline, parameters: int) -> int:
    """One Adam step in mixed precision over a rank's parameters."""
    return round(roof.stream(ADAM_BYTES * parameters))
