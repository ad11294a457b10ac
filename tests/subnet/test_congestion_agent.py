"""The congestion control agent: what OpenSM and ibccconfig set, and what ibccquery reads."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from support.congestion_options import MARKING
from support.odd_fabrics import draw
from support.over_ibsim import run_tool
from support.real_tools import JUDGED_BY_REAL_TOOLS, Up
from support.sm_fabrics import Site

from fabrictwin.subnet.wire import congestion as cc
from fabrictwin.subnet.wire.congestion import CongestionId
from fabrictwin.subnet.wire.fields import Attribute
from fabrictwin.subnet.wire.header import START, MadClass, Method, Status

SECOND_PS = 10**12


class Asked:
    """Requests to the agent of one node."""

    def __init__(self, name: str) -> None:
        self.site = Site(manage=False)
        self.agent = self.site.endpoint.network.congestion
        self.m = self.site.state.find(name)

    def __call__(
        self,
        attribute: int,
        record: Attribute | None = None,
        *,
        block: int = 0,
        key: int = 0,
        now_ps: int = 0,
        method: int = 0,
    ) -> tuple[int, bytes] | None:
        """(status, data) of a Get, or of a Set of a record; None for silence."""
        method = method or (Method.GET if record is None else Method.SET)
        head = START.pack(1, MadClass.CONGESTION, 2, method, 0, 0, 7, attribute, block, key)
        mad = head.ljust(64, b"\0") + (record.encode() if record else b"").ljust(192, b"\0")
        answer = self.agent.answer(self.m, self.site.state.end_slot(self.m), mad, now_ps)
        if answer is None:
            return None
        assert len(answer) == 256
        assert answer[3] == 0x81
        place = cc.LOG_DATA if attribute == CongestionId.CONGESTION_LOG else cc.DATA
        return int.from_bytes(answer[4:6], "big"), answer[place]


@pytest.mark.parametrize(
    ("node", "record"),
    [
        ("leaf-0", cc.SwitchCongestionSetting(control_map=0x1F, victim_mask=bytes(range(32)), threshold=15)),
        ("leaf-0", cc.SwitchPortCongestionSetting(valid=(1,) * 48, threshold=(7,) * 48)),
        ("host-3/mlx5_0", cc.CaCongestionSetting(port_control=1, control_map=0xF, ccti_timer=tuple(range(16)))),
        ("host-3/mlx5_0", cc.CongestionControlTable(ccti_limit=127, multiplier=tuple(range(64)))),
    ],
)
def test_what_is_set_is_kept_where_it_belongs(node, record):
    asked = Asked(node)
    assert asked(record.ID) == (Status.OK, type(record)().encode().ljust(192, b"\0"))
    assert asked(record.ID, record) == (Status.OK, record.encode().ljust(192, b"\0"))
    assert asked(record.ID) == (Status.OK, record.encode().ljust(192, b"\0"))
    other = Asked("leaf-0" if node != "leaf-0" else "host-3/mlx5_0")
    assert other(record.ID)[0] == Status.BAD_ATTRIBUTE
    assert other(record.ID, record)[0] == Status.BAD_ATTRIBUTE


def test_blocks_of_a_table_are_apart_and_share_its_limit():
    asked = Asked("host-3/mlx5_0")
    table = CongestionId.CONGESTION_CONTROL_TABLE
    asked(table, cc.CongestionControlTable(ccti_limit=100, multiplier=(5,) * 64))
    second = cc.CongestionControlTable.decode(asked(table, block=1)[1])
    assert (second.ccti_limit, set(second.multiplier)) == (100, {0})
    assert asked(table, block=2)[0] == Status.BAD_FIELD
    assert asked(table, cc.CongestionControlTable(), block=2)[0] == Status.BAD_FIELD
    assert asked(table, cc.CongestionControlTable(ccti_limit=128))[0] == Status.BAD_FIELD
    info = cc.CongestionInfo.decode(asked(CongestionId.CONGESTION_INFO)[1])
    assert info.control_table_cap == 2


def test_a_key_is_needed_where_there_is_one():
    asked = Asked("leaf-0")
    key_info, setting = CongestionId.CONGESTION_KEY_INFO, cc.SwitchCongestionSetting(control_map=3)
    key = cc.CongestionKeyInfo(cc_key=0xC0FFEE, protect_bit=1, lease_period_s=5)
    assert asked(key_info, key)[0] == Status.OK
    assert asked(setting.ID, setting) is None
    assert asked(setting.ID, now_ps=SECOND_PS) is None
    held = cc.CongestionKeyInfo.decode(asked(key_info, key=0xC0FFEE, now_ps=2 * SECOND_PS)[1])
    assert (held.cc_key, held.violations) == (0xC0FFEE, 2)
    assert asked(setting.ID, setting, key=0xC0FFEE)[0] == Status.OK
    assert asked(key_info, now_ps=10 * SECOND_PS) is None  # the lease runs from here
    assert asked(key_info, now_ps=14 * SECOND_PS) is None
    shown = cc.CongestionKeyInfo.decode(asked(key_info, now_ps=15 * SECOND_PS)[1])
    assert (shown.cc_key, shown.protect_bit, shown.violations) == (0, 0, 4)
    assert asked(setting.ID, setting, now_ps=16 * SECOND_PS) is None  # still only with the key


def test_logs_are_empty_and_clocks_run():
    for node, kind in (("leaf-0", cc.CongestionLogSwitch), ("host-3/mlx5_0", cc.CongestionLogCa)):
        asked = Asked(node)
        log = kind.decode(asked(CongestionId.CONGESTION_LOG, now_ps=SECOND_PS)[1])
        assert log == kind(current_timestamp=976_562)
        assert cc.Timestamp.decode(asked(CongestionId.TIMESTAMP, now_ps=2 * SECOND_PS)[1]).timestamp == 1_953_125


def test_what_there_is_not_is_refused():
    asked = Asked("leaf-0")
    assert asked(0x99)[0] == Status.BAD_ATTRIBUTE
    assert asked(CongestionId.CONGESTION_INFO, cc.CongestionInfo())[0] == Status.BAD_ATTRIBUTE
    assert asked(CongestionId.CONGESTION_INFO, method=Method.TRAP)[0] == Status.BAD_METHOD


CONFIG = f"""congestion_control TRUE
cc_sw_cong_setting_control_map 0x1f
cc_sw_cong_setting_victim_mask 0x6
{MARKING}cc_ca_cong_setting_control_map 0xffff
cc_ca_cong_setting_ccti_timer 0 64
cc_ca_cong_setting_ccti_timer 1 65
cc_ca_cong_setting_ccti_increase 0 2
cc_ca_cong_setting_trigger_threshold 0 3
cc_ca_cong_setting_ccti_min 0 1
cc_cct 0:0,0:1,0:2,1:3,2:1000
"""


def value(printed: str, name: str, nth: int = 0) -> str:
    return re.findall(rf"^{name}:\.*(\S+)$", printed, re.MULTILINE)[nth]


class TestRealTools:
    pytestmark = JUDGED_BY_REAL_TOOLS

    def test_opensm_sets_it_and_ibccquery_reads_it(self, tmp_path: Path):
        text = draw("small_tree", 9, lid_gap=2)
        (tmp_path / "net").write_text(text)
        cluster = tmp_path / "cluster.yaml"
        cluster.write_text(f"ibnetdiscover: {tmp_path / 'net'}\n")
        hosts = re.findall(r'^Ca.*"(H-[0-9a-f]+)"', text, re.MULTILINE)
        with Up(cluster, tmp_path, manage=False) as up:
            log = up.opensm(hosts[0], config=CONFIG)
            assert not re.findall(r"ERR C1\d\d", log.read_text())
            lid = {up.state.is_switch[m]: up.state.lid(up.state.end_slot(m)) for m in range(len(up.state.guid))}
            switch, adapter = str(lid[True]), str(lid[False])

            def ask(*command: str) -> str:
                return up.tool(*command, host=hosts[1])

            setting = ask("ibccquery", "SwitchCongestionSetting", switch)
            assert value(setting, "Control_Map") == "0x0000001f"
            assert (value(setting, "Threshold"), value(setting, "Packet_Size")) == ("0x0f", "8")
            assert (value(setting, "CS_Threshold"), value(setting, "CS_ReturnDelay")) == ("0x05", "0x4014")
            assert value(setting, "Marking_Rate") == "7"
            levels = ask("ibccquery", "CACongestionSetting", adapter)
            assert (value(levels, "Port_Control"), value(levels, "Control_Map")) == ("0x0001", "0xffff")
            for name, first, second in (
                ("CCTI_Timer", "64", "65"),
                ("CCTI_Increase", "2", "0"),
                ("Trigger_Threshold", "3", "0"),
                ("CCTI_Min", "1", "0"),
            ):
                assert (value(levels, name, 0), value(levels, name, 1)) == (first, second)
            table = ask("ibccquery", "CongestionControlTable", adapter)
            assert value(table, "CCTI_Limit") == "4"
            assert [value(table, "CCT_Multiplier", i) for i in range(5)] == ["0", "1", "2", "3", "1000"]
            assert [value(table, "CCT_Shift", i) for i in range(5)] == ["0", "0", "0", "1", "2"]
            for what, where in (
                *(("ClassPortInfo", adapter), ("CongestionInfo", switch), ("CongestionLog", switch)),
                *(("CongestionLog", adapter), ("Timestamp", adapter), ("SwitchPortCongestionSetting", switch)),
            ):
                assert ask("ibccquery", what, where).strip()
            ask("ibccconfig", "SwitchPortCongestionSetting", switch, "2", "1", "1", "9", "64", "5")
            element = ask("ibccquery", "SwitchPortCongestionSetting", switch, "2")
            assert (value(element, "Threshold"), value(element, "Cong_Parm_Marking_Rate")) == ("0x09", "5")
            ask("ibccconfig", "CongestionKeyInfo", switch, "0xc0ffee", "1", "0", "0")
            key = ask("ibccquery", "-c", "0xc0ffee", "CongestionKeyInfo", switch)
            assert (value(key, "CC_Key"), value(key, "CC_KeyProtectBit")) == ("0x0000000000c0ffee", "1")
            query = ("ibccquery", "-t", "50", "CongestionKeyInfo", switch)
            code, complaint = run_tool(query, up.environment(hosts[1]), tmp_path, 30)
            assert (code != 0, "query failed" in complaint) == (True, True)
