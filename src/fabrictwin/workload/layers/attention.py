"""The attention block of a layer: norm, Q K V, core attention, output projection, residual.

Context parallel divides sequences over ranks (evenly in work: rank i holds chunks i and 2 cp - 1 - i, as the
published implementations do). `ring` (Liu et al. 2023, arXiv 2310.01889): keys and values travel around the ring
while the products with the block at hand are computed, all but one block's can hide; backward they travel again,
and their gradients with them. `all-gather` (Llama 3, arXiv 2407.21783, section 3.3.2): keys and values are
gathered first, and their gradients reduce-scattered. `pytorch` (torch.distributed.tensor.experimental, as
torchtitan uses it): key and value heads are repeated to as many as queries have; keys and values are gathered
beside the first block; results of blocks are merged in 4 bytes, and so are gradients summed, those of keys and
values on their way around the ring and home. Counted on the rank that never works on half of its queries alone. A
compiler that traces this waits for each communication where it begins.

Selective recomputation (Korthikanti et al. 2022, section 5) computes core attention once more in backward.
Latent attention (MLA) is trained in its expanded form: the low-rank products on every rank, then per-head ones.
"""

from __future__ import annotations

from typing import Literal

from fabrictwin.workload.layers.kernel_traffic import CAST_BYTES
from fabrictwin.workload.layers.pass_script import Collective, Kind, Part, Script
from fabrictwin.workload.layers.roofline import FLOAT_BYTES, NOTHING, Cost, Heads
from fabrictwin.workload.layers.transformer import Sublayer
from fabrictwin.workload.model.model_blocks import Linear


