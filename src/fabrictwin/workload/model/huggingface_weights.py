"""How a published model's weights are stored: `quantization_config` of its `config.json`.

Layers that are left in 16 bits beside the rest are told apart as far as servers notice: attention and dense layers
as one, a mixture's routed experts as the other (gpt-oss: experts alone in MXFP4; Kimi K2.5: in int4).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fabrictwin.workload.model.model_blocks import Weights

WIDE = "none"
INTEGER_METHODS = ("awq", "gptq", "auto-round", "awq_marlin", "gptq_marlin")


def published_weights(data: Mapping[str, Any]) -> Weights:
    """Return how a model's weights are stored; a name that no server knows where this is not known."""
    found = data.get("quantization_config")
    if not isinstance(found, Mapping):
        return Weights()
    stored = _stored(found)
    if stored == "mxfp4":
        return Weights(WIDE, stored)
    left = [found.get(key) for key in ("ignore", "modules_to_not_convert", "exclude_modules")]
    names = " ".join(str(name) for one in left if isinstance(one, list) for name in one)
    return Weights(WIDE if "attn" in names and stored != "fp8" else stored, stored)


def _stored(found: Mapping[str, Any]) -> str:
    method = str(found.get("quant_method", ""))
    if method in ("fp8", "fbgemm_fp8", "mxfp4"):
        return "mxfp4" if method == "mxfp4" else "fp8"
    if method in INTEGER_METHODS:
        return "int4" if found.get("bits", found.get("w_bit")) == 4 else f"{method} of {found.get('bits')} bits"
    if method.startswith("modelopt"):
        algorithm = str((_mapping(found.get("quantization")) or found).get("quant_algo", method)).upper()
        return "fp4" if "FP4" in algorithm else "fp8" if "FP8" in algorithm else algorithm.lower()
    if method == "compressed-tensors":
        groups = _mapping(found.get("config_groups"))
        weights = _mapping(_mapping(next(iter(groups.values()), None)).get("weights"))
        kind = f"{weights.get('type')} of {weights.get('num_bits')} bits"
        return {"float of 8 bits": "fp8", "float of 4 bits": "fp4", "int of 4 bits": "int4"}.get(kind, kind)
    return method or "quantization_config"


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
