"""Where each promise about NCCL is tested: variable by variable, cause by cause.

`VARIABLES` names for each NCCL_* variable the tests of its effect; a test here holds that they exist and set it.
`CAUSES` says for each cause of a host what the user sees: log lines that appear, those that do not, and the end.
"""

from __future__ import annotations

import ast
import io
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from fabrictwin.base.errors import SimulatedError
from fabrictwin.cluster.build_blueprint import build
from fabrictwin.cluster.spec.spec import read_spec
from fabrictwin.nccl.settings.settings import read_settings
from fabrictwin.tools.nccl_tests import perf
from fabrictwin.tools.nccl_tests.perf_run import play
from fabrictwin.twin.routed_twin import make_twin

HERE = Path(__file__).parent

EFFECTS, PACKET = "test_nccl_effects.py", "test_nccl_packet.py"
VARIABLES: dict[str, tuple[tuple[str, str], ...]] = {
    "NCCL_ALGO": ((EFFECTS, "test_algo_and_proto_are_timed_as_they_are_chosen"),),
    "NCCL_PROTO": ((EFFECTS, "test_algo_and_proto_are_timed_as_they_are_chosen"),),
    "NCCL_MIN_NCHANNELS": ((EFFECTS, "test_numbers_of_channels"),),
    "NCCL_MAX_NCHANNELS": ((EFFECTS, "test_numbers_of_channels"),),
    "NCCL_BUFFSIZE": ((EFFECTS, "test_buffsize_sets_the_chunk_that_fills_a_tree"),),
    "NCCL_NTHREADS": ((EFFECTS, "test_nthreads_holds_channels_back"),),
    "NCCL_CROSS_NIC": ((EFFECTS, "test_cross_nic"),),
    "NCCL_NVLS_ENABLE": ((EFFECTS, "test_nvls_enable"),),
    "NCCL_COLLNET_ENABLE": ((EFFECTS, "test_collnet_enable"),),
    "NCCL_P2P_DISABLE": ((EFFECTS, "test_p2p_disable_and_level"),),
    "NCCL_P2P_LEVEL": ((EFFECTS, "test_p2p_disable_and_level"),),
    "NCCL_SHM_DISABLE": ((EFFECTS, "test_shm_disable"),),
    "NCCL_NET_GDR_LEVEL": ((EFFECTS, "test_gpudirect_level_and_read"),),
    "NCCL_NET_GDR_READ": ((EFFECTS, "test_gpudirect_level_and_read"),),
    "NCCL_IB_HCA": (
        (EFFECTS, "test_ib_hca_leaves_adapters"),
        ("test_nccl_transport.py", "test_sockets_cost_an_order_of_magnitude"),
    ),
    "NCCL_IB_DISABLE": (("test_nccl_transport.py", "test_sockets_cost_an_order_of_magnitude"),),
    "NCCL_IB_GID_INDEX": (
        (EFFECTS, "test_ib_gid_index"),
        ("test_nccl_log.py", "test_roce_v1_connects_and_its_first_message_fails"),
    ),
    "NCCL_IB_TC": (
        (EFFECTS, "test_service_level_and_traffic_class"),
        (PACKET, "test_service_level_and_traffic_class_decide_who_waits"),
    ),
    "NCCL_IB_SL": (
        (EFFECTS, "test_service_level_and_traffic_class"),
        (PACKET, "test_service_level_and_traffic_class_decide_who_waits"),
    ),
    "NCCL_IB_QPS_PER_CONNECTION": (
        (EFFECTS, "test_queue_pairs"),
        (PACKET, "test_queue_pairs_and_adaptive_routing_spread_what_ecmp_lets_meet"),
    ),
    "NCCL_IB_SPLIT_DATA_ON_QPS": (
        (EFFECTS, "test_split_data_on_queue_pairs"),
        (PACKET, "test_queue_pairs_in_turns_and_all_at_once"),
    ),
    "NCCL_IB_ADAPTIVE_ROUTING": ((PACKET, "test_adaptive_routing_spreads_what_tables_do_not"),),
    "NCCL_PXN_DISABLE": (
        (EFFECTS, "test_pxn_disable"),
        ("test_nccl_transport.py", "test_pxn_off_leaves_the_rail"),
    ),
    "NCCL_SOCKET_IFNAME": ((EFFECTS, "test_socket_ifname"),),
    "NCCL_SOCKET_NTHREADS": (
        (EFFECTS, "test_sockets_are_slower_and_have_threads_and_several_connections"),
        (PACKET, "test_sockets_on_packets_cost_the_proxys_thread"),
    ),
    "NCCL_NSOCKS_PERTHREAD": (
        (EFFECTS, "test_sockets_are_slower_and_have_threads_and_several_connections"),
        (PACKET, "test_sockets_on_packets_cost_the_proxys_thread"),
    ),
    "NCCL_MNNVL_ENABLE": ((EFFECTS, "test_mnnvl_enable"),),
    "NCCL_NET_DISABLE_INTRA": ((EFFECTS, "test_net_disable_intra"),),
    "NCCL_SOCKET_FAMILY": ((EFFECTS, "test_socket_family"),),
    "NCCL_IB_TIMEOUT": ((EFFECTS, "test_adaptive_routing_time_out_and_retries_set_up_queue_pairs"),),
    "NCCL_IB_RETRY_CNT": ((EFFECTS, "test_adaptive_routing_time_out_and_retries_set_up_queue_pairs"),),
}


