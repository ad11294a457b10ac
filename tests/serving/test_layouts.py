"""Servers over nodes: which groups talk over which routes, and what a slower network costs them."""

from __future__ import annotations

import csv
import io
import json
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.clusters import blueprint

from fabrictwin.cluster.build_blueprint import build
from fabrictwin.cluster.spec.spec import load_spec
from fabrictwin.nccl.settings.settings import read_settings
from fabrictwin.serving.config.layout import machine, put_time_us
from fabrictwin.serving.config.server import server, serving_section
from fabrictwin.serving.network.exchange import between_hosts, exchange, to_fellows
from fabrictwin.serving.network.nccl_times import NcclTimes, SendTimes
from fabrictwin.serving.network.placement import place
from fabrictwin.serving.predict import Prediction, predict
from fabrictwin.serving.step.deepep import DeepEp, Tokens
from fabrictwin.serving.step.kernels import padded_widths
from fabrictwin.serving.step.shape import StepShape
from fabrictwin.twin.routed_twin import make_twin
from fabrictwin.twin.twin import Twin
from fabrictwin.workload.model.model_blocks import Weights

EXAMPLES = Path(__file__).parents[2] / "examples"
EXPERTS = {"enable_expert_parallel": True}
WITHOUT_RDMA = {"NCCL_IB_DISABLE": 1}
MIXTRAL = str(EXAMPLES / "models/mixtral-8x7b.json")


def spec_text(serving: dict[str, Any], *, hosts: int = 2, **rest: Any) -> str:
    cluster = {
        "hosts": {"type": "dgx-h100", "count": hosts},
        "network": {"technology": "infiniband", "topology": {"kind": "rail-optimised"}, "switch": "qm9700"},
    }
    section = {"model": str(EXAMPLES / "models/llama-3-70b.json"), "release": "0.19", "max_model_len": 4096}
    benchmark = {"num_prompts": 30, "request_rate": 6, "random_input_len": 600, "random_output_len": 40}
    section |= {"benchmark": benchmark, **serving}
    return json.dumps({"schema": 1, "name": "s", "cluster": cluster, "workload": {"serving": section}, **rest})


def predicted(folder: Path, *, hosts: int = 2, nccl: dict[str, Any] | None = None, **serving: Any) -> Prediction:
    path = folder / "server.yaml"
    path.write_text(spec_text(serving, hosts=hosts, **({"nccl": nccl} if nccl else {})))
    return predict(load_spec(path))


@cache
def twin(hosts: int = 2) -> Twin:
    spec = load_spec("-", io.StringIO(spec_text({}, hosts=hosts)))
    return make_twin(spec, build(spec.cluster, spec=spec))


@pytest.mark.second
def test_tensor_parallelism_over_nodes_needs_rdma_and_a_pipeline_hardly(tmp_path: Path) -> None:
    """TP 16 waits for 161 all-reduces between the nodes a step, TP 8 × PP 2 for one send."""

    def tpot(tp: int, pp: int, nccl: dict[str, Any] | None = None) -> float:
        sizes = {"tensor_parallel_size": tp, "pipeline_parallel_size": pp}
        # a pipeline of this release does not schedule ahead: compared with servers that do not either
        found = predicted(tmp_path, nccl=nccl, async_scheduling=False, **sizes)
        return float(found.fields["median_tpot_ms"])

    wide, deep = tpot(16, 1), tpot(8, 2)
    assert wide > deep
    lost_wide, lost_deep = tpot(16, 1, WITHOUT_RDMA) / wide - 1, tpot(8, 2, WITHOUT_RDMA) / deep - 1
    assert lost_wide > 0.25
    assert abs(lost_deep) < 0.02


@pytest.mark.parametrize(
    ("host", "size", "carried", "way"),
    [
        ("gb200-nvl4", 4, 6 * 40.1, "custom"),
        ("h100-pcie-8", 2, 12 * 20.6, "custom"),
        ("h100-pcie-8", 4, 0, "nccl"),
    ],
)
def test_gpus_joined_without_a_switch(host: str, size: int, carried: float, way: str) -> None:
    """A pair's links count; where a pair has none, vLLM takes the GPUs for PCIe alone."""
    data = json.loads(spec_text({"tensor_parallel_size": size, "quantization": "fp8"}, hosts=1))
    data["cluster"]["hosts"]["type"] = host
    data["cluster"]["network"]["topology"] = {"kind": "single-switch"}
    spec = load_spec("-", io.StringIO(json.dumps(data)))
    section = serving_section(spec)
    group = server(spec, section).served.group
    assert group.pair_gbps == pytest.approx(carried)
    assert (group.way(64 << 10), group.way(16 << 20)) == (way, "nccl")
    assert group.time_us(16 << 20) > 50