class AttentionBlock(Sublayer):
    """Forward and backward of one attention block."""

    def core(self) -> tuple[Cost, Cost]:
        """(forward, backward) of softmax(Q K^T) V on a rank's heads, over all of a rank's sequences."""
        model, shape, roof, s = self.model, self.shape, self.roof, self.shape.sequence
        heads = model.heads // shape.sharing.tp
        if shape.kernels.attention != "materialised":
            forward, backward = self._flash("f"), self._flash("b")
            return Cost(forward.ps / shape.sharing.cp, shape.sharing.cp), Cost(
                backward.ps / shape.sharing.cp, shape.sharing.cp
            )
        rows, scores = shape.batch * heads, shape.batch * heads * s * s
        e = roof.element_bytes
        keys, values = roof.gemm(s, s, model.key_size, batch=rows), roof.gemm(s, model.value_size, s, batch=rows)
        forward = keys + roof.stream(2 * e * scores) + values
        # gradients of probabilities (scores out); of values, queries and keys (a head's width out)
        backward = roof.gemm(s, s, model.value_size, batch=rows) + values + roof.stream(3 * e * scores)
        backward += roof.gemm(s, model.key_size, s, batch=rows) * 2
        if model.dropout:
            forward += roof.stream((2 * e + 1) * scores)
            backward += roof.stream((2 * e + 1) * scores)
        context, packed = (
            roof.stream(2 * e * shape.tokens * width // shape.sharing.tp)
            for width in (model.heads * model.value_size, model.qkv_width)
        )
        return forward + context, backward + context + packed

    def _flash(self, part: Literal["f", "b"]) -> Cost:
        """Cost of a layer's flash attention; where only some layers have a window, the mean of both kinds."""
        model, shape = self.model, self.shape
        block = shape.sequence // shape.sharing.cp if shape.sharing.context != "all-gather" else None
        heads = Heads(model.heads // shape.sharing.tp, model.key_size, model.value_size)
        costs = [
            self.roof.flash_attention(
                shape.batch,
                heads,
                shape.sequence,
                part,
                window=window,
                block=block,
            )
            for window in model.windows
        ]
        return Cost(sum(cost.ps for cost in costs) / len(costs), 1)

    def _exchange(self, kind: str) -> Collective | None:
        """Keys and values of all of a sequence's ranks, gathered or their gradients summed."""
        shape = self.shape
        if shape.sharing.cp == 1:
            return None
        size = shape.sharing.cp * shape.tokens * self.model.kv_width * self.roof.element_bytes // shape.sharing.tp
        return Collective(
            "cp", "all_gather" if kind == "gather" else "reduce_scatter", size, shape.hiding.collective_sms
        )

    def _repeated(self) -> int:
        """Elements of a rank's keys and values, repeated for every head of its queries."""
        width = self.model.heads * (self.model.key_size + self.model.value_size)
        return self.shape.tokens * width // self.shape.sharing.tp

    def _message(self, kind: Kind, ranks: float, each_bytes: int) -> Collective:
        """Keys and values, or gradients, of so many ranks that pass each."""
        cp = self.shape.sharing.cp
        unit = cp * each_bytes
        size = -(-round(ranks * self._repeated() * each_bytes) // unit) * unit
        return Collective("cp", kind, size, self.shape.hiding.collective_sms)

    def _gathered(self, script: Script, block: Cost, part: Part) -> None:
        """Gather keys and values beside the first block, or ahead of it."""
        gathered = self._message("all_gather", self.shape.sharing.cp, self.roof.element_bytes)
        if self.traffic.compiled:
            script.communicate(gathered)
            script.compute(block, part)
        else:
            script.overlap(gathered, block, part)

    def _pytorch_forward(self, script: Script, part: Part) -> None:
        forward, cp, model = self.core()[0], self.shape.sharing.cp, self.model
        out = self.shape.tokens * model.heads * model.value_size // self.shape.sharing.tp
        block = Cost(forward.ps / cp, 1)
        self._gathered(script, block, part)
        # the first block's result to 4 bytes, and the last one's back
        script.compute((block + self.moved(self.traffic.partial.merged, out)) * (cp - 1), part)
        script.compute(self.roof.stream(CAST_BYTES * out) * 2, part)

    def _pytorch_backward(self, script: Script) -> None:
        backward, cp, model = self.core()[1], self.shape.sharing.cp, self.model
        queries = self.shape.tokens * model.heads * model.key_size // self.shape.sharing.tp
        partial = self.traffic.partial
        summed = self.moved(partial.queries, queries) + self.moved(partial.keys, self._repeated())
        block = Cost(backward.ps / cp, 1) + summed
        self._gathered(script, block, "backward")
        # all blocks' gradients but the last one's travel beside the next block; those of the last go home
        beside = self._message("reduce_scatter", cp, FLOAT_BYTES)
        home = self._message("reduce_scatter", cp / (cp - 1), FLOAT_BYTES)
        if self.traffic.compiled:
            script.compute(block * (cp - 1), "backward")
            script.communicate(beside)
        else:
            script.overlap(beside, block * (cp - 1), "backward")
        script.communicate(home)

    def core_forward(self, script: Script, part: Part) -> None:
        cp = self.shape.sharing.cp
        if cp > 1 and self.shape.sharing.context == "pytorch":
            self._pytorch_forward(script, part)
            return
        forward, _ = self.core()
        if cp > 1 and self.shape.sharing.context == "ring":
            block = Cost(forward.ps / cp, 1)
            script.overlap(self._exchange("gather"), block * (cp - 1), part)
            script.compute(block, part)
        else:
            script.communicate(self._exchange("gather"))
            script.compute(forward, part)

    def core_backward(self, script: Script) -> None:
        cp = self.shape.sharing.cp
        if cp > 1 and self.shape.sharing.context == "pytorch":
            self._pytorch_backward(script)
            return
        _, backward = self.core()
        if cp > 1 and self.shape.sharing.context == "ring":
            block = Cost(backward.ps / cp, 1)
            keys = script.start(self._exchange("gather"))
            script.compute(block, "backward")  # the gradients set out once there are some
            sums = script.start(self._exchange("sum"))
            script.compute(block * (cp - 1), "backward")
            script.wait(keys)
            script.wait(sums)
        else:
            script.communicate(self._exchange("gather"))
            script.compute(backward, "backward")
            script.communicate(self._exchange("sum"))

    def rotary(self, *, backward: bool = False) -> Cost:
        model, shape = self.model, self.shape
        if model.positions or not model.rotary:
            return NOTHING
        rotated = model.latent.rope_size if model.latent else model.head_size
        elements = shape.tokens * (model.heads + model.kv_heads) * rotated // shape.sharing.tp
        # a norm over heads reads and writes them once more
        return self.moved(self.traffic.rotary[backward], elements) * (2 if model.qk_norm else 1)

    def _low_rank(self, *, part: Part) -> tuple[Script, int]:
        """The products before the column-parallel ones, and the width of what these read."""
        script, model, roof = Script(), self.model, self.roof
        width = 0
        for linear in model.attention_linears():
            if linear.split != "whole":
                continue
            width += linear.out
            if part != "backward":
                script.compute(self.forward_of(linear, self.shape.local), part)
                script.compute(roof.stream(2 * roof.element_bytes * self.shape.local * linear.out), part)
            else:
                inputs, weights = self.backward_of(linear, self.shape.local)
                script.compute(roof.stream(3 * roof.element_bytes * self.shape.local * linear.out), part)
                script.compute(inputs, part)
                script.compute(weights, "weight")
        return script, width or model.hidden

    @property
    def _columns(self) -> list[Linear]:
        return [linear for linear in self.model.attention_linears() if linear.split == "column"]

    def _issued(self, script: Script) -> Script:
        return script.captured() if "attention" in self.shape.kernels.captured else script

    def forward(self, part: Part = "forward") -> Script:
        script = Script()
        script.compute(self.norm()[0] + self.roof.cast_alone(self.shape.local * self.model.hidden), part)
        low, width = self._low_rank(part=part)
        script.extend(low)
        columns = self._columns
        self.enter(script, columns[0], width, part)
        for linear in columns[1:]:
            script.compute(self.forward_of(linear, self.shape.tokens), part)
        script.compute(self.rotary(), part)
        self.core_forward(script, part)
        out = self.model.attention_linears()[-1]
        script.compute(self.roof.cast(self.shape.tokens * out.inner // self.shape.sharing.tp), part)
        self.leave(script, out, part)
        script.compute(self.residual()[0], part)
        return self._issued(script)

    def backward(self, *, recompute_core: bool) -> Script:
        script = Script()
        script.compute(self.residual()[1], "backward")
        self.leave_backward(script, self.model.attention_linears()[-1])
        if "latent-up" in self.shape.kernels.recompute_modules:
            for linear in self._columns:
                script.compute(self.forward_of(linear, self.shape.tokens), "recompute")
            script.compute(self.rotary(), "recompute")
        if recompute_core:
            self.core_forward(script, "recompute")
        self.core_backward(script)
        script.compute(self.rotary(backward=True), "backward")
        columns = self._columns
        for linear in columns:
            script.compute(self.roof.cast(self.shape.tokens * linear.out // self.shape.sharing.tp), "backward")
        for linear in columns[1:]:
            inputs, weights = self.backward_of(linear, self.shape.tokens)
            script.compute(inputs, "backward")
            script.compute(weights, "weight")
        low, width = self._low_rank(part="backward")
        self.enter_backward(script, columns[0], width)
        script.extend(low)
        if "norms" in self.shape.kernels.recompute_modules:
            script.compute(self.norm()[0], "recompute")
        script.compute(self.norm()[1], "backward")
        return self._issued(script)
