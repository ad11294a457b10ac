"""Dense transformers from a Hugging Face `config.json`: sizes, parameters, FLOPs.

Two dialects of keys are read: Llama's (`hidden_size`, ...) and GPT-2's (`n_embd`, ...). Counted is what the
published implementations hold: Llama has RMS norms, rotary positions, grouped-query attention and a gated MLP,
without biases; GPT-2 has layer norms, learned positions, biases, a plain MLP of 4 h and tied embeddings.

FLOPs count a multiply and an add as two, matrix products only, and attention in full (not halved for the causal
mask), as Narayanan et al., "Efficient Large-Scale Language Model Training on GPU Clusters Using Megatron-LM",
2021, section 5.1 and its appendix do.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from fabrictwin.errors import ConfigError

_LARGEST = 10**9


@dataclass(frozen=True)
class Model:
    """A decoder-only dense transformer."""

    name: str
    family: Literal["llama", "gpt2"]
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

    @property
    def gated(self) -> bool:
        """Whether the MLP has a gate beside its up projection."""
        return self.family == "llama"

    @property
    def qkv_width(self) -> int:
        return (self.heads + 2 * self.kv_heads) * self.head_size

    @property
    def up_width(self) -> int:
        """Columns of the MLP's first product: up, and gate where there is one."""
        return 2 * self.ffn if self.gated else self.ffn

    @property
    def layer_matrix_parameters(self) -> int:
        """Weights of one layer's matrix products."""
        attention = self.hidden * self.qkv_width + self.heads * self.head_size * self.hidden
        return attention + self.hidden * self.up_width + self.ffn * self.hidden

    @property
    def layer_parameters(self) -> int:
        """All of one layer: matrices, biases, norms."""
        if self.family == "llama":
            return self.layer_matrix_parameters + 2 * self.hidden
        biases = self.qkv_width + self.hidden + self.up_width + self.hidden
        return self.layer_matrix_parameters + biases + 4 * self.hidden

    @property
    def final_norm_parameters(self) -> int:
        return self.hidden if self.family == "llama" else 2 * self.hidden

    @property
    def parameters(self) -> int:
        """All weights; a tied output projection counts once."""
        embeddings = (self.vocab + self.positions) * self.hidden
        output = 0 if self.tied else self.vocab * self.hidden
        return self.layers * self.layer_parameters + embeddings + output + self.final_norm_parameters

    def layer_forward_flops(self, tokens: int, sequence: int) -> int:
        """Forward FLOPs of one layer over `tokens` tokens in sequences of `sequence`."""
        attention = 4 * tokens * sequence * self.heads * self.head_size
        return 2 * tokens * self.layer_matrix_parameters + attention

    def forward_flops(self, tokens: int, sequence: int) -> int:
        """Forward FLOPs of the whole model, the output projection included."""
        logits = 2 * tokens * self.hidden * self.vocab
        return self.layers * self.layer_forward_flops(tokens, sequence) + logits

    def step_flops(self, tokens: int, sequence: int, *, recompute_layers: bool) -> tuple[int, int]:
        """(model FLOPs, hardware FLOPs) of a step: backward is twice forward, recomputation repeats layers."""
        model = 3 * self.forward_flops(tokens, sequence)
        again = self.layers * self.layer_forward_flops(tokens, sequence) if recompute_layers else 0
        return model, model + again


def _positive(data: Mapping[str, Any], key: str, where: str | None) -> int:
    value = data[key]
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= _LARGEST:
        raise ConfigError(f"got {value!r}, expected a whole number from 1 upwards", file=where, key=key)
    return value


def _one_of(data: Mapping[str, Any], key: str, known: tuple[str, ...], where: str | None) -> None:
    """What another value would mean is not counted here, so it is an error; an absent key means the first."""
    value = data.get(key, known[0])
    if value not in known:
        raise ConfigError(f"got {value!r}, expected {' or '.join(known)}", file=where, key=key)


def _flag(data: Mapping[str, Any], key: str, default: bool, where: str | None) -> bool:
    value = data.get(key, default)
    if not isinstance(value, bool):
        raise ConfigError(f"got {value!r}, expected true or false", file=where, key=key)
    return value


_LLAMA = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "vocab_size")
_GPT2 = ("n_embd", "n_layer", "n_head", "n_positions", "vocab_size")