@pytest.mark.parametrize(("size", "measured_us"), [(2, (114, 409, 1444, 5487)), (4, (86, 229, 861, 3205))])
def test_nccl_on_a_gb200_nvl4_is_as_long_as_measured(size: int, measured_us: tuple[int, ...]) -> None:
    """16 MiB to 1 GiB eagerly (aiconfigurator's database): two GPUs use a third of their links."""
    board = Twin(blueprint(1, "gb200-nvl4", switch="qm9700", topology={"kind": "single-switch"}))
    nccl = NcclTimes(board, board.fabric.gpu_node[:size], read_settings({}))
    took = [nccl.time_us("all_reduce", 16 << 20 << 2 * step) for step in range(4)]
    assert took == pytest.approx(measured_us, rel=0.15)


def test_ranks_count_through_tensors_then_stages_then_data() -> None:
    found = place(twin().fabric, (2, 2, 4))
    assert found.rank_node.shape == (2, 2, 4)
    assert found.hosts(found.rank_node.ravel()) == 2
    assert found.hosts(found.tensor_group()) == 1
    assert found.hosts(found.data_group()) == 2
    assert len(found.expert_group()) == 8
    source, target = found.boundary(0)
    assert set(source.tolist()) | set(target.tolist()) == set(found.rank_node[0].ravel().tolist())


def test_an_exchange_ends_with_its_fullest_link() -> None:
    """Eight GPUs to eight: each adapter carries eight messages, or one to each fellow."""
    nodes = twin().fabric.gpu_node
    every, fellows = (exchange(twin(), *pairs(twin(), nodes)) for pairs in (between_hosts, to_fellows))
    assert every.us_per_byte == pytest.approx(8 * fellows.us_per_byte)
    assert 48 < fellows.rate_gb_per_s < 50
    assert 1 < fellows.latency_us <= every.latency_us < 5
    alone = exchange(twin(), nodes[:1], nodes[8:9])
    assert alone.rate_gb_per_s == pytest.approx(fellows.rate_gb_per_s)  # rails do not meet
    twice = exchange(twin(), nodes[:1], nodes[8:9], np.array([2.0]))
    assert twice.us_per_byte == pytest.approx(2 * alone.us_per_byte)
    assert exchange(twin(), nodes[:0], nodes[:0]).time_us(1e9) == 0


def test_sends_of_a_stage_share_what_they_share() -> None:
    fabric = twin().fabric
    settings = read_settings({})
    apart = SendTimes(twin(), place(fabric, (1, 2, 8)).boundary(0), settings)
    near = SendTimes(twin(), (fabric.gpu_node[:4], fabric.gpu_node[4:8]), settings)
    one = SendTimes(twin(), (fabric.gpu_node[:1], fabric.gpu_node[8:9]), settings)
    assert near(1 << 24) < apart(1 << 24)
    assert apart(1 << 24) == pytest.approx(one(1 << 24), rel=0.05)  # a rail each
    assert apart(3 << 20) == pytest.approx((apart(2 << 20) + apart(4 << 20)) / 2)


def test_collectives_between_nodes_are_nccls() -> None:
    times = NcclTimes(twin(), twin().fabric.gpu_node, read_settings({}))
    sockets = NcclTimes(twin(), twin().fabric.gpu_node, read_settings({"NCCL_IB_DISABLE": "1"}))
    sizes = [1 << power for power in (10, 16, 20, 24)]
    assert [times.time_us("all_reduce", size) for size in sizes] == sorted(
        times.time_us("all_reduce", size) for size in sizes
    )
    assert all(sockets.time_us("all_reduce", size) > times.time_us("all_reduce", size) for size in sizes)


def low_latency(hosts: int, hidden: int = 7168, top_k: int = 8, experts: int = 256) -> DeepEp:
    nodes = twin(hosts).fabric.gpu_node
    way = exchange(twin(hosts), *between_hosts(twin(hosts), nodes))
    spec = load_spec("-", io.StringIO(spec_text({}, hosts=hosts)))
    put_us, inside = put_time_us(machine(spec)), exchange(twin(hosts), nodes[:1], nodes[1:2]).latency_us
    assert put_us is not None
    tokens = Tokens(hidden, top_k, experts)
    return DeepEp(len(nodes), 8, "nvlink4", "low latency", tokens, way, put_us, inside)


