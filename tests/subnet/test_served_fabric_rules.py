"""A served fabric by itself: what it says, when it sweeps, what the console is given, whom it asks."""

from __future__ import annotations

import os
import signal
import socket
import sys
from contextlib import contextmanager
from types import SimpleNamespace as Record

import pytest
from support.sm_fabrics import two_tiers

from fabrictwin.subnet.agents.agent_state import SubnetState
from fabrictwin.subnet.agents.mad_routing import Frame, Network
from fabrictwin.subnet.manager.sweep.lids import read_guid2lid
from fabrictwin.subnet.serve import served_fabric
from fabrictwin.subnet.serve.endpoint import Client, Endpoint, pack_frame
from fabrictwin.subnet.serve.served_fabric import ManagerOptions, ServedFabric


@contextmanager
def fabric(**keys):
    """Two leaves of two hosts and a spine, served, and the lines that are said."""
    endpoint = Endpoint(Network(SubnetState(two_tiers(2, 2, 2))))
    lines: list[str] = []
    made = ServedFabric(endpoint, say=lines.append, **keys)
    try:
        yield made, lines
    finally:
        made.server.close()


def free_ports() -> int:
    """The first of eleven UDP ports in a row that are free."""
    for first in range(20000, 60000, 100):
        try:
            for port in range(first, first + 11):
                with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
                    sock.bind(("127.0.0.1", port))
        except OSError:
            continue
        return first
    raise AssertionError


def served(made: ServedFabric) -> None:
    made.serve(lambda: True)


def test_it_says_what_the_manager_did_then_what_was_asked_for_then_how_to_use_it(tmp_path):
    lids = tmp_path / "lids"
    with fabric(manager=ManagerOptions(guid2lid=lids)) as (made, lines):
        made.first = lambda: "first"
        served(made)
        name = made.server.name
    sweep, *rest = lines
    # without what it took on the twin's own clock
    assert sweep == "master: 8 nodes, 4 switches, 4 adapters, 8 LIDs\ntables by dmodk"
    assert rest[:2] == ["first", "up: 8 nodes; for example"]
    assert rest[2].startswith(f"  IBSIM_SOCKNAME={name} SIM_HOST=")
    assert rest[2].endswith(" LD_PRELOAD=libumad2sim.so ibstat")
    assert len(rest) == 3
    assert sorted(read_guid2lid(lids).values()) == list(range(1, 9))


def test_over_udp_it_says_who_may_manage_it():
    port = free_ports()
    with fabric(udp_port=port, manager=None) as (made, lines):
        served(made)
        assert made.managers == []
    assert lines[0] == "up: 8 nodes; for example"
    assert lines[1].startswith(f"  IBSIM_SERVER_NAME=127.0.0.1 IBSIM_SERVER_PORT={port} SIM_HOST=")
    assert lines[2:] == ["  over UDP every user of this machine can manage the fabric"]


def test_lids_that_are_kept_are_given_again(tmp_path):
    lids = tmp_path / "lids"
    state = SubnetState(two_tiers(2, 2, 2))
    guid = state.port_guid[state.find("host-3/mlx5_0")]
    lids.write_text(f"0x{guid:016x} 0x0040 0x0040\n")
    with fabric(manager=ManagerOptions(guid2lid=lids)) as (made, _):
        served(made)
        state = made.endpoint.state
        assert state.lid(state.end_slot(state.find("host-3/mlx5_0"))) == 0x40
        assert made.managers[0].manager.administration.rmpp_retries == 0
    assert read_guid2lid(lids)[guid] == 0x40