def read_model(data: object, *, name: str, where: str | None = None) -> Model:
    """A model from the content of a `config.json`. Raises ConfigError naming the keys it lacks."""
    if not isinstance(data, Mapping):
        raise ConfigError(f"got {type(data).__name__}, expected the keys of a model's config.json", file=where)
    lacks = {
        family: [key for key in keys if key not in data] for family, keys in (("llama", _LLAMA), ("gpt2", _GPT2))
    }
    if not lacks["llama"]:
        heads = _positive(data, "num_attention_heads", where)
        hidden = _positive(data, "hidden_size", where)
        own_head = data.get("head_dim") is not None
        if not own_head and hidden % heads:
            raise ConfigError(
                f"got hidden_size {hidden} and num_attention_heads {heads}, expected one that divides the other",
                file=where,
                key="num_attention_heads",
            )
        kv_heads = _positive(data, "num_key_value_heads", where) if data.get("num_key_value_heads") else heads
        if heads % kv_heads:
            raise ConfigError(
                f"got {kv_heads} key-value heads, expected a divisor of the {heads} attention heads",
                file=where,
                key="num_key_value_heads",
            )
        for key in ("num_local_experts", "n_routed_experts", "num_experts"):
            if data.get(key):
                raise ConfigError(f"got {data[key]!r} experts, expected a dense model", file=where, key=key)
        for key in ("attention_bias", "mlp_bias", "sliding_window"):
            if data.get(key):
                raise ConfigError(
                    f"got {data[key]!r}, expected a model without it: it is not counted", file=where, key=key
                )
        _one_of(data, "model_type", ("llama", "mistral"), where)
        _one_of(data, "hidden_act", ("silu",), where)
        return Model(
            name=name,
            family="llama",
            hidden=hidden,
            layers=_positive(data, "num_hidden_layers", where),
            heads=heads,
            kv_heads=kv_heads,
            head_size=_positive(data, "head_dim", where) if own_head else hidden // heads,
            ffn=_positive(data, "intermediate_size", where),
            vocab=_positive(data, "vocab_size", where),
            positions=0,
            tied=_flag(data, "tie_word_embeddings", False, where),
        )
    if not lacks["gpt2"]:
        hidden, heads = _positive(data, "n_embd", where), _positive(data, "n_head", where)
        _one_of(data, "model_type", ("gpt2",), where)
        _one_of(data, "activation_function", ("gelu", "gelu_new"), where)
        if hidden % heads:
            raise ConfigError(
                f"got n_embd {hidden} and n_head {heads}, expected one that divides the other",
                file=where,
                key="n_head",
            )
        return Model(
            name=name,
            family="gpt2",
            hidden=hidden,
            layers=_positive(data, "n_layer", where),
            heads=heads,
            kv_heads=heads,
            head_size=hidden // heads,
            ffn=_positive(data, "n_inner", where) if data.get("n_inner") else 4 * hidden,
            vocab=_positive(data, "vocab_size", where),
            positions=_positive(data, "n_positions", where),
            tied=_flag(data, "tie_word_embeddings", True, where),
            dropout=any(data.get(key, 0.1) for key in ("attn_pdrop", "resid_pdrop")),
        )
    nearest, other = sorted(lacks, key=lambda family: len(lacks[family]))
    dialect = {"llama": "Llama", "gpt2": "GPT-2"}
    raise ConfigError(
        f"expected a model's config.json; as a {dialect[nearest]} model it lacks {', '.join(lacks[nearest])} "
        f"(as a {dialect[other]} model, {', '.join(lacks[other])})",
        file=where,
    )


def load_model(path: Path) -> Model:
    """A model from a `config.json`. Raises ConfigError."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"cannot be read: {error.strerror}", file=path) from None
    except UnicodeDecodeError:
        raise ConfigError("got bytes that are not UTF-8 text, expected a model's config.json", file=path) from None
    try:
        data = json.loads(text)
    except json.JSONDecodeError as error:
        raise ConfigError(f"expected JSON: {error.msg}", file=path, line=error.lineno) from None
    except RecursionError:
        raise ConfigError("expected a model's config.json, got JSON nested too deep", file=path) from None
    name = data.get("_name") if isinstance(data, dict) and isinstance(data.get("_name"), str) else None
    return read_model(
        data, name=name or (path.parent.name if path.name == "config.json" else path.stem), where=str(path)
    )