def test_low_latency_deepep_on_two_nodes_is_as_long_as_measured(shared: Path) -> None:
    """Nothing was fitted to calls between nodes: bytes, rails, the largest of random loads, a flag behind them."""
    calls, errors = {}, {"dispatch": [], "combine": []}
    with open(shared / "validation/serving/aic_deepep.csv") as stream:
        for row in csv.DictReader(stream):
            if row["mode"] != "ll" or row["node_num"] != "2" or row["system"] != "h100_sxm":
                continue
            sizes = int(row["hidden_size"]), int(row["num_topk"]), int(row["num_experts"])
            one = calls.setdefault(sizes, low_latency(2, *sizes))
            for call, found in errors.items():
                found.append(one.time_us(call, int(row["num_token"])) / float(row[f"{call}_avg_t_us"]) - 1)
    assert len(errors["dispatch"]) >= 20
    assert np.abs([errors["dispatch"], errors["combine"]]).max() < 0.15
    assert np.median(np.abs([errors["dispatch"], errors["combine"]])) < 0.06


def test_more_nodes_send_more_of_each_token_over_the_network() -> None:
    two, four = low_latency(2), low_latency(4)
    assert 1.3 < four.time_us("combine", 128) / two.time_us("combine", 128) < 1.6  # 3/4 of the copies, not 1/2
    nodes, tokens = twin().fabric.gpu_node, Tokens(7168, 8, 256)
    one = DeepEp(8, 8, "nvlink4", "low latency", tokens, exchange(twin(), nodes[:0], nodes[:0]))
    assert one.time_us("dispatch", 128) < 0.6 * two.time_us("dispatch", 128)
    fellows = exchange(twin(), *to_fellows(twin(), nodes))
    normal = DeepEp(16, 8, "nvlink4", "normal", tokens, fellows)
    # a copy a node beats a copy an expert, once there are many tokens
    assert normal.time_us("dispatch", 4096) < 0.5 * two.time_us("dispatch", 4096)


def test_every_token_reaches_some_expert() -> None:
    tokens = Tokens(7168, 8, 256)
    assert tokens.reaches(1.0) == 1
    assert tokens.reaches(0.5) == pytest.approx(1 - 0.5**8, abs=0.002)
    assert tokens.bytes_of("dispatch") == 7168 + 7168 // 128 * 4
    assert tokens.bytes_of("combine") == 2 * 7168


@pytest.mark.parametrize(
    ("serving", "expected"),
    [
        ({"data_parallel_size": 4}, "DP 4"),
        ({"data_parallel_size": 4, **EXPERTS}, "DP 4, EP"),
        ({"data_parallel_size": 4, **EXPERTS, "all2all_backend": "deepep_low_latency"}, "EP"),
        (
            {"data_parallel_size": 4, **EXPERTS, "all2all_backend": "deepep_high_throughput"},
            "EP",
        ),
        ({"data_parallel_size": 2, "pipeline_parallel_size": 2}, "PP 2, DP 2"),
        (
            {"data_parallel_size": 2, "tensor_parallel_size": 4, **EXPERTS},
            "TP 4, PP 1, DP 2, EP",
        ),
        ({"tensor_parallel_size": 4, **EXPERTS}, "TP 4, PP 1, EP"),
    ],
)
def test_mixtures_of_parallelism(tmp_path: Path, serving: dict[str, Any], expected: str) -> None:
    from fabrictwin.serving.report.server import headline

    found = predicted(tmp_path, model=MIXTRAL, **serving)
    assert expected in headline(found)[0]
    assert found.fields["completed"] == 30
    computed = sum(int(one.steps[:, 2].sum()) for one in found.replicas)
    assert computed == 30 * (600 + 39)
    assert json.dumps(found.fields) == json.dumps(predicted(tmp_path, model=MIXTRAL, **serving).fields)


def test_ranks_that_share_experts_step_together(tmp_path: Path) -> None:
    found = predicted(tmp_path, model=MIXTRAL, data_parallel_size=4, enable_expert_parallel=True)
    assert len(found.replicas) == 4
    launches = [set(map(tuple, one.steps[:, :2].tolist())) for one in found.replicas]
    assert all(len(one) > 20 for one in launches)
    assert len(set.union(*launches)) < 0.6 * sum(len(one) for one in launches)
    # and those of a dense model each for themselves
    dense = predicted(tmp_path, data_parallel_size=4, tensor_parallel_size=4)
    launches = [set(map(tuple, one.steps[:, :2].tolist())) for one in dense.replicas]
    assert len(set.union(*launches)) == sum(len(one) for one in launches)


