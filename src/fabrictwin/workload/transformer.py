"""What a transformer layer computes, kernel by kernel, forward and backward, on one of its tensor-parallel ranks.

Kernels are those of Megatron-LM: column-parallel QKV and MLP-up products, row-parallel output and MLP-down
products, fused bias-dropout-residual, fused scale-mask-softmax. What stands between two all-reduces of a layer is
one stretch of compute: the attention block and the MLP block.

Bytes are counted per element moved. Norms read and write; backward they read input and gradient and write one, and
a layer norm reads both again in a second kernel for its own weights, as Apex does. Dropout keeps a one-byte mask.
Backward, the gradient of a skip connection is added to its branch's, and a bias takes the sum of its output's
gradient. Materialised attention copies its context into the order of tokens, and backward packs the gradients of
Q, K and V. Left out: the all-reduces of a few bytes a token inside the vocabulary-parallel cross-entropy, rotary
tables.
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


def _linear(roof: Roofline, tokens: int, out: int, inner: int, *, bias: bool) -> tuple[float, float]:
    """(forward, backward) of a linear layer: backward is the input's gradient and the weight's, and the bias's."""
    forward = roof.gemm(tokens, out, inner)
    backward = roof.gemm(tokens, inner, out) + roof.gemm(out, inner, tokens, accumulate=True)
    return forward, backward + (roof.stream(roof.element_bytes * tokens * out) if bias else 0.0)


def core_attention(roof: Roofline, shape: Shape) -> tuple[float, float]:
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
    context, packed = (2 * e * shape.tokens * width // shape.tp for width in (model.heads * d, model.qkv_width))
    return forward + roof.stream(context), backward + roof.stream(context) + roof.stream(packed)


def _residual(roof: Roofline, shape: Shape) -> tuple[float, float]:
    """(forward, backward) of bias, dropout and residual sum after a block, and of where its branch begins."""
    elements = shape.tokens * shape.model.hidden
    e = roof.element_bytes
    joined = roof.stream(3 * e * elements)
    if shape.model.dropout:
        return roof.stream((3 * e + 1) * elements), joined + roof.stream((2 * e + 1) * elements)
    return joined, joined


def _norm(roof: Roofline, shape: Shape) -> tuple[float, float]:
    once = roof.element_bytes * shape.tokens * shape.model.hidden
    own_weights = roof.stream(2 * once) if shape.model.family == "gpt2" else 0.0
    return roof.stream(2 * once), roof.stream(3 * once) + own_weights


def layer_times(roof: Roofline, shape: Shape) -> LayerTimes:
    """One layer of the model over one micro-batch."""
    model, tokens, t = shape.model, shape.tokens, shape.tp
    e = roof.element_bytes
    bias = model.family == "gpt2"
    norm_f, norm_b = _norm(roof, shape)
    residual_f, residual_b = _residual(roof, shape)
    qkv_f, qkv_b = _linear(roof, tokens, model.qkv_width // t, model.hidden, bias=bias)
    core_f, core_b = core_attention(roof, shape)
    projection_f, projection_b = _linear(roof, tokens, model.hidden, model.heads * model.head_size // t, bias=bias)
    rotary = 0.0
    if model.positions == 0:
        rotary = roof.stream(2 * e * tokens * (model.heads + model.kv_heads) * model.head_size // t)
    up_f, up_b = _linear(roof, tokens, model.up_width // t, model.hidden, bias=bias)
    down_f, down_b = _linear(roof, tokens, model.hidden, model.ffn // t, bias=bias)
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
    logits_f, logits_b = _linear(roof, tokens, shape.vocab // shape.tp, model.hidden, bias=False)
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
