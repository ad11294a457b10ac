"""Specs of small servers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

MODELS = Path(__file__).parents[2] / "examples/models"


def server_spec(folder: Path, serving: dict[str, Any] | None = None, *, hosts: int = 1, **benchmark: Any) -> Path:
    """Write the spec of a server of Llama 3 8B on hosts of H100, under 30 short requests, and return its path."""
    section = {"model": str(MODELS / "llama-3-8b.json"), "release": "0.19", **(serving or {})}
    asked = {"num_prompts": 30, "request_rate": 20, "random_input_len": 400, "random_output_len": 30}
    section["benchmark"] = {**asked, **benchmark}
    cluster = {
        "hosts": {"type": "dgx-h100", "count": hosts},
        "network": {"technology": "infiniband", "topology": {"kind": "rail-optimised"}, "switch": "qm9700"},
    }
    path = folder / "server.yaml"
    path.write_text(json.dumps({"schema": 1, "name": "s", "cluster": cluster, "workload": {"serving": section}}))
    return path
