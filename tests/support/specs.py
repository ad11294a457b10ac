"""Specs of training jobs that tests share, and the models that they train."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from fabrictwin.cluster.spec.spec import Spec, load_spec, read_spec

TINY = {
    "hidden_size": 1024,
    "intermediate_size": 4096,
    "num_hidden_layers": 8,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "vocab_size": 32000,
}
MIXTRAL = {**TINY, "model_type": "mixtral", "num_local_experts": 8, "num_experts_per_tok": 2}
DEEPSEEK = {
    **TINY,
    "model_type": "deepseek_v3",
    "kv_lora_rank": 128,
    "q_lora_rank": 256,
    "qk_nope_head_dim": 64,
    "qk_rope_head_dim": 32,
    "v_head_dim": 64,
    "n_routed_experts": 16,
    "num_experts_per_tok": 4,
    "moe_intermediate_size": 512,
    "n_shared_experts": 1,
    "first_k_dense_replace": 2,
}
SMALL = {
    "hidden_size": 512,
    "intermediate_size": 1024,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "vocab_size": 1024,
}
LLAMA_8B = {
    "_name": "dense",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
}

SWITCHES = {"dgx-a100": "qm8700", "pcie-box": "qm8700"}  # by type of host; all others have NDR adapters


def spec_of(
    hosts: int, kind: str, *, fidelity: str = "analytic", topology: str = "rail-optimised", **job: Any
) -> Callable[..., Spec]:
    """A function that reads specs of `job`, the keys of its training section, on InfiniBand hosts of one kind.

    What it is given changes that job: `run` and `sections` are keys of the run section and whole sections.
    """
    usual_hosts, usual_kind = hosts, kind

    def spec(
        hosts: int = usual_hosts,
        kind: str = usual_kind,
        *,
        faults: Sequence[dict[str, Any]] = (),
        run: dict[str, Any] | None = None,
        sections: dict[str, Any] | None = None,
        **training: Any,
    ) -> Spec:
        network = {
            "technology": "infiniband",
            "switch": SWITCHES.get(kind, "qm9700"),
            "topology": {"kind": topology},
        }
        options = {key: training.pop(key) for key in ("fidelity", "fold") if key in training}
        return read_spec(
            {
                "schema": 1,
                "name": "test",
                "cluster": {"hosts": {"type": kind, "count": hosts}, "network": network},
                "workload": {"training": {**job, **training}},
                "faults": list(faults),
                "run": {"fidelity": fidelity, **options, **(run or {})},
                **(sections or {}),
            }
        )

    return spec


# eight A100 a host, two tensor-parallel ranks and two stages
tiny_job = spec_of(
    2,
    "dgx-a100",
    fidelity="flow",
    model=TINY,
    parallel={"tp": 2, "pp": 2},
    micro_batches=4,
    sequence=2048,
)


# a job in text, with a place for more sections
SMALL_JOB = """schema: 1
name: small
cluster:
  hosts: {{type: dgx-h100, count: 4}}
  network: {{technology: infiniband, switch: qm9700, topology: {{kind: rail-optimised}}}}
workload:
  training:
    model: {{architectures: [LlamaForCausalLM], hidden_size: 1024, intermediate_size: 2816, num_hidden_layers: 4,
      num_attention_heads: 8, num_key_value_heads: 8, vocab_size: 32000, max_position_embeddings: 2048}}
    parallel: {{tp: 4, pp: 2}}
    micro_batches: 4
    sequence: 1024
{more}"""


TWO_BOXES = """schema: 1
name: two boxes
cluster:
  hosts: {type: dgx-a100, count: 2}
  network: {technology: infiniband, switch: qm8700, topology: {kind: single-switch}}
"""

SINGLE_SWITCH = """\
    technology: infiniband
    switch: qm8700
    topology: {kind: single-switch}"""


def boxes_job(more: str, *, count: int = 4, network: str = SINGLE_SWITCH, pp: int = 2, batches: int = 4) -> str:
    """The text of a job of `pp` stages on plain hosts, its model beside it as tiny.json; `more` is its end."""
    return f"""schema: 1
name: small
cluster:
  hosts: {{type: pcie-box, count: {count}}}
  network:
{network}
workload:
  training:
    model: tiny.json
    parallel: {{tp: 1, pp: {pp}}}
    micro_batches: {batches}
    sequence: 512
{more}"""


def boxes_cluster(count: int, *, tiers: int, radix: int) -> str:
    """The text of a cluster of plain hosts on a fat-tree."""
    return f"""hosts: {{type: pcie-box, count: {count}}}
network:
  technology: infiniband
  switch: qm8700
  topology: {{kind: fat-tree, tiers: {tiers}, radix: {radix}}}
"""


def small_job(folder: Path, more: str = "") -> Spec:
    """The small job with `more` sections, written to `folder` and read."""
    return load_spec(write_spec(folder, SMALL_JOB.format(more=more)))


def write_spec(folder: Path, text: str, model: dict[str, Any] | None = None) -> Path:
    """The path of a spec in `folder`; `model` is written beside it as tiny.json."""
    path = folder / "spec.yaml"
    path.write_text(text)
    if model is not None:
        (folder / "tiny.json").write_text(json.dumps(model))
    return path
