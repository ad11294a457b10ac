"""Decoder-only transformers by their sizes: parameters, matrix products, FLOPs.

A model is a row of layers, each an attention block and an MLP, dense or a mixture of experts. Every weight matrix
is a `Linear`, from which parameters, FLOPs, each rank's share and the time of a pass all follow. Attention is
grouped-query (multi-head and multi-query are its ends) or multi-head latent (MLA; DeepSeek-V2, arXiv 2405.04434,
section 2.1: queries and key-values through low-rank products, a rotary part apart). Experts: `top_k` of `count`
for a token, beside shared experts that see every token (DeepSeek-V3, arXiv 2412.19437, section 2.1.2).

FLOPs count a multiply and an add as two, matrix products only, and attention in full (not halved for the causal
mask), as Narayanan et al., "Efficient Large-Scale Language Model Training on GPU Clusters Using Megatron-LM",
2021, section 5.1 and its appendix do. Of experts, those count that a token goes to.

Parallel layers (Wang and Komatsuzaki's GPT-J, 2021) add attention and MLP of the same input to it at once.

Where every second layer has a sliding window, attention of a layer is the mean of both kinds.

Multi-token prediction (DeepSeek-V3, section 2.2): behind the last layer, each of `predictors` modules joins what
it is given with the embedding of the next token (a product of 2 h by h), adds a layer of the model's last kind,
and predicts with the model's own embedding and head.

Hybrids (Nemotron-H, arXiv 2504.03624) have layers of one block each, named by a letter of `pattern`: M Mamba-2,
* attention, - MLP, E experts. Experts may work on fewer dimensions than the model's (`latent`), into which a
product takes tokens before they are sent, and another back.

Left out: vision towers.
"""

from __future__ import annotations

from functools import cached_property
from itertools import accumulate
from typing import Literal

from fabrictwin.base.records import record
from fabrictwin.workload.model.model_blocks import WIDE, Experts, Latent, Linear, Mamba, Weights


