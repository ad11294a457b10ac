"""PathRecords and MultiPathRecords that the twin's manager answers beside OpenSM's, byte for byte.

Asked by datagrams, since saquery asks for no MultiPathRecord and sets few components. Answers are compared as far
as their first datagram goes (three records). The twin's manager keeps the LIDs that OpenSM gave.
"""

from __future__ import annotations

import random
import re
import time
from pathlib import Path

import pytest
from support.odd_fabrics import draw
from support.real_tools import JUDGED_BY_REAL_TOOLS, Up

from fabrictwin.routing.engines.routing_options import Options
from fabrictwin.subnet.agents.mad_routing import Frame
from fabrictwin.subnet.agents.port_as_built import GID_PREFIX
from fabrictwin.subnet.manager.settings.manager_settings import Settings
from fabrictwin.subnet.serve.umad_client import UmadTransport
from fabrictwin.subnet.wire import sa
from fabrictwin.subnet.wire.fields import Attribute
from fabrictwin.subnet.wire.header import Method, SaMad
from fabrictwin.subnet.wire.sa import RecordId, component_mask

pytestmark = JUDGED_BY_REAL_TOOLS

TRACE_RECORD = 0x39  # OpenSM drops the question
REFUSED = {"method": 0x92, "status": 0x0C, "attribute": TRACE_RECORD, "offset": 0}
IN_A_DATAGRAM = 3  # whole records of 64 bytes


def asked(up: Up, seed: int) -> list[SaMad]:
    """Questions about the ports of a fabric: pairs and sets of them, with demands of all kinds, and wrong ones."""
    state, draw = up.state, random.Random(seed)
    guid = sorted({*state.port_guid})
    where = {state.port_guid[m]: state.lid(state.end_slot(m)) for m in range(len(state.guid))}

    def gid(port: int) -> int:
        return GID_PREFIX << 64 | port

    made: list[SaMad] = []

    def ask(record: Attribute, *components: str, method: int = Method.GET_TABLE, flags: int = 0) -> None:
        kind = type(record)
        mask = component_mask(kind, *components)
        data = record.encode()
        made.append(
            SaMad(
                method=method, attribute=kind.ID, component_mask=mask, data=data, rmpp_version=1,
                rmpp_type=1 if flags else 0, rmpp_flags=flags, rmpp_data1=1 if flags else 0,
                rmpp_data2=20 + len(data) if flags else 0,
            )
        )  # fmt: skip

    demands = [
        {},
        *({"mtu": mtu, "mtu_selector": selector} for mtu in (1, 4, 5) for selector in range(4)),
        *({"rate": rate, "rate_selector": selector} for rate in (2, 3, 16, 17, 18) for selector in range(4)),
        *({"packet_life_time": t, "packet_life_time_selector": s} for t in (1, 17, 18, 19) for s in range(4)),
        *({"sl": level} for level in (0, 1, 7)),
        *({"pkey": key} for key in (0xFFFF, 0x7FFF, 0x8001)),
        *({"reversible": value} for value in (0, 1)),
        *({"num_path": number} for number in (1, 2, 3)),
        {"tclass": 3},
        {"flow_label": 9},
        {"raw_traffic": 1},
        {"mtu": 5},
        {"rate_selector": 1},
    ]
    for demand in demands:
        a, b = draw.sample(guid, 2)
        ask(sa.PathRecord(sgid=gid(a), dgid=gid(b), **demand), "sgid", "dgid", *demand)
        if len(demand) < 2:
            ask(sa.PathRecord(sgid=gid(a), dgid=gid(b), **demand), "sgid", "dgid", *demand, method=Method.GET)
        ask(sa.PathRecord(slid=where[a], dgid=gid(b), **demand), "slid", "dgid", *demand)
        ends = (gid(a), gid(b), *[0] * 9)
        multi = sa.MultiPathRecord(sgid_count=1, dgid_count=1, gids=ends, **demand)
        ask(multi, "sgid_count", "dgid_count", *demand, method=Method.GET_MULTI, flags=7)
    ask(sa.PathRecord(sgid=gid(guid[0]), dgid=gid(guid[0])), "sgid", "dgid")
    ask(sa.PathRecord(sgid=gid(guid[0]), dgid=gid(0xABCD)), "sgid", "dgid", method=Method.GET)
    for sources, targets, number in [(2, 2, 2), (2, 2, 2), (2, 2, 2), (1, 2, 3), (2, 1, 0), (3, 3, 2), (4, 4, 1)]:
        ends = tuple(gid(g) for g in draw.sample(guid, sources + targets))
        record = sa.MultiPathRecord(
            sgid_count=sources, dgid_count=targets, num_path=number, gids=(*ends, *[0] * (11 - len(ends)))
        )
        names = ["sgid_count", "dgid_count", *(["num_path"] if number else [])]
        ask(record, *names, method=Method.GET_MULTI, flags=7)
        ask(record, *names[1:], method=Method.GET_MULTI, flags=7)
        ask(record, *names, method=Method.GET_MULTI)
        ask(record, *names, method=Method.GET)
        ask(record, *names, method=Method.GET, flags=7)
        ask(record, *names, "service_id_low", method=Method.GET_MULTI, flags=7)
    nobody = sa.MultiPathRecord(sgid_count=1, dgid_count=1, gids=(gid(guid[0]), 5 << 64 | 7, *[0] * 9))
    ask(nobody, "sgid_count", "dgid_count", method=Method.GET_MULTI, flags=7)
    none = sa.MultiPathRecord(gids=(0,) * 11)
    ask(none, "sgid_count", "dgid_count", method=Method.GET_MULTI, flags=7)
    return made


