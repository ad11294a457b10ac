"""The MLP block of a layer: dense, or a mixture of experts.

Experts: a router scores each token (in 16 bits here); tokens are put in the order of their experts, sent to the
ranks that hold them (all-to-all over the expert-parallel group, `top_k` copies of each token), gathered over the
ranks that share an expert, go through its MLP, and come back the same way, weighted and summed. Shared experts are
a dense MLP beside them. The products of a rank's experts are of one shape, that of an expert's mean load, and one
after the other, each a kernel. What arrives from several ranks is first put in the order of the experts, and back.
The activation multiplies by the router's weight; backward a second kernel sums the weight's gradient.

With the `flex` dispatcher (DeepEP, HybridEP) a token is sent once to every host, and inside one to every rank,
that holds one of its experts; ranks lay out copies for their experts as they receive them, and add them up before
they send back.

The load of experts is not even. The rank that got most decides how long the others wait, in the exchange as in the
products: `load` is its tokens over the mean. With a capacity factor an expert takes so many times its mean and not
more, and works on as many (padded), whatever came.

The host waits in every such layer for the counts of tokens, which it needs to go on, so that it cannot run ahead:
the device stands still until it has prepared and issued what its experts do (TE's grouped linear layers do so
expert by expert). Those are calibrated times; backward knows the counts. With `overlap.experts` (Megatron-Core's
overlap_moe_expert_parallel_comm) exchanges run beside another micro-batch's compute: here beside the same layer's
own, of which there is as much.
"""

from __future__ import annotations

from functools import cache, lru_cache
from itertools import pairwise
from math import comb

from fabrictwin.workload.layers.pass_script import Collective, Kind, Part, Script
from fabrictwin.workload.layers.roofline import FLOAT_BYTES, NOTHING, Cost
from fabrictwin.workload.layers.transformer import Sublayer
from fabrictwin.workload.model.model_blocks import Linear


