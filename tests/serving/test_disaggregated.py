"""Prefill and decode apart: what is moved, over what, and when blocks are free again."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from fabrictwin.base.arrays import F64
from fabrictwin.base.errors import ConfigError
from fabrictwin.cluster.build_blueprint import build
from fabrictwin.cluster.spec.spec import Spec, load_spec
from fabrictwin.serving.config.pools import disaggregated, pools_bytes
from fabrictwin.serving.config.server import serving_section
from fabrictwin.serving.network.kv_transfer import Descriptors, KvLayout, KvNetwork, rank_pairs, runs
from fabrictwin.serving.network.link_load import LinkLoad, Neighbourhood
from fabrictwin.serving.predict import Prediction, predict
from fabrictwin.twin.routed_twin import make_twin
from fabrictwin.twin.twin import Twin

EXAMPLES = Path(__file__).parents[2] / "examples"


def spec(pools: dict[str, Any] | None, prompt: int = 2000, rate: Any = 4, **serving: Any) -> Spec:
    cluster = {
        "hosts": {"type": "dgx-h100", "count": 2},
        "network": {"technology": "infiniband", "topology": {"kind": "rail-optimised"}, "switch": "qm9700"},
    }
    section = {
        "model": str(EXAMPLES / "models/llama-3-8b.json"),
        "release": "0.19",
        "max_model_len": 8192,
        **serving,
    }
    section["benchmark"] = {
        "num_prompts": 30,
        "request_rate": rate,
        "random_input_len": prompt,
        "random_output_len": 40,
    }
    if pools is not None:
        section["disaggregated"] = pools
    data = {"schema": 1, "name": "s", "cluster": cluster, "workload": {"serving": section}}
    return load_spec("-", io.StringIO(json.dumps(data)))


def sides(prefill: int = 8, decode: int = 8, **rest: Any) -> dict[str, Any]:
    return {"prefill": {"tensor_parallel_size": prefill}, "decode": {"tensor_parallel_size": decode}, **rest}


def computed(found: Prediction, engine: int) -> int:
    return int(found.replicas[engine].steps[:, 2].sum())


@pytest.mark.second
def test_prompts_are_computed_once_and_decodes_elsewhere() -> None:
    found = predict(spec(sides()))
    assert found.fields["completed"] == 30
    assert computed(found, 0) == 30 * 2000
    assert computed(found, 1) == 30 * 40  # the prompt's last token and all outputs but the last
    blocks = [one.scheduler.cache.pool.free_blocks for one in found.replicas]
    assert all(
        free == one.scheduler.cache.layout.blocks - 1 for free, one in zip(blocks, found.replicas, strict=True)
    )
    assert json.dumps(found.fields) == json.dumps(predict(spec(sides())).fields)


def test_decodes_are_not_held_up_by_prompts() -> None:
    """Gaps of those who decode beside long prompts have a tail, of those who decode alone none."""
    large = str(EXAMPLES / "models/llama-3-70b.json")
    apart = predict(spec(sides(), 6000, model=large))
    beside = predict(spec(None, 6000, model=large, tensor_parallel_size=8, replicas=2))
    assert apart.fields["p99_itl_ms"] < 0.5 * beside.fields["p99_itl_ms"]
    short, together = predict(spec(sides(), 100)), predict(spec(None, 100, tensor_parallel_size=8, replicas=2))
    assert short.fields["mean_ttft_ms"] > 1.2 * together.fields["mean_ttft_ms"]  # two engines one after the other


@pytest.mark.second
def test_decoding_hides_if_kv_crosses_hosts() -> None:
    """Between requests that decode, a transfer is through before the next step; a request alone waits for it."""

    def fields(name: str, **benchmark: Any) -> dict[str, Any]:
        data = yaml.safe_load((EXAMPLES / f"apart/{name}.yaml").read_text(encoding="utf-8"))
        section = data["workload"]["serving"]
        section["model"] = str(EXAMPLES / "models/llama-3-70b.json")
        section["benchmark"] = benchmark or section["benchmark"]
        return predict(load_spec("-", io.StringIO(json.dumps(data)))).fields

    near, far = fields("one-host"), fields("two-hosts")
    assert far["mean_tpot_ms"] == pytest.approx(near["mean_tpot_ms"], rel=0.001)
    assert far["p99_itl_ms"] == pytest.approx(near["p99_itl_ms"], rel=0.001)
    assert far["output_throughput"] == pytest.approx(near["output_throughput"], rel=0.001)
    assert far["mean_ttft_ms"] == pytest.approx(near["mean_ttft_ms"], rel=0.01)
    alone = {"max_concurrency": 1, "num_prompts": 4, "random_input_len": 6000, "random_output_len": 20}
    near, far = fields("one-host", **alone), fields("two-hosts", **alone)
    wire_ms = 6000 * 80 * 2 * 2 * 128 * 2 / 49.7e9 * 1e3  # two of eight heads a rank, in 16 bits
    assert 0.8 * wire_ms < far["mean_ttft_ms"] - near["mean_ttft_ms"] < wire_ms  # NVLink takes a part of it too


def test_a_full_decoder_holds_up_transfers_and_prefill() -> None:
    free = predict(spec(sides(), rate=40))
    tight = predict(spec(sides(), rate=40, max_model_len=4096, num_gpu_blocks_override=300))
    assert tight.fields["completed"] == 30
    assert tight.fields["mean_ttft_ms"] > 2 * free.fields["mean_ttft_ms"]


def test_blocks_that_nobody_asks_for_are_given_up() -> None:
    """Prompts are computed where they decode then."""
    late = spec(sides(lease_s=0.001, proxy_us=5000))
    found = predict(late)
    assert found.fields["completed"] == 30
    assert computed(found, 1) == 30 * (2000 + 39)


@pytest.mark.parametrize(("prefill", "decode"), [(4, 8), (8, 4), (2, 2), (1, 8)])
@pytest.mark.parametrize("connector", ["nixl", "mooncake"])
def test_unequal_sides_move_every_byte_once(prefill: int, decode: int, connector: str) -> None:
    asked = spec(sides(prefill, decode, connector=connector))
    both = disaggregated(asked, serving_section(asked))
    layout = both.network.layout
    assert layout.regions == 64
    assert layout.pair_bytes * len(layout.pairs) == 16 * 8 * 128 * 2  # a block of all heads
    assert layout.whole == (prefill == decode)  # else parts of the larger side's blocks go, which nothing joins
    assert predict(asked).fields["completed"] == 30


def test_ranks_that_hold_the_same_heads_are_paired() -> None:
    assert rank_pairs(2, 4, 8) == ((0, 0), (0, 1), (1, 2), (1, 3))
    assert rank_pairs(4, 2, 8) == ((0, 0), (1, 0), (2, 1), (3, 1))
    assert rank_pairs(2, 4, 0) == ((0, 0), (0, 1), (1, 2), (1, 3))
    assert rank_pairs(8, 8, 2) == tuple((rank, rank) for rank in range(8))  # heads that are held several times


def test_runs_follow_each_other_on_both_sides() -> None:
    assert runs([], []) == 0
    assert runs([3, 4, 5], [7, 8, 9]) == 1
    assert runs([3, 4, 5], [7, 8, 20]) == 2
    assert runs([5, 4, 3], [7, 8, 9]) == 3


def made_twin() -> Twin:
    read = spec(None)
    return make_twin(read, build(read.cluster, spec=read))


def moved_ms(
    connector: Any,
    blocks: int,
    transfers: int = 1,
    block_bytes: int = 4096,
    first: int = 8,
    step: int = 1,
    **rest: Any,
) -> float:
    """Time until all transfers from eight GPUs, or one, to those from `first` on are through.

    `step`: of the blocks that they arrive in.
    """
    twin = made_twin()
    pairs = tuple((rank, rank) for rank in range(8 if first == 8 else 1))
    network = KvNetwork(twin, connector, KvLayout(72, block_bytes, pairs), **rest)
    nodes = twin.fabric.gpu_node
    for number in range(transfers):
        network.start(number, (nodes, nodes[first:]), (list(range(blocks)), list(range(0, step * blocks, step))))
    ends = []
    while network.busy:
        ends += network.advance(10**15)
    return max(time for time, _ in ends) / 1e9


def test_mooncake_cuts_what_lies_together_into_slices() -> None:
    """A tail of up to 16 KiB goes with the slice before it, as the engine does."""
    layout = KvLayout(72, 4096, ((0, 0),))
    whole = [Descriptors.mooncake(layout, blocks, 1) for blocks in (9, 17, 20, 21, 257)]
    assert [one.piece for one in whole] == [9 * 4096, 17 * 4096, 20 * 4096, 65536, 65536]
    assert whole[1].prepare_ps == whole[0].prepare_ps == round((12 + 72 * 1.565) * 1e6)
    assert whole[4].prepare_ps == round((12 + 72 * (1.4 + 16 * 0.165)) * 1e6)
    assert Descriptors.mooncake(layout, 9, 3).prepare_ps == round((12 + 216 * 1.565) * 1e6)
    assert Descriptors.mooncake(layout, 9, 3, wake_ps=7).prepare_ps == round((12 + 216 * 1.565) * 1e6) + 7
    assert Descriptors.nixl(layout, 9, 1) == Descriptors(9 * 72 * 4096, 9 * 4096)
    assert Descriptors.nixl(layout, 9, 9) == Descriptors(9 * 72 * 4096, 4096)


@pytest.mark.parametrize(("gap_ms", "woken"), [(0, 0), (30, 0), (99, 0), (100, 1), (5000, 1)])
def test_posting_threads_sleep_a_tenth_of_a_second_after_they_woke(gap_ms: int, woken: int) -> None:
    """The next transfer of the same engine wakes them then; of another it does at once."""

    def second_ms(first: int) -> float:
        twin = made_twin()
        network = KvNetwork(twin, "mooncake", KvLayout(72, 4096, ((0, 0),)), wake_ps=10**9)
        gpus, blocks = twin.fabric.gpu_node, list(range(9))
        network.start(0, (gpus[first : first + 1], gpus[8:9]), (blocks, blocks))
        while network.now_ps < gap_ms * 10**9:
            network.advance(gap_ms * 10**9)
        network.start(1, (gpus[:1], gpus[9:10]), (blocks, blocks))
        begun, ends = network.now_ps, []
        while network.busy:
            ends += network.advance(10**15)
        return (dict(map(reversed, ends))[1] - begun) / 1e9

    assert second_ms(0) == pytest.approx(0.18 + woken, abs=0.02)
    assert second_ms(1) == pytest.approx(1.18, abs=0.02)


def test_mooncake_goes_through_adapters_inside_a_host() -> None:
    """Its transfers take the same on one host as between two; NIXL copies over NVLink."""
    near, far = (moved_ms("mooncake", 256, first=first) for first in (1, 8))
    assert near == pytest.approx(far, rel=0.01)
    assert moved_ms("nixl", 256, first=1) < moved_ms("nixl", 256, first=8) / 5


@pytest.mark.parametrize(("connector", "through"), [("nixl", 0), ("mooncake", 4)])
def test_ports_of_one_host_carry_what_goes_through_adapters(connector: str, through: int) -> None:
    asked = spec(sides(4, 4, connector=connector))
    pools = disaggregated(asked, serving_section(asked))
    pools.network.moved_bytes = 8e9
    fabric = made_twin().fabric
    sent = pools_bytes(asked, pools)[fabric.nic_port]
    assert sent.tolist() == [2e9] * through + [0.0] * (16 - through)


@pytest.mark.second
def test_transfers_get_what_neighbours_leave_of_links() -> None:
    """Ports that others fill give half; others that send half of the time leave the rest of it."""
    read = spec(None)
    fabric = make_twin(read, build(read.cluster, spec=read)).fabric
    full, nothing = fabric.port_payload_bps.astype(float), np.zeros(fabric.ports)

    def beside(period_ms: float, *slices: F64) -> float:
        load = LinkLoad(round(period_ms * 1e9), np.array(slices))
        return moved_ms("nixl", 128, block_bytes=65536, neighbours=Neighbourhood((load,)))

    alone = moved_ms("nixl", 128, block_bytes=65536)
    assert beside(1.0, full) == pytest.approx(2 * alone, rel=0.01)
    assert beside(1.0, full / 4) == pytest.approx(alone / 0.75, rel=0.01)
    assert beside(1.0, nothing) == alone
    assert beside(0.1, full, nothing) == pytest.approx(alone / 0.75, rel=0.02)
    assert beside(2 * alone, nothing, full) == pytest.approx(alone, rel=0.01)  # over before others begin


def test_a_transfer_takes_what_its_descriptors_or_links_take() -> None:
    """36 layers of keys and values in blocks of 4 KiB over eight adapters of 400 Gb/s."""
    size, slices = 256 * 72 * 4096, 16
    before = (80 + 72 * (1.4 + 0.165 * slices)) / 1e3  # all slices are made before the first is posted
    assert moved_ms("mooncake", 256) == pytest.approx(before + size / 49.7e9 * 1e3, rel=0.02)
    assert moved_ms("mooncake", 256, 3) == pytest.approx(before + 3 * size / 49.7e9 * 1e3, rel=0.02)
    assert moved_ms("mooncake", 256, wake_ps=10**9) == pytest.approx(
        1 - 0.068 + moved_ms("mooncake", 256), rel=0.001
    )
    assert moved_ms("nixl", 256) == pytest.approx(size / 49.7e9 * 1e3, rel=0.02)
    apart = moved_ms("nixl", 256, step=2)  # nothing follows on: what a queue pair posts
    assert apart == pytest.approx(256 * 72 / 2.64e6 * 1e3, rel=0.03)
    assert moved_ms("nixl", 1, host_ps=10**9) == pytest.approx(1 + moved_ms("nixl", 1), rel=0.01)


@pytest.mark.parametrize(
    ("pools", "serving", "error"),
    [
        (
            sides(8, 8) | {"decode": {"replicas": 2, "tensor_parallel_size": 8}},
            {},
            "pools of 24 GPUs, and .* has 16",
        ),
        (
            sides(separate_hosts=True) | {"decode": {"replicas": 2, "tensor_parallel_size": 8}},
            {},
            "24 GPUs, the second at a host of its own, and .* has 16",
        ),
        (sides(), {"replicas": 2}, "pools, which have replicas of their own"),
        (sides(), {"pipeline_parallel_size": 2}, "a pipeline, data parallelism or drafts"),
        (sides(3), {}, "expected a divisor of the model's 32"),
        ({"connector": "smoke"}, {}, "connector"),
    ],
)
def test_what_is_refused(pools: dict[str, Any], serving: dict[str, Any], error: str) -> None:
    with pytest.raises(ConfigError, match=error):
        predict(spec(pools, **serving))