def answer(up: Up, transport: UmadTransport, manager: int, mad: SaMad, number: int) -> dict[str, object]:
    """The first datagram of an answer."""
    mad.tid = 0x1000 + number
    transport.send(Frame(manager, 0, 1, 1, mad.encode()))
    until = time.monotonic() + 5
    while time.monotonic() < until:
        got = transport._receive(1.0)
        if got is None:
            continue
        status, frame = got
        back = SaMad.decode(frame.mad)
        if status or (back.tid & 0xFFFF) != mad.tid or not back.method & 0x80:
            continue
        said: dict[str, object] = {
            "method": back.method,
            "status": back.status,
            "attribute": back.attribute,
            "offset": 0 if back.status else back.attribute_offset,
        }
        if not back.status and back.attribute == RecordId.PATH:
            count = 1 if back.method == Method.GET_RESP else IN_A_DATAGRAM
            said["records"] = [sa.PathRecord.decode(back.data[64 * k : 64 * k + 64]) for k in range(count)]
        return said
    return {"silent": True}


def _difference(question: SaMad, theirs: dict[str, object], ours: dict[str, object]) -> str:
    """Name what was asked, and the fields that differ."""
    kind = sa.PathRecord if question.attribute == RecordId.PATH else sa.MultiPathRecord
    record = kind.decode(question.data)
    components = sa.components(kind, question.component_mask)
    text = f"{question.method:#x} {[(name, getattr(record, name)) for name in components]}:"
    for name in sorted({*theirs, *ours} - {"records"}):
        if theirs.get(name) != ours.get(name):
            text += f" {name} {ours.get(name)}, OpenSM {theirs.get(name)}"
    for i, (a, b) in enumerate(zip(ours.get("records", ()), theirs.get("records", ()), strict=False)):
        for name in sa.PathRecord.names():
            if getattr(a, name) != getattr(b, name):
                text += f" {i}.{name} {getattr(a, name)}, OpenSM {getattr(b, name)}"
    return text


@pytest.mark.parametrize("lmc", [0, 1, 2])
def test_paths_are_answered_as_opensm_answers_them(lmc: int, tmp_path: Path):
    text = draw("uneven_leaves", 5, lid_gap=2)
    (tmp_path / "net").write_text(text)
    cluster = tmp_path / "cluster.yaml"
    cluster.write_text(f"ibnetdiscover: {tmp_path / 'net'}\n")
    hosts = re.findall(r'^Ca.*"(H-[0-9a-f]+)"', text, re.MULTILINE)
    settings = Settings(engine="minhop", routing=Options(lmc=lmc))
    said = []
    for manage in (False, True):
        with Up(cluster, tmp_path, manage=manage, settings=settings, guid2lid=tmp_path / "guid2lid") as up:
            if not manage:
                up.opensm(hosts[0], "-Q", "-R", "minhop", "-l", str(lmc))
            transport = UmadTransport(up.name, host=hosts[1])
            manager = next(m for m, guid in enumerate(up.state.guid) if f"H-{guid:016x}" == hosts[0])
            if manage:
                assert up.served.managers[0].slot == up.state.end_slot(manager)
            questions = asked(up, seed=lmc)
            trace = SaMad(method=Method.GET_TABLE, attribute=TRACE_RECORD, data=bytes(200))
            lid = up.state.lid(up.state.end_slot(manager))
            said.append([answer(up, transport, lid, mad, i) for i, mad in enumerate(questions)])
            traced = answer(up, transport, lid, trace, len(questions))
            assert traced == ({"silent": True} if not manage else REFUSED)
            transport.close()
    wrong = [
        _difference(question, theirs, ours)
        for question, theirs, ours in zip(questions, *said, strict=True)
        if ours != theirs
    ]
    assert not wrong, "\n".join(wrong)
    assert sum(len(one.get("records", ())) > 0 for one in said[0]) > 100
    assert not any("silent" in one for one in said[0])