def test_experts_that_are_spread_leave_more_memory(tmp_path: Path) -> None:
    alone = predicted(tmp_path, model=MIXTRAL, data_parallel_size=2, tensor_parallel_size=2)
    wide = predicted(tmp_path, model=MIXTRAL, data_parallel_size=4, tensor_parallel_size=2)
    # 32 layers of 8 experts of three matrices in 16 bits, an eighth on a GPU instead of a quarter
    freed = 32 * 8 * 3 * 4096 * 14336 * 2 // 8
    page = 16 * 32 * 2 * 4 * 128 * 2
    assert wide.server.layout.blocks - alone.server.layout.blocks == pytest.approx(freed / page, abs=1)


def test_mxfp4_experts_lie_in_memory_as_they_are_padded(tmp_path: Path) -> None:
    """On eight H100 2,880 of inner width are 8 × 360, stored as 8 × 384: as much as 3,072, and more than 2,560."""

    def blocks(inner: int) -> int:
        config = {**json.loads(Path(MIXTRAL).read_text()), "intermediate_size": inner, "num_local_experts": 128}
        spec = load_spec(
            "-", io.StringIO(spec_text({"model": config, "quantization": "mxfp4", "tensor_parallel_size": 8}))
        )
        return server(spec, serving_section(spec)).layout.blocks

    page = 16 * 32 * 2 * 1 * 128 * 2
    operands = 8192 * 3 * 2 * 2 / 8  # of a step, for each of the inner width
    assert blocks(2880) - blocks(3072) == pytest.approx(192 * operands / page, abs=2)
    freed = 32 * 128 * 3 * 4096 * (384 - 320) * (0.5 + 1 / 32)
    assert blocks(2560) - blocks(2880) == pytest.approx((freed + 320 * operands) / page, abs=2)
    mxfp4, wide = Weights("none", "mxfp4"), Weights("fp8", "fp8")
    assert padded_widths("h100-sxm", mxfp4, 2880, 360) == (2880, 384)
    assert padded_widths("b200-sxm", mxfp4, 2880, 360) == (3072, 512)
    assert padded_widths("a100-80", mxfp4, 2880, 360) == (3072, 384)
    assert padded_widths("b200-sxm", wide, 2880, 360) == (2880, 360)


@pytest.mark.second
def test_experts_padded_to_blocks_do_not_care_how_many_tokens_there_are(tmp_path: Path) -> None:
    """vLLM 0.12 on Hopper: a step of 4 tokens works on as many blocks of experts in fp8 as one of 24."""
    model = {
        "model_type": "qwen3_moe", "hidden_size": 4096, "intermediate_size": 12288, "num_hidden_layers": 8,
        "num_attention_heads": 64, "num_key_value_heads": 4, "head_dim": 128, "vocab_size": 32000,
        "max_position_embeddings": 8192, "num_experts": 128, "num_experts_per_tok": 8,
        "moe_intermediate_size": 1536, "tie_word_embeddings": False, "attention_bias": False, "_name": "mixture",
    }  # fmt: skip

    def experts_us(tokens: int, release: str, quantization: str = "fp8") -> float:
        sizes = {"tensor_parallel_size": 2, "release": release, "quantization": quantization}
        path = tmp_path / "server.yaml"
        path.write_text(spec_text({"model": model, **sizes}, hosts=1))
        spec = load_spec(path)
        cost = server(spec, serving_section(spec)).make()[0].cost  # type: ignore[attr-defined]
        cost.stages_ps(StepShape(tokens, tokens, tokens * 100, 100, 100, [], tokens, uniform=True))
        return float(cost.decode_parts(mixed=False).experts) / tokens

    assert experts_us(24, "0.12") < 1.5 * experts_us(4, "0.12")  # weights of more experts are read
    assert experts_us(24, "0.19") > 1.9 * experts_us(4, "0.19")  # blocks of tokens that there are
    assert experts_us(24, "0.12", "none") > 1.9 * experts_us(4, "0.12", "none")
    assert experts_us(4, "0.12") > 2.5 * experts_us(4, "0.19")
