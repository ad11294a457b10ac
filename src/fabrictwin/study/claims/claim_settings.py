"""The small clusters and jobs that claims are tested on."""

from __future__ import annotations

from typing import Any

from fabrictwin.cluster.build_blueprint import build
from fabrictwin.cluster.spec.spec import Spec, read_spec
from fabrictwin.twin.routed_twin import make_twin
from fabrictwin.twin.twin import Twin

# as Llama 2 7B's public configuration has it
SEVEN_B = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 32,
    "vocab_size": 32000,
    "max_position_embeddings": 4096,
}
NETWORKS = {
    "infiniband": {"technology": "infiniband", "switch": "qm9700", "link_rate": "400 Gb/s"},
    "ethernet": {"technology": "ethernet", "switch": "spectrum-4", "link_rate": "400 Gb/s"},
    "hdr": {"technology": "infiniband", "switch": "qm8700"},
}


def spec(
    hosts: int = 2,
    *,
    host: str = "dgx-h100",
    network: str = "infiniband",
    topology: dict[str, Any] | None = None,
    training: dict[str, Any] | None = None,
    **more: Any,
) -> Spec:
    """A cluster of one kind of host, and a training step of a 7-billion-parameter model where one is asked for.

    Kernels of the step are as fast as by themselves: what is compared is the network.
    """
    data: dict[str, Any] = {
        "schema": 1,
        "name": "claim",
        "cluster": {
            "hosts": {"type": host, "count": hosts},
            "network": {**NETWORKS[network], "topology": topology or {"kind": "single-switch"}},
        },
        **more,
    }
    if training is not None:
        data["workload"] = {"training": {"model": SEVEN_B, "sequence": 4096, "compute_share": 1.0, **training}}
    return read_spec(data)


def twin(of: Spec) -> Twin:
    return make_twin(of, build(of.cluster, spec=of))