class MlpBlock(Sublayer):
    """Forward and backward of one MLP block; `load` is 0 in a dense layer."""

    comes_first = False

    def forward(self, load: float = 0.0, part: Part = "forward") -> Script:
        script = Script()
        script.compute(self.issued_once("router" if load else "", self.norm()[0]), part)
        if load:
            self._experts_forward(script, load, part)
        else:
            script.compute(NOTHING if self.reads_normed else self.roof.cast_alone(self._normed), part)
            self.mlp_forward(script, self.model.ffn, part)
        script.compute(self.residual()[0], part)
        return script

    def forward_until_down(self) -> Script:
        """Recomputation of a dense block up to the input of its last product, the last that backward reads."""
        script, up = Script(), self.model.mlp_linears(self.model.ffn)[0]
        elements = self.shape.tokens * self.model.ffn // self.shape.sharing.tp
        again = NOTHING if self.reads_normed else self.roof.cast_alone(self._normed)
        script.compute(self.norm()[0] + again, "recompute")
        self.enter(script, up, self.model.hidden, "recompute")
        script.compute(self.activation(elements)[0] + self.roof.cast(elements), "recompute")
        return script

    def backward(self, load: float = 0.0) -> Script:
        script = Script()
        script.compute(self.residual()[1], "backward")
        if load:
            self._experts_backward(script, load)
        else:
            self.mlp_backward(script, self.model.ffn)
        if "norms" in self.shape.kernels.recompute_modules:
            script.compute(self.norm()[0], "recompute")
        script.compute(self.norm()[1], "backward")
        return script

    @property
    def _normed(self) -> int:
        return self.shape.local * self.model.hidden

    # --- experts

    def _copies(self, load: float) -> int:
        """Token copies on the busiest rank, before they are gathered over ranks that share an expert."""
        assert self.model.experts is not None
        return round(self.shape.local * self.model.experts.top_k * (self.shape.routing.capacity_factor or load))

    def _sent(self, copies: int) -> int:
        """Number of copies that travel: with `flex` one a rank, however many of the token's experts it holds.

        Over several hosts it is one a host, which then forwards inside: what lies between hosts decides.
        """
        experts, shape = self.model.experts, self.shape
        assert experts is not None
        if shape.sharing.dispatcher == "all-to-all":
            return copies
        places = shape.sharing.ep_hosts if shape.sharing.ep_hosts > 1 else shape.sharing.ep
        others = experts.count - experts.count // places
        missed = comb(others, experts.top_k) / comb(experts.count, experts.top_k)
        return round(copies * places * (1 - missed) / experts.top_k)

    def _collective(self, group: str, kind: Kind, copies: int) -> Collective | None:
        shape = self.shape
        ranks = shape.sharing.ep if group == "ep" else shape.sharing.expert_tp
        if ranks == 1:
            return None
        copies = self._sent(copies)
        size = copies * self.model.expert_hidden * self.roof.element_bytes * (1 if group == "ep" else ranks)
        # whole elements for every peer
        unit = ranks * self.roof.element_bytes
        return Collective(group, kind, -(-size // unit) * unit, shape.hiding.collective_sms)

    def _exchange(self, script: Script, copies: int, *, out: bool) -> int | None:
        """Tokens to their experts' ranks, or back. What runs beside another micro-batch has a key to wait for."""
        there = self._collective("ep", "all_to_all", copies)
        shared = self._collective("expert_tp", "all_gather" if out else "reduce_scatter", copies)
        if self.shape.hiding.hide_experts and shared is None:
            return script.start(there)
        for collective in (there, shared) if out else (shared, there):
            script.communicate(collective)
        return None

    def _move(self, tokens: float) -> Cost:
        return self.roof.stream(2 * self.roof.element_bytes * tokens * self.model.expert_hidden)

    def _copied(self, tokens: int) -> Cost:
        """Copies of tokens laid out before they are sent; with `flex` they are sent as they are."""
        return self._move(tokens) if self.shape.sharing.dispatcher == "all-to-all" else NOTHING

    def _sorted(self, own: int, rows: int) -> Cost:
        """Cost of sorting what came from every rank by a rank's own experts, or back; none of one expert."""
        return self._move(own * rows) if own > 1 and self.shape.sharing.ep > 1 else NOTHING

    def _activated(self, width: int) -> tuple[Cost, Cost]:
        """An expert's activation, weighted: (forward, backward).

        Megatron-Core clamps in PyTorch, ahead of the compiled rest: gate and up one by one, then joined; backward
        each gradient masked by its input, then joined.
        """
        forward, backward = self.activation(width)
        e = self.roof.element_bytes
        # the sum of a token's gradient over the width reads what the gradient did
        backward += self.roof.stream(e * (self.model.ups + 1) * width)
        if self.model.clamped:
            each, both = e * width, e * self.model.ups * width
            forward += self.roof.eager(2 * each) * 2 + self.roof.eager(2 * both)
            backward += self.roof.eager(3 * each) * 2 + self.roof.eager(2 * both)
        return forward, backward

    def _biased(self, tokens: int) -> tuple[Cost, Cost]:
        """Each expert's bias, times the token's weight, added to what it yields: (forward, backward).

        Megatron-Core does so expert by expert in PyTorch, in 4 bytes: weighted bias written; result and bias read,
        sum written; sums joined; and back to 2 bytes. Backward casts twice, joins, and takes a product and a sum
        for each factor.
        """
        if not self.model.biases:
            return NOTHING, NOTHING
        elements = tokens * self.model.expert_hidden
        eager = self.roof.eager
        product, added, joined = eager(4 * elements), eager(10 * elements), eager(8 * elements)
        cast, factor = eager(6 * elements), eager(8 * elements) + eager(4 * elements)
        return product + added + joined + cast, cast * 2 + eager(4 * elements) + factor * 2

    def _stall(self, own: int) -> Cost:
        """The device has nothing to do while the host learns the counts and prepares its experts' kernels."""
        return Cost(self.shape.routing.routing_ps + own * self.shape.routing.expert_ps)

    def _router_forward(self) -> Cost:
        assert self.model.experts is not None
        local, count = self.shape.local, self.model.experts.count
        return self.roof.gemm(local, count, self.model.hidden) + self.roof.stream(3 * FLOAT_BYTES * local * count)

    def _router_backward(self) -> tuple[Cost, Cost]:
        """(gradient of the input, of the weight)."""
        assert self.model.experts is not None
        local, count, hidden = self.shape.local, self.model.experts.count, self.model.hidden
        return (
            self.roof.gemm(local, hidden, count) + self.roof.stream(3 * FLOAT_BYTES * local * count),
            self.roof.gemm(count, hidden, local, accumulate=True),
        )

    def _rows(self, copies: int) -> tuple[int, int]:
        """(experts of a rank, tokens of each)."""
        assert self.model.experts is not None
        own = self.model.experts.count // self.shape.sharing.ep
        return own, max(1, copies * self.shape.sharing.expert_tp // own)

    def _experts_forward(self, script: Script, load: float, part: Part) -> None:
        experts, shape, roof = self.model.experts, self.shape, self.roof
        assert experts is not None
        copies = self._copies(load)
        routed = self.issued_once("router", self._router_forward() + self._copied(shape.local * experts.top_k))
        script.compute(routed, part)
        if experts.shared_ffn:
            self.mlp_forward(script, experts.shared_ffn, part)
        latent = self.model.latent_linears()
        for linear in latent[:1]:
            script.compute(self.forward_of(linear, shape.local), part)
        own, rows = self._rows(copies)
        script.compute(self._stall(own), part)
        out = self._exchange(script, copies, out=True)
        up, down = self.model.expert_linears()
        tp = shape.sharing.expert_tp
        width = own * rows * experts.ffn // tp
        script.compute(self._sorted(own, rows) + roof.cast(own * rows * self.model.expert_hidden), part)
        script.compute(self.forward_of(up, rows, copies=own, tp=tp), part)
        script.compute(self._activated(width)[0] + roof.cast(width), part)
        script.compute(self.forward_of(down, rows, copies=own, tp=tp) + self._biased(own * rows)[0], part)
        script.compute(self._sorted(own, rows), part)
        script.wait(out)
        back = self._exchange(script, copies, out=False)
        script.compute(self._move((self._sent(copies) + shape.local) / 2), part)
        script.wait(back)
        for linear in latent[1:]:
            script.compute(self.forward_of(linear, shape.local), part)

    def _experts_backward(self, script: Script, load: float) -> None:
        experts, shape, roof = self.model.experts, self.shape, self.roof
        assert experts is not None
        copies = self._copies(load)
        latent = self.model.latent_linears()
        self._latent_backward(script, latent[1:])
        script.compute(self._copied(shape.local * experts.top_k), "backward")
        out = self._exchange(script, copies, out=True)
        own, rows = self._rows(copies)
        up, down = self.model.expert_linears()
        tp = shape.sharing.expert_tp
        width = own * rows * experts.ffn // tp
        script.compute(self._sorted(own, rows) + self._biased(own * rows)[1], "backward")
        script.compute(roof.cast(own * rows * self.model.expert_hidden), "backward")
        inputs, weights = self.backward_of(down, rows, copies=own, tp=tp)
        script.compute(inputs, "backward")
        script.compute(weights, "weight")
        if "expert-activations" in shape.kernels.recompute_modules:
            script.compute(self._activated(width)[0] + roof.cast(width), "recompute")
        script.compute(self._activated(width)[1] + roof.cast(self.model.ups * width), "backward")
        inputs, weights = self.backward_of(up, rows, copies=own, tp=tp)
        script.compute(inputs, "backward")
        script.compute(weights, "weight")
        script.compute(self._sorted(own, rows), "backward")
        script.wait(out)
        back = self._exchange(script, copies, out=False)
        if experts.shared_ffn:
            self.mlp_backward(script, experts.shared_ffn)
        inputs, weights = self._router_backward()
        joined = self._move((self._sent(copies) + shape.local) / 2)
        script.compute(self.issued_once("router", joined + inputs), "backward")
        script.wait(back)
        script.compute(weights, "weight")
        self._latent_backward(script, latent[:1])

    def _latent_backward(self, script: Script, linears: tuple[Linear, ...]) -> None:
        for linear in linears:
            inputs, weights = self.backward_of(linear, self.shape.local)
            script.compute(inputs, "backward")
            script.compute(weights, "weight")


def _mix(value: int) -> int:
    """splitmix64 (Steele, Lea, Flood 2014): the same on every machine and version."""
    z = (value + 0x9E3779B97F4A7C15) % 2**64
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 % 2**64
    z = (z ^ z >> 27) * 0x94D049BB133111EB % 2**64
    return z ^ z >> 31


@cache
def peak_load(experts: int, ranks: int, imbalance: float, seed: int, layer: int) -> float:
    """Tokens of the busiest of `ranks` over the mean, where experts' loads deviate by `imbalance` of their mean.

    Loads are drawn around the mean from a sum of twelve even draws (a bell of deviation 1), cut off at 0.
    """
    if imbalance == 0:
        return 1.0
    state = _mix(_mix(seed) ^ layer)
    loads = []
    for _ in range(experts):
        total = 0
        for _ in range(12):
            state = _mix(state)
            total += state >> 32
        loads.append(max(0.0, 1.0 + imbalance * (total / 2**32 - 6.0)))
    own = experts // ranks
    sums = [sum(loads[i : i + own]) for i in range(0, experts, own)]
    return max(sums) * len(sums) / (sum(sums) or 1.0)


@lru_cache(maxsize=1 << 12)
def peak_loads(
    sparse_before: tuple[int, ...], experts: int, ranks: int, imbalance: float, seed: int
) -> tuple[float, ...]:
    """The same of every layer, 0 of dense ones; `sparse_before`: layers with experts ahead of each, and in all."""
    return tuple(
        peak_load(experts, ranks, imbalance, seed, layer) if after > before else 0.0
        for layer, (before, after) in enumerate(pairwise(sparse_before))
    )
