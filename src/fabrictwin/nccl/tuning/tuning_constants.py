"""The constants and rules of NCCL's cost model, by release (`data/tuning.yaml`)."""

from __future__ import annotations

from functools import cache
from typing import Any

from fabrictwin.base.nested import laid_over
from fabrictwin.base.records import record
from fabrictwin.nccl.settings.version import Version, version_of

Row = tuple[float, float, float]
ByAlgorithm = dict[str, Row]  # [LL, LL128, Simple] µs
ByGeneration = dict[str, Row]  # [1 host, 2 hosts, more] GB/s


@record
class Rules:
    """Rules by which releases differ in more than a number; the values are explained in the file."""

    ring_ll: str
    ring_ll128_alone: float
    inter_steps: str
    inter_latency_alone: str
    nvls_bandwidth: str
    nvls_ratio: str
    nvls_latency: str
    gather_ratio: str
    collnet_arity: float
    collnet_gather: str
    mixed_cpu_counts_as_amd: bool
    ll128_capabilities: tuple[int, ...]
    ll128_c2c: bool
    ll128_mixed_from: int
    ring_fallback: str
    collnet_ignored: bool
    below_64_bytes: str
    nvls_tree_correction: bool
    nvls_single_host_gather: bool
    nvls_arity: int
    collnet_direct_local: int
    collnet_chain_local: int
    nvls_channels_capped: bool
    nvls_least_channels: int
    traffic_channel: int
    full_trees: bool
    fp8_ring_avoided: bool
    pat_share: float


@record
class Constants:
    """One release's cost model."""

    base_latency: ByAlgorithm
    hop_latency: dict[str, ByAlgorithm]  # by link: nvlink, pci, net
    ll_max: ByGeneration
    channel_ring_ll128: ByGeneration
    channel_tree_ll128: ByGeneration
    channel_tree: ByGeneration
    channel_nvls_tree: ByGeneration
    nvls_efficiency: dict[str, float]
    tree_correction: dict[str, tuple[float, ...]]
    net_overhead: dict[str, float]
    net_overhead_simple: int
    ring_plateau: dict[str, float]
    max_threads: dict[str, int]
    slow_ring_below: float
    thread_threshold: dict[str, int]
    algorithms: dict[str, tuple[str, ...]]
    rules: Rules


@cache
def constants(release: Version) -> Constants:
    """The constants of a release: every change up to it."""
    merged: dict[str, Any] = {}
    for entry in _releases():
        if version_of(entry["since"]) <= release:
            merged = laid_over(merged, {name: value for name, value in entry.items() if name != "since"})
    rules = Rules(**merged.pop("rules"))
    return Constants(**merged, rules=rules)


@cache
def _releases() -> tuple[dict[str, Any], ...]:
    from fabrictwin.base.yamlfile import read_bundled

    return tuple(_frozen(entry) for entry in read_bundled("fabrictwin.nccl", "tuning.yaml"))


def _frozen(value: Any) -> Any:
    """Lists as tuples, all the way down."""
    if isinstance(value, dict):
        return {name: _frozen(inner) for name, inner in value.items()}
    return tuple(_frozen(inner) for inner in value) if isinstance(value, list) else value