def test_it_sweeps_every_ten_seconds_and_when_traps_come(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(served_fabric, "time", Record(monotonic=lambda: now[0]))
    with fabric() as (made, lines):
        (one,) = made.managers
        swept = []
        for at in (100.0, 109.9, 110.0, 119.9, 120.0, 140.0, 149.9):
            now[0] = at
            made._idle()
            swept.append(len(one.reports))
        assert swept == [1, 1, 2, 2, 3, 4, 4]
        assert len(lines) == 1  # a light sweep that finds nothing says nothing
        state = made.endpoint.state
        state.cut_cable(state.base[state.find("leaf-0")] + 3, 0)
        now[0] = 150.0
        made._idle()
    assert lines[1].startswith("rerouted: ")
    changed = int(lines[1].split()[1].replace(",", ""))
    assert changed == one.reports[-1].rerouting.entries > 0
    assert "gone" not in lines[1]
    assert lines[1].endswith("table entries changed")


def test_what_is_gone_is_named():
    with fabric() as (made, lines):
        report = Record(kind="light", rerouting=Record(entries=1234), gone=("a", "b"), findings=())
        made._print_report(made.managers[0], report)
        nothing = Record(kind="light", rerouting=Record(entries=0), gone=(), findings=("a bad key",))
        made._print_report(made.managers[0], nothing)
        made._print_report(
            made.managers[0], Record(kind="light", rerouting=None, gone=(), findings=("a bad key",))
        )
    assert lines == ["rerouted: 1,234 table entries changed; gone: a, b", "found a bad key"]  # each once


def test_users_that_are_refused_are_named_once():
    with fabric(manager=None) as (made, lines):
        made.server.refused = {7: 3, 5: 1}
        made._idle()
        made.server.refused[9] = 1
        made._idle()
        made._idle()
    only = f"only user {os.getuid()} is served"
    assert lines == [f"refused: datagrams of user {uid}; {only}" for uid in (5, 7, 9)]


def test_the_console_takes_whole_lines_and_ends_with_its_input(monkeypatch):
    read, write = os.pipe()
    monkeypatch.setattr(sys, "stdin", Record(fileno=lambda: read))
    with fabric(manager=None) as (made, lines):
        made.commands["hello"] = lambda: "world"
        os.write(write, b"cut leaf-0/1\n\n hello \nnothi")
        made._read_lines()
        assert lines == ["leaf-0/1: down", "world"]
        os.write(write, b"ng\nmend leaf-0/1\n")
        made._read_lines()
        assert lines[2].startswith("error: got 'nothing', expected one of cut, mend")
        assert lines[3:] == ["leaf-0/1: up"]
        assert not made._stopped
        os.close(write)
        made._read_lines()
        assert made._stopped
    os.close(read)


def test_an_interrupt_ends_it_and_before_it_is_up_the_process():
    with fabric(manager=None) as (made, _):
        made._stop(signal.SIGTERM, None)
        assert made._stopped
        with pytest.raises(KeyboardInterrupt):
            made._stop(signal.SIGINT, None)
        made._up = True
        made._stop(signal.SIGINT, None)
        before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
        inside = []
        made.serve = lambda until: inside.extend(
            [
                until(),
                signal.getsignal(signal.SIGINT) == made._stop,
                signal.getsignal(signal.SIGTERM) == made._stop,
            ]
        )
        made.run()
        assert inside == [True, True, True]
        assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before


@pytest.mark.parametrize("answers_after", [1, 3, None])
def test_a_manager_that_is_a_client_is_asked_for_a_second(monkeypatch, answers_after):
    now, sent, steps = [50.0], [], []
    monkeypatch.setattr(served_fabric, "time", Record(monotonic=lambda: now[0]))
    with fabric(manager=None) as (made, _):
        endpoint = made.endpoint
        slot = endpoint.state.end_slot(endpoint.state.find("host-1/mlx5_0"))
        mad = bytes(8) + b"\xff\xff\0\0\0\0\0\x05" + bytes(240)
        frame, reply = Frame(1, 2, 0, 0, mad), Frame(2, 1, 0, 0, mad)
        assert made._ask_client(slot, frame) is None  # nobody is there
        endpoint.clients[0] = Client(slot + 1, 1, is_sm=True)
        endpoint.clients[1] = Client(slot, 1)
        assert made._ask_client(slot, frame) is None  # nobody that manages
        endpoint.clients[2] = Client(slot, 1, is_sm=True)

        def step(seconds):
            steps.append(seconds)
            now[0] += 0.25
            if len(steps) == answers_after:
                endpoint.awaited[mad[8:16]] = reply

        made.server = Record(send_all=sent.append, step=step, close=made.server.close)
        assert made._ask_client(slot, frame) is (None if answers_after is None else reply)
        assert sent == [[(2, pack_frame(frame))]]
        assert len(steps) == (answers_after or 4)
        assert endpoint.awaited == {}
        steps.clear()
        made._stopped = True
        assert made._ask_client(slot, frame) is None
        assert steps == []


def test_answers_to_the_twins_own_questions_are_kept_for_who_asked():
    with fabric(manager=None) as (made, _):
        endpoint = made.endpoint
        slot = endpoint.state.end_slot(endpoint.state.find("host-1/mlx5_0"))
        own = b"\xff\xff\0\0\0\0\0\x05"
        mad = b"\x01\x01\x01\x81" + bytes(4) + own + bytes(240)
        answer = Frame(1, 2, 0, 0, mad)
        assert endpoint.forward(slot, answer, 0) == []
        assert endpoint.awaited == {}  # nobody waits for it
        endpoint.awaited[own] = None
        assert endpoint.forward(slot, answer, 0) == []
        assert endpoint.awaited == {own: answer}
        # of clients: the one that asked, where it is still at that port
        endpoint.clients[3] = Client(slot, 1)

        def to(number, port=slot):
            return endpoint.forward(port, Frame(1, 2, 0, 0, mad[:8] + number.to_bytes(2, "big") + mad[10:]), 0)

        assert [number for number, _ in to(3)] == [3]
        before = endpoint.counts.no_client
        assert to(3, slot + 1) == to(4) == to(10) == to(77) == []
        assert endpoint.counts.no_client == before + 4
        # requests go to who manages there, reports to all of the port, both to nobody elsewhere
        request = Frame(1, 2, 0, 0, b"\x01\x03\x02\x01" + bytes(252))
        assert endpoint.forward(slot, request, 0) == []
        assert endpoint.counts.no_client == before + 5
        endpoint.clients[5] = Client(slot, 1, is_sm=True)
        assert [number for number, _ in endpoint.forward(slot, request, 0)] == [5]
        assert endpoint.forward(slot + 1, request, 0) == []
        report = Frame(1, 2, 0, 0, b"\x01\x03\x02\x06" + bytes(252))
        assert [number for number, _ in endpoint.forward(slot, report, 0)] == [3, 5]
        assert endpoint.forward(slot + 1, report, 0) == []
        endpoint.attach(slot, lambda frame, now: [], 0)
        assert endpoint.forward(slot, request, 0) == []
        assert endpoint.counts.no_client == before + 6
        assert endpoint.answer(slot + 1, request, 0) == []
