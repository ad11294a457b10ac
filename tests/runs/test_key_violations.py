"""Packets with bad partition keys: who drops them, what is counted there, and what the manager hears of it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
from support.clusters import blueprint

from fabrictwin.engines.base.transfers import Transfers
from fabrictwin.engines.packet.packet_options import options_with
from fabrictwin.subnet.manager.settings.manager_settings import Settings
from fabrictwin.subnet.manager.settings.partitions import Everybody, read_partitions
from fabrictwin.subnet.manager.sweep.discovery import Kind
from fabrictwin.subnet.wire.notice import NoticeType, SwitchBadKeyDetails, Trap
from fabrictwin.subnet.wire.smp import PortInfo
from fabrictwin.twin import Twin
from fabrictwin.twin.managed_run import ManagedRun

TREE = {"kind": "fat-tree", "tiers": 2, "leaf_down": 2, "spines": 1}
MS, S = 10**9, 10**12


@dataclass
class Played:
    """Messages of four hosts on two leaves, from 1 and 2 to 3, and what nodes hold afterwards."""

    done: list[bool]
    refused: dict[tuple[str, int], tuple[int, int, int]]  # (P_Key violations, dropped on the way out, in)
    findings: list[str]
    twin: Twin
    dropped: int

    @property
    def state(self):
        return self.twin.management.state


def play(tmp_path, rules, change="", at_ps=0, size=100_000, **settings) -> Played:
    """`rules` are lines of a partitions.conf; {0} to {3} are the hosts' GUIDs."""
    twin = Twin(blueprint(4, "pcie-box", topology=TREE))
    guids = [int(guid) for guid in twin.fabric.port_guid[twin.fabric.nic_node]]
    names = [f"{guid:#x}" for guid in guids]

    def held(text):
        path = tmp_path / "partitions.conf"
        path.write_text(text.format(*names))
        who = Everybody(adapters=frozenset(guids), switches=frozenset(), manager=frozenset(guids[:1]))
        return Settings(partitions=read_partitions(path, who), **settings)

    management = twin.manage(settings=held(rules))
    engine = twin.start_engine("packet", options_with(timeout=2, retry_count=1))
    run = ManagedRun(management, twin.fabric)
    if change:
        run.plan_settings(at_ps, held(change))
    ends = np.array([1, 2], np.int32), np.array([3, 3], np.int32)
    engine.transfer(Transfers(*ends, np.array([size, size])))
    run.drive(engine, 0, -1)
    state, refused = management.state, {}
    for slot in range(state.slots):
        name = state.fabric.node_name(int(state.fabric_node[state.node_of[slot]]))
        ways = (int(state.counters[f"{way}_constraint_errors"][slot]) for way in ("xmit", "rcv"))
        counts = (PortInfo.decode(state.get(slot)).p_key_violations, *ways)
        if any(counts):
            refused[name, state.number[slot]] = counts
    found = [
        f"{finding.where}: {finding.text}"
        for report in management.planes[0].hosted.reports
        for finding in report.findings
        if finding.kind is Kind.BAD_KEY
    ]
    dropped = int(engine.packets.adapter_counters().get("P_KeyViolations", np.zeros(1)).sum())
    return Played((engine.transfer_times().done_ps >= 0).tolist(), refused, found, twin, dropped)


APART = "Default=0x7fff : ALL=full ; a=5, indx0 : {1}=full ;"


def test_partitions_held_from_the_start_keep_out_at_the_switch_that_enforces_them(tmp_path):
    found = play(tmp_path, APART)
    assert found.done == [False, True]
    assert found.refused == {("leaf-1", 2): (0, found.dropped, 0)}
    assert found.dropped > 0
    (text,) = found.findings
    assert text.endswith("trap 259: P_Key 0x8005 of packets from host-1 mlx5_0/1 to host-3 mlx5_0/1")
    assert "leaf-1" in text
    assert not found.state.notices.pending  # repressed


def test_without_enforcement_the_adapter_drops_and_counts_in_its_port_info(tmp_path):
    found = play(tmp_path, APART, enforce_partitions=False)
    assert found.refused == {("host-3/mlx5_0", 1): (found.dropped, 0, 0)}
    assert found.findings == [
        "host-3 mlx5_0/1: trap 257: P_Key 0x8005 of packets from host-1 mlx5_0/1 to host-3 mlx5_0/1"
    ]


def test_switches_let_limited_members_pass_and_adapters_do_not(tmp_path):
    """A switch port holds its neighbour's keys as they are: a limited member could not send otherwise."""
    found = play(tmp_path, "Default=0x7fff : ALL=limited, {0}=full ;")
    assert found.done == [False, False]
    assert found.refused == {("host-3/mlx5_0", 1): (found.dropped, 0, 0)}
    assert len(found.findings) == 1  # a port tells of one violation at a time


def test_everybody_in_one_partition_meets_nothing(tmp_path):
    found = play(tmp_path, "Default=0x7fff : ALL=full ;")
    assert found.done == [True, True]
    assert (found.refused, found.findings, found.dropped) == ({}, [], 0)


def test_keys_that_go_while_packets_fly_are_counted_as_they_were_then(tmp_path):
    found = play(tmp_path, "Default=0x7fff : ALL=full ;", change=APART, at_ps=10**6, size=64_000_000)
    assert found.done == [False, True]
    assert found.refused == {("leaf-1", 2): (0, found.dropped, 0)}
    assert len(found.findings) == 1


def test_a_port_sends_no_more_than_one_security_trap_a_timeout(tmp_path):
    state = play(tmp_path, "Default=0x7fff : ALL=full ;").state
    leaf = state.find("leaf-0")
    timeout_ps = 4_096_000 << PortInfo.decode(state.get(state.end_slot(leaf))).subnet_timeout
    notices = state.notices

    def raised(key, now_ps):
        details = SwitchBadKeyDetails(key=key, switch_lid=1, port=1).encode()
        notices.raise_security_trap(leaf, Trap.BAD_P_KEY_AT_SWITCH, details, now_ps)

    raised(1, S)
    raised(2, S)  # one is pending: only counted
    (sent,) = notices.due(S)
    assert sent.notice.type == NoticeType.SECURITY
    notices.repress(leaf, sent.notice)
    assert not notices.due(S + MS)
    raised(3, S + MS)
    assert not notices.due(S + MS)
    (later,) = notices.due(S + timeout_ps)
    assert SwitchBadKeyDetails.decode(later.notice.details).key == 3


@pytest.mark.parametrize("field", ["p_key_violations", "q_key_violations"])
def test_violation_counters_stop_at_their_width(tmp_path, field):
    from fabrictwin.subnet.agents.key_violations import BadKey, refuse_at_port

    state = play(tmp_path, "Default=0x7fff : ALL=full ;").state
    trap = Trap.BAD_P_KEY if field.startswith("p") else Trap.BAD_Q_KEY
    ends = [state.end_slot(state.find(f"host-{n}/mlx5_0")) for n in (1, 3)]
    bad = BadKey(*ends, key=0x8005, service_level=0, source_qp=1, destination_qp=2)
    refuse_at_port(state, bad, 65_000, S, trap)
    refuse_at_port(state, bad, 1_000, S, trap)
    assert getattr(PortInfo.decode(state.get(ends[1])), field) == 0xFFFF
    (pending,) = state.notices.pending
    assert pending.notice.trap_number == trap
