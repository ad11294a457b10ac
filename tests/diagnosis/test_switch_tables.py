"""SONiC's tables: columns are those of the ruler, whatever stands in the cells."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fabrictwin.diagnosis.diagnose import judged
from fabrictwin.diagnosis.readers.reading import read_text

HEADS = ["IFACE", "STATE", "RX_OK", "RX_BPS", "RX_UTIL", "RX_ERR", "RX_DRP", "RX_OVR"]


def table(heads: list[str], rows: list[list[str]], indent: int = 0) -> str:
    """A table as tabulate's `simple` format prints it, numbers to the right."""
    widths = [max(len(row[i]) for row in [heads, *rows]) for i in range(len(heads))]
    ruler = "  ".join("-" * width for width in widths)
    lines = [
        "  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in [heads, *rows]
    ]
    return "".join(f"{' ' * indent}{line}\n" for line in [lines[0], ruler, *lines[1:]])


@given(
    dropped=st.integers(0, 10**12),
    rate=st.sampled_from(["0.00 B/s", "2000.00 MB/s", "N/A"]),
    used=st.sampled_from(["64.00%", "N/A"]),
    indent=st.integers(0, 4),
)
def test_cells_with_spaces_do_not_shift_columns(dropped, rate, used, indent):
    text = table(HEADS, [["Ethernet8", "U", "10", rate, used, "N/A", f"{dropped:,}", "0"]], indent)
    counters = dict(fact.value for fact in read_text(text).of("port.counter") if fact.value[1])
    assert counters == {"sonic_rx_ok": 10} | ({"sonic_rx_drp": dropped} if dropped else {})


@pytest.mark.parametrize("way", ["Rx", "Tx"])
def test_pauses_are_of_their_priority(way):
    heads = [f"Port {way}", *(f"PFC{p}" for p in range(8))]
    text = table(heads, [["Ethernet0", "0", "0", "0", "12,345", "0", "0", "0", "0"]])
    assert ("port.counter", (f"{way.lower()}_prio3_pause", 12345)) in [
        (fact.kind, fact.value) for fact in read_text(text).of("port.counter")
    ]


def test_thresholds_of_marks_and_buffers_are_read():
    text = (
        "Profile: MINE\n-------------------  -------\necn                  ecn_all\ngreen_min_threshold  1000\n"
        "green_max_threshold  2000\n-------------------  -------\n\n"
        "Profile: pg_lossless_100000_5m_profile\n----  -----\nxon   1\nxoff  2\nsize  3\n----  -----\n\n"
        "Pool: ingress_lossless_pool\n----  -----\nmode  dynamic\nsize  99\n----  -----\n"
    )
    evidence = read_text(text)
    assert [fact.value for fact in evidence.of("sonic.wred")] == [(1000, 2000, "ecn_all")]
    assert [fact.value for fact in evidence.of("sonic.profile")] == [(3, 1, 2)]
    assert [fact.value for fact in evidence.of("sonic.pool")] == [99]


def test_lossless_priorities_and_the_watchdog_are_read():
    text = table(["Interface", "Lossless priorities"], [["Ethernet0", "3,4"]])
    text += table(["PORT", "ACTION", "DETECTION TIME", "RESTORATION TIME"], [["Ethernet0", "drop", "200", "400"]])
    evidence = read_text(text)
    assert [fact.value for fact in evidence.of("sonic.pfc")] == [(3, 4)]
    assert evidence.of("sonic.watchdog")


def test_a_row_that_was_moved_and_cut_is_read_as_far_as_it_goes():
    text = table(["Interface", "Lossless priorities"], [["Ethernet0", "3,4"]]).splitlines()
    moved = "\n".join([*text[:2], "       Ethernet0", ""])
    assert [fact.value for fact in read_text(moved).of("sonic.pfc")] == [()]


def test_headroom_that_was_used_is_a_note_and_shared_buffers_are_read():
    head = "     Port    PG0    PG3\n---------  -----  -----\nEthernet8      0  90112\n"
    found = judged(read_text(f"Ingress headroom per PG:\n{head}"), twin=False)
    assert [(one.id, one.severity.name) for one in found.findings] == [("congestion", "NOTE")]
    shared = judged(read_text(f"Ingress shared pool occupancy per PG:\n{head}"), twin=False)
    assert (shared.findings, shared.verdict) == ((), "clean")


FLAPS = """\
Interface      Flap Count  Admin    Oper    Link Down TimeStamp(UTC)         Link Up TimeStamp(UTC)
-----------  ------------  -------  ------  -------------------------------  -----------------------------
Ethernet0    {flaps:<12}  Up       Up      Never                            Thu Nov 26 10:02:03 2026
Ethernet8    Never         Up       Up      Never                            Never
"""
CORRECTION = """\
Interface    FEC Oper    FEC Admin
-----------  ----------  -----------
  Ethernet0          rs           rs
  Ethernet8  {oper:>10}           rs
"""


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (FLAPS.format(flaps="Never"), []),
        (FLAPS.format(flaps="57"), [("link-flapping", "ERROR", "Ethernet0")]),
        (CORRECTION.format(oper="rs"), []),
        (CORRECTION.format(oper="N/A"), []),  # a port that is down
        (CORRECTION.format(oper="none"), [("link-errors", "QUESTION", "Ethernet8")]),
        ("Thermal Overload: ASIC (Time: Thu Nov 26 10:00:00 2026)\n", [("switch-part", "WARNING", "text")]),
        ("Insufficient Fan Speed\n", [("switch-part", "WARNING", "text")]),
    ],
)
def test_flaps_correction_and_causes_of_restarts(text, found):
    told = judged(read_text(text), twin=False).roots
    assert [(one.id, one.severity.name, one.object) for one in told] == found
