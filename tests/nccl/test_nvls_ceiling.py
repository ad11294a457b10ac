"""What NVLS comes to at most, by hand from NCCL's constants; and the variables that a plugin sets."""

from __future__ import annotations

import math

import pytest
from support.nccl_machines import communicator, twin_of

from fabrictwin.nccl.communicator.plugin_settings import with_plugin
from fabrictwin.nccl.settings.settings import read_settings
from fabrictwin.nccl.topology.graph_types import Algorithm
from fabrictwin.nccl.topology.net_devices import HostNetwork
from fabrictwin.nccl.tuning.nvls_ceiling import beside_chunks_gbps, ceiling_gbps
from fabrictwin.nccl.tuning.tuner import choose


def test_one_host_reaches_the_efficiency_of_its_generation() -> None:
    # 8 channels of 40 GB/s, 0.85, both ways at once, seven of eight; as data that is n / (2 (n - 1))
    assert ceiling_gbps(communicator("dgx-h100"), Algorithm.NVLS) == pytest.approx(
        8 * 2 * 40 * 0.85 * 7 / 8 * 8 / 14
    )


def test_two_hosts_reach_what_a_channel_of_the_tree_moves() -> None:
    found = ceiling_gbps(communicator("dgx-h100", 2), Algorithm.NVLS_TREE)
    assert found == pytest.approx(8 * 57.7 * 16 / 30)


def test_parts_of_hosts_and_other_algorithms_have_none() -> None:
    assert ceiling_gbps(communicator("dgx-h100", gpus=4), Algorithm.NVLS) == math.inf
    assert ceiling_gbps(communicator("dgx-h100"), Algorithm.RING) == math.inf
    assert ceiling_gbps(communicator("dgx-a100"), Algorithm.NVLS) == math.inf


def test_what_chunks_cost_is_taken_out_once() -> None:
    # 1/272 and a chunk of 128 KiB at 1 us on 16 channels
    alone = beside_chunks_gbps(272.0, chunk_us=1.0, channels=16)
    assert 1 / alone == pytest.approx(1 / 272 - 1e3 / (131072 * 16))
    assert beside_chunks_gbps(math.inf, chunk_us=1.0, channels=16) == math.inf


def settings_on(host: str, network: str = "IB", **given: str) -> tuple[int | None, int, int, int | None]:
    template = twin_of(host, 1, "ethernet").fabric.templates[0]
    found = with_plugin(read_settings(given), template, HostNetwork(network, (0,), True))
    return found.buffsize, found.p2p_net_chunksize, found.nvls_chunksize, found.nvlstree_max_chunksize


def test_the_plugin_sets_buffers_on_its_instances_alone() -> None:
    assert settings_on("p5-48xlarge") == (8 << 20, 512 << 10, 512 << 10, 512 << 10)
    assert settings_on("p4de-24xlarge") == (8 << 20, 512 << 10, 128 << 10, None)
    assert settings_on("dgx-h100") == settings_on("p5-48xlarge", "Socket") == (None, 128 << 10, 128 << 10, None)


def test_what_the_environment_says_stays() -> None:
    assert settings_on("p5-48xlarge", NCCL_BUFFSIZE="65536", NCCL_NVLS_CHUNKSIZE="262144")[::2] == (65536, 262144)


def test_instances_that_send_use_simple_alone_and_those_that_write_choose() -> None:
    def protocols(host: str, **given: str) -> set[str]:
        known = communicator(twin=twin_of(host, 2, "ethernet"), **given)
        return {choose(known, "AllReduce", size).protocol.name for size in (1024, 1 << 20, 1 << 30)}

    assert protocols("p4de-24xlarge") == {"SIMPLE"}
    assert len(protocols("p5-48xlarge")) > 1
    assert protocols("p4de-24xlarge", NCCL_PROTO="LL128") == {"LL128"}


def test_adapters_report_the_latency_that_their_plugin_tells() -> None:
    def reported(host: str, **given: str) -> float:
        known = communicator(twin=twin_of(host, 2, "ethernet"), **given)
        return known.graphs[Algorithm.TREE].latency_inter

    assert (reported("p4de-24xlarge"), reported("p5-48xlarge"), reported("p6-b200-48xlarge")) == (75, 75, 35)
    assert reported("dgx-h100") == reported("p5-48xlarge", NCCL_NET="Socket") == 0


def test_the_log_names_what_the_plugin_set() -> None:
    given = dict(communicator(twin=twin_of("p5-48xlarge", 1, "ethernet")).settings.given)
    assert given["NCCL_BUFFSIZE"] == "8388608"