@record
class Model:
    """A decoder-only transformer."""

    name: str
    family: str  # as `model_type` names it
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_size: int
    ffn: int
    vocab: int
    positions: int  # learned position embeddings; 0 where positions are rotary
    tied: bool  # the output projection shares the embedding's weights
    dropout: bool = False  # training drops out attention and residual branches
    gated: bool = True  # the MLP has a gate beside its up projection
    norm: Literal["rms", "layer"] = "rms"
    qkv_bias: bool = False
    biases: bool = False  # on every other matrix of a layer
    qk_norm: bool = False  # an RMS norm over each head's query and key
    latent: Latent | None = None
    experts: Experts | None = None
    window: int = 0  # keys that a query sees in every second layer; 0: all, everywhere
    router_bias: bool = False  # the router's product has a bias
    sinks: bool = False  # a learned score a head beside those of its keys
    clamped: bool = False  # what an expert's activation reads is clamped
    predictors: int = 0  # of tokens after the next, trained beside the model
    pattern: str = ""  # of a hybrid, a letter for every layer
    mamba: Mamba | None = None
    parallel_norms: int = 0  # before attention and MLP that read the same, 1 or 2; 0: one is after the other
    rotary: bool = True  # positions turn queries and keys, where none are learned
    longest: int = 0  # positions that the published model takes; 0: not told
    weights: Weights = WIDE  # as published

    # --- attention -----------------------------------------------------------------------------------------

    @property
    def qkv_width(self) -> int:
        """Values of a token that attention reads: queries, keys, values of all heads."""
        if self.latent:
            return self.heads * (2 * self.key_size + self.value_size)
        return (self.heads + 2 * self.kv_heads) * self.head_size

    @property
    def windows(self) -> tuple[int, ...]:
        """The windows that layers take turns with; 0 sees all."""
        return (self.window, 0) if self.window else (0,)

    @property
    def key_size(self) -> int:
        """Length of a head's query and key."""
        return self.latent.nope_size + self.latent.rope_size if self.latent else self.head_size

    @property
    def value_size(self) -> int:
        return self.latent.value_size if self.latent else self.head_size

    @property
    def kv_width(self) -> int:
        """Keys and values of a token, of all heads: what context parallelism passes on."""
        heads = self.heads if self.latent else self.kv_heads
        return heads * (self.key_size + self.value_size)

    def attention_linears(self) -> tuple[Linear, ...]:
        """Linear layers of attention in order; the last is the output projection."""
        out = Linear("projection", self.heads * self.value_size, self.hidden, "row", self.biases)
        latent = self.latent
        if latent is None:
            return Linear("qkv", self.hidden, self.qkv_width, "column", self.qkv_bias or self.biases), out
        keys = self.heads * self.key_size
        query: tuple[Linear, ...]
        if latent.query_rank:
            query = (
                Linear("query down", self.hidden, latent.query_rank, "whole"),
                Linear("query up", latent.query_rank, keys, "column"),
            )
        else:
            query = (Linear("query", self.hidden, keys, "column"),)
        return (
            *query,
            Linear("key-value down", self.hidden, latent.kv_rank + latent.rope_size, "whole"),
            Linear("key-value up", latent.kv_rank, self.heads * (latent.nope_size + latent.value_size), "column"),
            out,
        )

    # --- MLP -----------------------------------------------------------------------------------------------

    def mlp_linears(self, width: int) -> tuple[Linear, Linear]:
        """Up (with the gate, where there is one) and down, of an MLP or an expert of that width."""
        return (
            Linear("up", self.hidden, self.ups * width, "column", self.biases),
            Linear("down", width, self.hidden, "row", self.biases),
        )

    def second_products(self) -> tuple[Linear, Linear, Linear]:
        """Every second of a dense, gated layer's products Q, K, V, output, gate, up, down: K, output, up."""
        return (
            Linear("key", self.hidden, self.kv_heads * self.head_size, "column", self.qkv_bias),
            self.attention_linears()[-1],
            Linear("up", self.hidden, self.ffn, "column"),
        )

    def expert_linears(self) -> tuple[Linear, Linear]:
        """Up and down of one expert."""
        assert self.experts is not None
        wide, ffn = self.expert_hidden, self.experts.ffn
        return (
            Linear("up", wide, self.ups * ffn, "column", self.biases),
            Linear("down", ffn, wide, "row", self.biases),
        )

    @property
    def expert_hidden(self) -> int:
        """Dimensions of the tokens that go to experts."""
        return (self.experts.latent if self.experts else 0) or self.hidden

    def latent_linears(self) -> tuple[Linear, ...]:
        """To what experts work on, and back."""
        if not (self.experts and self.experts.latent):
            return ()
        wide = self.experts.latent
        return Linear("latent down", self.hidden, wide, "whole"), Linear("latent up", wide, self.hidden, "whole")

    def mamba_linears(self) -> tuple[Linear, Linear]:
        """To gate, inputs, vectors of the groups and a step a head; and back."""
        found = self.mamba
        assert found is not None
        width = found.inner + found.channels + found.heads
        return Linear("in", self.hidden, width, "column"), Linear("out", found.inner, self.hidden, "row")

    def kind(self, layer: int) -> str:
        """The letter of a hybrid's layer, counted from 0; of others none."""
        return self.pattern[layer] if self.pattern else ""

    @cached_property
    def kinds(self) -> dict[str, int]:
        """A hybrid's layers of each kind but those with experts."""
        return {kind: self.pattern.count(kind) for kind in "M*-" if kind in self.pattern}

    def is_sparse(self, layer: int) -> bool:
        """Return true if that layer, counted from 0, has experts."""
        if self.pattern:
            return self.pattern[layer] == "E"
        found = self.experts
        return (
            found is not None
            and layer >= found.first_dense
            and (layer + (0 if found.first_dense else 1)) % found.every == 0
        )

    @cached_property
    def sparse_before(self) -> tuple[int, ...]:
        """[layers + 1] layers with experts before each."""
        return (0, *accumulate(int(self.is_sparse(layer)) for layer in range(self.layers)))

    @property
    def sparse_layers(self) -> int:
        return sum(self.is_sparse(layer) for layer in range(self.layers))

    # --- parameters ----------------------------------------------------------------------------------------

    @property
    def norm_parameters(self) -> int:
        """Parameters of one norm over a token."""
        return self.hidden * (1 if self.norm == "rms" else 2)

    @property
    def ups(self) -> int:
        """Columns of an MLP's first product for each of its width: up, and gate where there is one."""
        return 2 if self.gated else 1

    @cached_property
    def _on_rank(self) -> dict[tuple[bool, int], int]:
        return {}

    def parameters_on_rank(self, *, sparse: bool, tp: int = 1) -> int:
        """One layer's parameters on one of `tp` ranks, but for its routed experts."""
        if (sparse, tp) not in self._on_rank:
            self._on_rank[sparse, tp] = self._count_on_rank(sparse=sparse, tp=tp)
        return self._on_rank[sparse, tp]

    def _count_on_rank(self, *, sparse: bool, tp: int) -> int:
        if not self.pattern:
            return self._block_on_rank("*", tp) + self._block_on_rank("E" if sparse else "-", tp)
        if sparse:
            return self._block_on_rank("E", tp)
        total = sum(count * self._block_on_rank(kind, tp) for kind, count in self.kinds.items())
        return total // max(1, sum(self.kinds.values()))

    def layer_on_rank(self, layer: int, tp: int) -> int:
        """Parameters of that layer on one of `tp` ranks, but for its routed experts."""
        if self.pattern:
            return self._block_on_rank(self.pattern[layer], tp)
        return self.parameters_on_rank(sparse=self.is_sparse(layer), tp=tp)

    def _block_on_rank(self, kind: str, tp: int) -> int:
        """A norm and what it stands before, but for routed experts."""
        linears: list[Linear] = []
        count = self.norm_parameters
        if kind == "*":
            linears += self.attention_linears()
            count += (2 * self.head_size if self.qk_norm else 0) + (self.heads // tp if self.sinks else 0)
            if self.latent:
                count += self.latent.query_rank + self.latent.kv_rank
        elif kind == "M":
            assert self.mamba is not None
            linears += self.mamba_linears()
            # the convolution and its bias; a head's decay, step and skip; a norm's weights
            own = self.mamba.channels * (self.mamba.kernel + 1) + 3 * self.mamba.heads + self.mamba.inner
            count += own // tp
        elif kind == "-":
            count -= self.norm_parameters if self.parallel_norms == 1 else 0
            linears += self.mlp_linears(self.ffn)
        elif self.experts:
            biased = self.experts.routing_bias or self.router_bias
            count += self.hidden * self.experts.count + (self.experts.count if biased else 0)
            count += self.hidden if self.experts.shared_gate else 0
            linears += self.latent_linears()
            if self.experts.shared_ffn:
                linears += self.mlp_linears(self.experts.shared_ffn)
        return count + sum(linear.on_rank(tp) for linear in linears)

    def join_linear(self) -> Linear:
        """A predictor's linear layer that makes what it is given and the next token's embedding one."""
        return Linear("join", 2 * self.hidden, self.hidden, "column")

    def predictor_on_rank(self, tp: int) -> int:
        """One predictor's parameters on one of `tp` ranks, but for its routed experts."""
        layer = self.parameters_on_rank(sparse=self.experts is not None, tp=tp)
        layer += self._block_on_rank("*", tp) if self.pattern else 0
        return layer + self.join_linear().on_rank(tp) + 3 * self.norm_parameters

    def expert_parameters(self) -> int:
        """Parameters of one routed expert."""
        if self.experts is None:
            return 0
        return sum(linear.parameters for linear in self.expert_linears())

    @property
    def layer_parameters(self) -> int:
        """All of a dense layer: matrices, biases, norms."""
        return self.parameters_on_rank(sparse=False)

    def parameters_of(self, *, sparse: bool) -> int:
        """All of one layer, every expert included."""
        routed = self.experts.count * self.expert_parameters() if sparse and self.experts else 0
        return self.parameters_on_rank(sparse=sparse) + routed

    def _total(self, sparse_layer: int) -> int:
        sparse = self.sparse_layers
        layers = (self.layers - sparse) * self.parameters_of(sparse=False) + sparse * sparse_layer
        if self.pattern:
            others = sum(count * self._block_on_rank(kind, 1) for kind, count in self.kinds.items())
            layers = others + sparse * sparse_layer
        embeddings = (self.vocab + self.positions) * self.hidden
        output = 0 if self.tied else self.vocab * self.hidden
        join = self.join_linear().parameters + 3 * self.norm_parameters
        predictor = join + (sparse_layer if self.experts else self.parameters_of(sparse=False))
        predictor += self._block_on_rank("*", 1) if self.pattern else 0
        return layers + embeddings + output + self.norm_parameters + self.predictors * predictor

    @property
    def parameters(self) -> int:
        """All weights; a tied output projection counts once."""
        return self._total(self.parameters_of(sparse=True))

    @property
    def active_parameters(self) -> int:
        """Those that a token meets."""
        found = self.experts
        unused = (found.count - found.top_k) * self.expert_parameters() if found else 0
        return self._total(self.parameters_of(sparse=True) - unused)

    # --- FLOPs ---------------------------------------------------------------------------------------------

    def core_attention_flops(self, tokens: int, sequence: int) -> int:
        """Forward FLOPs of Q K^T and of the product with V, of one layer; of a window, what it sees."""
        seen = sum(min(window or sequence, sequence) for window in self.windows)
        return 2 * tokens * seen * self.heads * (self.key_size + self.value_size) // len(self.windows)

    def layer_forward_flops(self, tokens: int, sequence: int, *, sparse: bool = False) -> int:
        """Forward FLOPs of one layer over `tokens` tokens in sequences of `sequence`; of no hybrid."""
        attention = self._block_flops("*", tokens, sequence)
        return attention + self._block_flops("E" if sparse and self.experts else "-", tokens, sequence)

    def _block_flops(self, kind: str, tokens: int, sequence: int) -> int:
        found = self.experts
        if kind == "*":
            weights = sum(linear.weights for linear in self.attention_linears())
            return 2 * tokens * weights + self.core_attention_flops(tokens, sequence)
        if kind == "M":
            # as Megatron-LM counts a hybrid: seven for each number of a state, read and written
            assert self.mamba is not None
            weights = sum(linear.weights for linear in self.mamba_linears())
            return 2 * tokens * weights + 7 * tokens * self.mamba.inner * self.mamba.state
        if kind == "E" and found:
            expert = sum(linear.weights for linear in self.expert_linears())
            dense = (*self.mlp_linears(found.shared_ffn), *self.latent_linears())
            weights = self.hidden * found.count + found.top_k * expert + sum(linear.weights for linear in dense)
            return 2 * tokens * weights
        return 2 * tokens * sum(linear.weights for linear in self.mlp_linears(self.ffn))

    def layers_forward_flops(self, tokens: int, sequence: int) -> int:
        """FLOPs forward of all layers, without the output projection."""
        sparse = self.sparse_layers
        if self.pattern:
            counts = {**self.kinds, "E": sparse}
            return sum(count * self._block_flops(kind, tokens, sequence) for kind, count in counts.items())
        return (self.layers - sparse) * self.layer_forward_flops(tokens, sequence) + sparse * (
            self.layer_forward_flops(tokens, sequence, sparse=True)
        )

    def forward_flops(self, tokens: int, sequence: int) -> int:
        """Forward FLOPs of the whole model, the output projection included."""
        head = 2 * tokens * self.hidden * self.vocab
        layer = self.layer_forward_flops(tokens, sequence, sparse=self.experts is not None)
        predictor = layer + 2 * tokens * self.join_linear().weights + head
        return self.layers_forward_flops(tokens, sequence) + head + self.predictors * predictor

    def step_flops(
        self,
        tokens: int,
        sequence: int,
        *,
        recompute: Literal["none", "selective", "operations", "full"],
        ends_early: bool = False,
        frozen: bool = False,
    ) -> tuple[int, int]:
        """(model FLOPs, hardware FLOPs) of a step: backward is twice forward, recomputation repeats forwards.

        With `ends_early` dense layers are repeated up to their last product; `frozen` weights have no gradients.
        """
        last = 2 * tokens * self.layers * self.mlp_linears(self.ffn)[-1].weights if ends_early else 0
        forward = self.forward_flops(tokens, sequence)
        core = self.layers * self.core_attention_flops(tokens, sequence)
        model = 2 * forward + core if frozen else 3 * forward
        again = {
            "none": 0,
            "selective": self.kinds.get("*", 0 if self.pattern else self.layers)
            * self.core_attention_flops(tokens, sequence),
            "operations": self.layers * 2 * tokens * sum(linear.weights for linear in self.second_products()),
            "full": self.layers_forward_flops(tokens, sequence) - last,
        }
        return model, model + again[recompute]
