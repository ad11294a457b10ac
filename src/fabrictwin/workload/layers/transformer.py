"""A transformer layer, kernel by kernel, forward and backward, on one of its ranks.

Kernels are those of Megatron-LM: column-parallel QKV and MLP-up products, row-parallel output and MLP-down
products, fused bias-dropout-residual, fused scale-mask-softmax. Tensor parallel ends each block with an
all-reduce; with sequence parallel (Korthikanti et al. 2022, section 4.2.2) it begins with an all-gather and ends
with a reduce-scatter, norms and residuals work on 1/tp of the tokens, and backward gathers the input once more.

Tensor-parallel communication overlaps in two ways. `gradients`: in backward the input is gathered beside the
input-gradient product, and that gradient is reduced beside the weight-gradient product. `full`, as Transformer
Engine does it: the product before a reduce-scatter or behind an all-gather is cut into tp pieces, and a piece
computes while another travels; all but the first piece can hide, and smaller products are less efficient.

Bytes are counted per element moved. Norms read and write; backward they read input and gradient and write one, and
a layer norm reads both again in a second kernel for its own weights, as Apex does. Dropout keeps a one-byte mask.
Backward, the gradient of a skip connection is added to its branch's, and a bias takes the sum of its output's
gradient. Materialised attention copies its context into the order of tokens, and backward packs the gradients of
Q, K and V. In fp8 (and fp4), norms write it directly where they can know its scale; the attention's context, what
activations yield and the gradients that enter a product are cast by kernels of their own (Megatron-Core
computes activations in 16 bits between two linear layers of Transformer Engine); gathered activations travel as
fp8, and what the weight gradient reads of them is transposed, because fp8 products take operands in one order.

Left out: the all-reduces of a few bytes a token inside the vocabulary-parallel cross-entropy, rotary tables.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Literal

from fabrictwin.base.records import record
from fabrictwin.workload.layers.kernel_traffic import CAST_BYTES, FUSED, Moved, Traffic
from fabrictwin.workload.layers.number_formats import Attention, Loss
from fabrictwin.workload.layers.pass_script import Collective, Kind, Part, Script
from fabrictwin.workload.layers.roofline import NOTHING, Cost, Roofline
from fabrictwin.workload.model.model_blocks import Linear
from fabrictwin.workload.model.model_sizes import Model


@record
class Sharing:
    """How ranks share a micro-batch."""

    tp: int = 1
    cp: int = 1
    ep: int = 1
    ep_hosts: int = 1  # that an expert-parallel group lies on
    expert_tp: int = 1
    sequence_parallel: bool = False
    context: Literal["ring", "all-gather", "pytorch"] = "ring"
    dispatcher: Literal["all-to-all", "flex"] = "all-to-all"


@record
class Hiding:
    """Communication that runs beside compute."""

    overlap: Literal["none", "gradients", "full"] = "none"  # of tensor-parallel communication
    collective_sms: int = 0
    tensor_sms: int = 0  # of communication in pieces
    hide_experts: bool = False  # exchanges of experts run beside another micro-batch's compute


@record
class LossKernels:
    """Kernels of the cross-entropy, and how often it is computed once more for metrics."""

    kind: Loss = "compiled"
    metrics: int = 0


@record
class Adapters:
    """Low-rank adapters beside these linear layers, whose own weights, as all others, are frozen."""

    rank: int
    targets: tuple[str, ...]


@record
class Kernels:
    """Kernels that a layer runs, and how they are issued."""

    attention: Attention = "flash"
    traffic: Traffic = FUSED
    recompute_modules: tuple[str, ...] = ()
    scan_share: float = 1.0  # of what state-space kernels would reach, what they do
    captured: tuple[str, ...] = ()  # parts of a layer that the host issues at once
    loss: LossKernels = LossKernels()
    adapters: Adapters | None = None  # None: all weights are trained


@record
class ExpertRouting:
    """What experts take, and the host for their sake."""

    capacity_factor: float | None = None
    routing_ps: int = 0  # of the host, forward in a layer with experts
    expert_ps: int = 0  # and for each expert
    interleaved_ps: int = 0  # of the host for each expert, where two micro-batches alternate


@record
class Shape:
    """One micro-batch on one rank, and how ranks share it."""

    model: Model
    batch: int  # sequences in a micro-batch
    sequence: int
    vocab: int  # padded
    sharing: Sharing = Sharing()
    hiding: Hiding = Hiding()
    kernels: Kernels = Kernels()
    routing: ExpertRouting = ExpertRouting()

    @property
    def tokens(self) -> int:
        """Tokens of a micro-batch on a context-parallel rank."""
        return self.batch * self.sequence // self.sharing.cp

    @property
    def local(self) -> int:
        """Tokens on a rank between tensor-parallel blocks."""
        return self.tokens // self.sharing.tp if self.sharing.sequence_parallel else self.tokens

    @property
    def without_experts(self) -> Shape:
        """The same where experts are not divided: all that attention and the ends know of."""
        return replace(self, sharing=replace(self.sharing, ep=1, ep_hosts=1, expert_tp=1))

    @property
    def in_tokens(self) -> Shape:
        """The same tokens as one sequence on one context-parallel rank: all that an MLP and the ends know of."""
        return replace(self, batch=1, sequence=self.tokens, sharing=replace(self.sharing, cp=1))


# Of a logit, (forward, backward). Compiled: in 4-byte floats read twice (maximum, exponentials) and written once.
# Fused: read in 2 bytes, and backward its gradient put in its place (flash-attn). Eager: PyTorch's kernels over a
# copy in 4 bytes; 51 in all were measured on an H100, of 50,368 logits as of 128,256.
LOSS_BYTES: Mapping[str, tuple[int, int]] = {"compiled": (10, 6), "fused": (2, 4), "eager": (14, 37)}
# PyTorch's cross-entropy under autocast: the copy in 4 bytes, a softmax's logarithm of it that finds a row in the
# cache when it reads it again. On an H100 14.8 and 17.0 were measured.
METRIC_BYTES = (6, 8)


class Sublayer:
    """The parts that attention and MLP blocks share.

    In parallel layers (`parallel_norms`) both blocks read the layer's input and are added to it together. What
    both would communicate alike is communicated once: the sum of their results, the gradient that enters both, and
    behind one norm also their input and the sum of its gradients. The block that comes first, forward attention
    and backward the MLP, gathers for both, and the last sums for both.
    """

    comes_first = True  # forward

    def __init__(self, roof: Roofline, shape: Shape) -> None:
        self.roof, self.shape, self.model = roof, shape, shape.model
        self.traffic = shape.kernels.traffic

    # --- memory-bound kernels, (forward, backward)

    def moved(self, kernels: Moved, elements: int) -> Cost:
        """Cost of kernels that move so many elements."""
        return Cost(self.roof.stream(kernels.bytes * elements).ps, kernels.kernels)

    def residual(self) -> tuple[Cost, Cost]:
        """Bias, dropout and residual sum after a block; backward, where its branch begins too."""
        elements = self.shape.local * self.model.hidden
        e, wide = self.roof.element_bytes, self.traffic.stream_bytes
        mask = 1 if self.model.dropout else 0
        forward, backward = (
            self.roof.stream((e + 2 * wide + mask) * elements),
            self.roof.stream(3 * wide * elements),
        )
        if wide > e:  # the branch is in 2 bytes, and takes its gradient so
            moved = CAST_BYTES if self.traffic.casts_inputs else CAST_BYTES - wide
            backward += self.roof.stream(moved * elements)
        if mask:
            backward += self.roof.stream((2 * e + 1) * elements)
        return forward, backward

    def issued_once(self, part: str, cost: Cost) -> Cost:
        """The kernels of a captured part cost the host nothing."""
        return Cost(cost.ps, 0) if part in self.shape.kernels.captured else cost

    def norm(self) -> tuple[Cost, Cost]:
        if self.reads_normed:
            return NOTHING, NOTHING
        elements = self.shape.local * self.model.hidden
        if self.model.norm == "rms":
            forward, backward = self.traffic.rms_norm
            return self.moved(forward, elements), self.moved(backward, elements)
        once = self.traffic.stream_bytes * elements
        weights = NOTHING if self.frozen else self.roof.stream(2 * once)
        return self.roof.stream(2 * once), self.roof.stream(3 * once) + weights

    @property
    def reads_normed(self) -> bool:
        """Return true if a block's input has its norm behind it: a parallel layer's one is attention's."""
        return self.model.parallel_norms == 1 and not self.comes_first

    # --- products

    def _sides(self, linear: Linear, tp: int) -> tuple[int, int]:
        inner, out = linear.inner, linear.out
        return (inner, out // tp) if linear.split == "column" else (inner // tp, out)

    @property
    def frozen(self) -> bool:
        """Return true if weights are not trained, but for adapters."""
        return self.shape.kernels.adapters is not None

    def adapter_of(self, linear: Linear) -> int:
        """Return the rank of the adapter beside a linear layer, 0 where there is none."""
        found = self.shape.kernels.adapters
        return found.rank if found and linear.name in found.targets else 0

    def keeps_input(self, linear: Linear) -> bool:
        """Return true if a gradient of weights needs a linear layer's input: its own or its adapter's."""
        return not self.frozen or self.adapter_of(linear) > 0

    def products_of(self, linear: Linear) -> int:
        """Products that a linear layer is: Q, K, V and gate, up of gated models may be apart."""
        if not (self.traffic.apart and self.model.gated):
            return 1
        return {"qkv": 3, "up": self.model.ups}.get(linear.name, 1)

    def _cast_weights(self, inner: int, out: int, products: int) -> Cost:
        if not self.traffic.casts_weights:
            return NOTHING
        return self.moved(Moved(CAST_BYTES, products), inner * out)

    def _cast_inputs(self, linear: Linear, elements: int, products: int) -> Cost:
        """Cost of what each product of a norm's reader casts; others read 2 bytes already."""
        if not self.traffic.casts_inputs or linear.split == "row":
            return NOTHING
        return self.roof.stream(CAST_BYTES * elements) * products

    def forward_of(self, linear: Linear, tokens: int, *, copies: int = 1, tp: int | None = None) -> Cost:
        inner, out = self._sides(linear, (tp or self.shape.sharing.tp) if linear.split != "whole" else 1)
        cost, rank = self.roof.linear(tokens, out, inner, copies=copies), self.adapter_of(linear)
        products = self.products_of(linear)
        cost = Cost(cost.ps, cost.kernels * products) + self._cast_inputs(linear, tokens * inner, products)
        cost += self._cast_weights(inner, out, products) * copies
        if rank:
            down, up = self.roof.gemm(tokens, rank, inner), self.roof.gemm(tokens, out, rank)
            cost += down + up + self.roof.stream(3 * self.roof.element_bytes * tokens * out)
        return cost

    def backward_of(
        self, linear: Linear, tokens: int, *, copies: int = 1, tp: int | None = None
    ) -> tuple[Cost, Cost]:
        """(gradient of the input, gradient of weight and bias)."""
        inner, out = self._sides(linear, (tp or self.shape.sharing.tp) if linear.split != "whole" else 1)
        products = self.products_of(linear)
        inputs = self.roof.linear(tokens, inner, out, copies=copies, backward=True)
        inputs = Cost(inputs.ps, inputs.kernels * products) + self._cast_inputs(linear, tokens * inner, products)
        if products > 1:
            inputs += self.roof.stream(3 * self.traffic.stream_bytes * tokens * inner) * (products - 1)
        if self.frozen:
            return self._adapters_backward(linear, tokens, inner, out, inputs)
        weight = self.roof.linear(out, inner, tokens, copies=copies, accumulate=True, backward=True)
        weight = Cost(weight.ps, weight.kernels * products) + self._cast_weights(inner, out, products) * copies
        if linear.bias:
            weight += self.roof.stream(self.roof.element_bytes * tokens * out)
        return inputs, weight

    def _adapters_backward(
        self, linear: Linear, tokens: int, inner: int, out: int, inputs: Cost
    ) -> tuple[Cost, Cost]:
        rank, roof = self.adapter_of(linear), self.roof
        if not rank:
            return inputs, NOTHING
        inputs += roof.gemm(tokens, rank, out) + roof.gemm(tokens, inner, rank)
        inputs += roof.stream(3 * roof.element_bytes * tokens * inner)
        weights = roof.gemm(out, rank, tokens, accumulate=True) + roof.gemm(rank, inner, tokens, accumulate=True)
        return inputs, weights

    # --- tensor-parallel communication

    def beside(
        self, kind: Kind, width: int, *, entering: bool, backward: bool = False, in_pieces: bool = False
    ) -> Collective | None:
        """Return what is communicated at a block's end; None where the other block does it for both."""
        both = self.model.parallel_norms > 0 and not (entering and self.model.parallel_norms == 2)
        if both and (kind == "all_gather") != (self.comes_first != backward):
            return None
        return self.tensor(kind, width, in_pieces=in_pieces)

    def tensor(self, kind: Kind, width: int, *, in_pieces: bool = False) -> Collective | None:
        """Communication of activations of `width` a token; None where nothing is shared."""
        shape = self.shape
        if shape.sharing.tp == 1 or (kind != "all_reduce" and not shape.sharing.sequence_parallel):
            return None
        if kind == "all_reduce" and shape.sharing.sequence_parallel:
            return None
        element = self.roof.operand_bytes if kind == "all_gather" else self.roof.element_bytes
        sms = shape.hiding.tensor_sms if in_pieces else shape.hiding.collective_sms
        return Collective("tp", kind, round(shape.tokens * width * element), sms)

    @property
    def pieces(self) -> bool:
        return (
            self.shape.hiding.overlap == "full"
            and self.shape.sharing.sequence_parallel
            and self.shape.sharing.tp > 1
        )

    def enter(self, script: Script, linear: Linear, width: int, part: Part) -> None:
        """Gather the input of a column-parallel product, and compute it."""
        tokens, tp = self.shape.tokens, self.shape.sharing.tp
        if self.pieces:
            piece = self.forward_of(linear, tokens // tp)
            gathered = self.beside("all_gather", width, entering=True, in_pieces=True)
            script.overlap(gathered, piece * (tp - 1), part)
            script.compute(piece, part)
        else:
            script.communicate(self.beside("all_gather", width, entering=True))
            script.compute(self.forward_of(linear, tokens), part)

    def leave(self, script: Script, linear: Linear, part: Part) -> None:
        """Compute a row-parallel product, and sum it over ranks."""
        tokens, tp, hidden = self.shape.tokens, self.shape.sharing.tp, self.model.hidden
        if self.pieces:
            piece = self.forward_of(linear, tokens // tp)
            script.compute(piece, part)
            sums = self.beside("reduce_scatter", hidden, entering=False, in_pieces=True)
            script.overlap(sums, piece * (tp - 1), part)
        else:
            script.compute(self.forward_of(linear, tokens), part)
            script.communicate(self.beside("reduce_scatter", hidden, entering=False))
            script.communicate(self.beside("all_reduce", hidden, entering=False))

    def leave_backward(self, script: Script, linear: Linear) -> None:
        """Backward of `leave`: gather the gradient, then gradients of input and weight."""
        tokens, tp, hidden = self.shape.tokens, self.shape.sharing.tp, self.model.hidden
        script.compute(self.roof.cast(self.shape.local * hidden), "backward")
        inputs, weights = self.backward_of(linear, tokens)
        if self.pieces:
            piece, _ = self.backward_of(linear, tokens // tp)
            gradient = self.beside("all_gather", hidden, entering=False, backward=True, in_pieces=True)
            script.overlap(gradient, piece * (tp - 1), "backward")
            script.compute(piece, "backward")
        else:
            script.communicate(self.beside("all_gather", hidden, entering=False, backward=True))
            script.compute(inputs, "backward")
        if self.shape.sharing.sequence_parallel and not self.frozen:
            script.compute(self.roof.transpose(tokens * hidden), "backward")
        script.compute(weights, "weight")

    def enter_backward(self, script: Script, linear: Linear, width: int) -> None:
        """Backward of `enter`: gather the input again, gradients of input and weight, sum the input's."""
        inputs, weights = self.backward_of(linear, self.shape.tokens)
        if self.shape.sharing.sequence_parallel and not self.frozen:
            weights = self.roof.transpose(self.shape.tokens * width) + weights
        kinds: tuple[Kind, ...] = ("all_gather", "reduce_scatter", "all_reduce")
        again, scattered, reduced = (self.beside(kind, width, entering=True, backward=True) for kind in kinds)
        again, sums = again if self.keeps_input(linear) else None, scattered or reduced
        self.gradients(script, again, (inputs, weights), sums)

    def gradients(
        self, script: Script, again: Collective | None, costs: tuple[Cost, Cost], sums: Collective | None
    ) -> None:
        """Gather an input again, compute its gradient and that of weights, sum the former over ranks."""
        inputs, weights = costs
        if self.shape.hiding.overlap == "none":
            script.communicate(again)
            script.compute(inputs, "backward")
            script.compute(weights, "weight")
            script.communicate(sums)
        else:
            script.overlap(again, inputs, "backward")
            script.overlap(sums, weights, "weight")

    # --- a dense MLP

    def mlp_forward(self, script: Script, width: int, part: Part) -> None:
        up, down = self.model.mlp_linears(width)
        elements = self.shape.tokens * width // self.shape.sharing.tp
        self.enter(script, up, self.model.hidden, part)
        script.compute(self.activation(elements)[0] + self.roof.cast(elements), part)
        self.leave(script, down, part)

    def mlp_backward(self, script: Script, width: int) -> None:
        up, down = self.model.mlp_linears(width)
        self.leave_backward(script, down)
        elements = self.shape.tokens * width // self.shape.sharing.tp
        script.compute(self.activation(elements)[1] + self.roof.cast(self.model.ups * elements), "backward")
        self.enter_backward(script, up, self.model.hidden)

    def activation(self, elements: int) -> tuple[Cost, Cost]:
        if self.model.gated:
            forward, backward = self.traffic.gate
            return self.moved(forward, elements), self.moved(backward, elements)
        e = self.roof.element_bytes
        return self.roof.stream(2 * e * elements), self.roof.stream(3 * e * elements)


class Ends(Sublayer):
    """The work of the first and the last stage alone: embedding, output projection and loss."""

    def embedding_forward(self) -> Script:
        script = Script()
        script.compute(
            self.roof.stream(2 * self.roof.element_bytes * self.shape.tokens * self.model.hidden), "forward"
        )
        script.communicate(
            self.tensor("reduce_scatter", self.model.hidden) or self.tensor("all_reduce", self.model.hidden)
        )
        return script

    def embedding_backward(self) -> Script:
        script = Script()
        if self.frozen:
            return script
        script.communicate(self.tensor("all_gather", self.model.hidden))
        moved = (self.roof.element_bytes + 2 * self.roof.gradient_bytes) * self.shape.tokens * self.model.hidden
        script.compute(self.roof.stream(moved), "backward")
        return script

    def _logits(self) -> tuple[Cost, Cost, Cost]:
        """(forward, input's gradient, weight's gradient); in 16 bits even where layers are in fp8."""
        tokens, vocab, hidden = self.shape.tokens, self.shape.vocab // self.shape.sharing.tp, self.model.hidden
        cast = self._cast_weights(hidden, vocab, 1)
        return (
            self.roof.gemm(tokens, vocab, hidden) + cast,
            self.roof.gemm(tokens, hidden, vocab),
            NOTHING if self.frozen else self.roof.gemm(vocab, hidden, tokens, accumulate=True) + cast,
        )

    def _gather(self) -> Collective | None:
        """The head's input, gathered in 16 bits."""
        collective = self.tensor("all_gather", self.model.hidden)
        size = self.shape.tokens * self.model.hidden * self.roof.element_bytes
        return collective and Collective(collective.group, collective.kind, size, collective.sms)

    def _scores(self) -> int:
        return self.shape.tokens * self.shape.vocab // self.shape.sharing.tp

    def _loss(self) -> tuple[Cost, Cost]:
        """Return the cross-entropy's (forward, backward), and its metrics' with forward."""
        scores, kernels = self._scores(), self.shape.kernels.loss
        forward, backward = (self.roof.stream(moved * scores) for moved in LOSS_BYTES[kernels.kind])
        again = sum((self.roof.stream(moved * scores) for moved in METRIC_BYTES), NOTHING)
        return forward + again * kernels.metrics, backward

    def output_forward(self) -> Script:
        """Final norm, logits, cross-entropy, metrics."""
        script = Script()
        script.compute(self.norm()[0], "forward")
        script.communicate(self._gather())
        script.compute(self._logits()[0] + self._loss()[0], "forward")
        return script

    def join_forward(self) -> Script:
        """A predictor's input: the next tokens' embedding and what the layers gave, normed, put side by side."""
        script, e = self.embedding_forward(), self.roof.element_bytes
        script.compute(self.norm()[0] * 2, "forward")
        script.compute(self.roof.stream(4 * e * self.shape.local * self.model.hidden), "forward")
        linear = self.model.join_linear()
        self.enter(script, linear, linear.inner, "forward")
        script.communicate(self.tensor("reduce_scatter", self.model.hidden))
        return script

    def join_backward(self) -> Script:
        script, e = Script(), self.roof.element_bytes
        linear = self.model.join_linear()
        script.communicate(self.tensor("all_gather", self.model.hidden))
        self.enter_backward(script, linear, linear.inner)
        script.compute(self.roof.stream(4 * e * self.shape.local * self.model.hidden), "backward")
        script.compute(self.norm()[1] * 2, "backward")
        script.extend(self.embedding_backward())
        return script

    def output_backward(self) -> Script:
        script = Script()
        _, inputs, weights = self._logits()
        hidden = self.model.hidden
        sums = self.tensor("reduce_scatter", hidden) or self.tensor("all_reduce", hidden)
        again = None if self.frozen else self._gather()
        script.compute(self._loss()[1], "backward")
        self.gradients(script, again, (inputs, weights), sums)
        script.compute(self.norm()[1], "backward")
        return script