@cache
def _functions(file: str) -> dict[str, str]:
    """Functions with their decorators, as text."""
    text = (HERE / file).read_text(encoding="utf-8")
    lines = text.splitlines()
    return {
        node.name: "\n".join(lines[min(d.lineno for d in [node, *node.decorator_list]) - 1 : node.end_lineno])
        for node in ast.parse(text).body
        if isinstance(node, ast.FunctionDef)
    }


@pytest.mark.parametrize("variable", VARIABLES)
def test_every_variable_has_tests_of_its_effect(variable: str) -> None:
    for file, name in VARIABLES[variable]:
        text = _functions(file).get(name)
        assert text is not None, f"{file} has no {name}"
        assert variable in text, f"{file} {name} does not set {variable}"
        assert "assert" in text


IB, ROCE = ("infiniband", "qm9700"), ("ethernet", "spectrum-4")
Cause = tuple[dict[str, Any], tuple[str, str], tuple[str, ...], tuple[str, ...], str]
CAUSES: dict[str, Cause] = {  # fault, network, lines that appear, that do not, what NCCL returns
    "nothing wrong": ({}, IB, ("via NET/IB/0/GDRDMA", "Init COMPLETE"), ("NCCL WARN",), ""),
    "no GPUDirect kernel module": (
        {"cause": "no-gpudirect-module"},
        IB,
        ("GPU Direct RDMA Disabled for HCA", "via NET/IB/"),
        ("GDRDMA",),
        "",
    ),
    "locked-memory limit too low": (
        {"cause": "locked-memory", "limit": "64 KiB"},
        IB,
        ("NCCL WARN Call to ibv_reg_mr failed with error Cannot allocate memory",),
        ("Init COMPLETE",),
        "ncclSystemError",
    ),
    "container without RDMA devices": (
        {"cause": "no-rdma-devices"},
        IB,
        ("NET/IB : No device found.", "Using network Socket", "via NET/Socket/"),
        ("NET/IB/0",),
        "",
    ),
    "ACS on": ({"cause": "acs"}, IB, ("via NET/IB/0/GDRDMA", "Init COMPLETE"), ("ACS", "NCCL WARN"), ""),
    "GID of RoCE v1": (
        {"cause": "wrong-gid", "gid": "roce-v1"},
        ROCE,
        ("Init COMPLETE", "NCCL WARN NET/IB: Got completion from peer", "IBV_WC_RETRY_EXC_ERR(12)"),
        ("ibv_modify_qp",),
        "ncclRemoteError",
    ),
    "link-local GID": (
        {"cause": "wrong-gid", "gid": "link-local"},
        ROCE,
        ("NCCL WARN Call to ibv_modify_qp failed with 110 Connection timed out", "local GID fe80::"),
        ("Init COMPLETE",),
        "ncclSystemError",
    ),
    "interface filter that excludes all": (
        {"cause": "interface-filter", "interfaces": "eth7"},
        IB,
        ("NCCL WARN Bootstrap : no socket interface found",),
        ("NET/IB", "Init COMPLETE"),
        "ncclInternalError",
    ),
}


@pytest.mark.second
@pytest.mark.parametrize("name", CAUSES)
def test_a_cause_shows_itself_as_on_a_real_cluster(name: str) -> None:
    fault, (technology, switch), shown, hidden, result = CAUSES[name]
    network = {"technology": technology, "switch": switch, "topology": {"kind": "rail-optimised"}}
    spec = read_spec(
        {
            "schema": 1,
            "name": "cause",
            "cluster": {"hosts": {"type": "dgx-h100", "count": 2}, "network": network},
            "faults": [{"host": "host-*", **fault}] if fault else [],
        }
    )
    twin = make_twin(spec, build(spec.cluster, spec=spec))
    options = perf.Options(perf.TESTS["all_reduce_perf"], min_bytes=1 << 20, max_bytes=1 << 20, gpus=8, check=0)
    settings = read_settings({"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "INIT,NET"})
    nodes = perf.ranks_of(twin, gpus_per_process=8, hosts=None, processes=None)
    run = perf.prepare(twin, options, settings=settings, rank_node=nodes, packet=None, seed=1)
    out = io.StringIO()
    if result:
        with pytest.raises(SimulatedError, match=result):
            play(run, out, fidelity="analytic", source="spec", stage=lambda _: None)
        assert "Test NCCL failure" in out.getvalue()
    else:
        (row,) = play(run, out, fidelity="analytic", source="spec", stage=lambda _: None)
        assert row.bus_gbps > 1
    text = out.getvalue()
    for line in shown:
        assert line in text
    for line in hidden:
        assert line not in text
