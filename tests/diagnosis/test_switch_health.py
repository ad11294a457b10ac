"""Switches' own views: NVUE's tables, SONiC's health, BFD, ibdiagnet's log, links of Linux."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fabrictwin.diagnosis.diagnose import judged
from fabrictwin.diagnosis.finding import Finding, Severity
from fabrictwin.diagnosis.readers.reading import read_text


def first(text: str) -> Finding | None:
    shown = [one for one in judged(read_text(text), twin=False).findings if one.severity > Severity.NOTE]
    return shown[0] if shown else None


def cause(text: str) -> str:
    found = first(text)
    return found.id if found else "clean"


HEALTH = """\
System status summary

  System status LED  {led}
  Services:
    Status: {services}
{stopped}  Hardware:
    Status: {hardware}
{reasons}"""


@pytest.mark.parametrize(
    ("stopped", "reasons", "wanted"),
    [
        ("", "", "clean"),
        ("    Not Running: bgpd, zebra\n", "", "switch-software"),
        ("", "    Reasons: fan3 is missing\n\t     PSU 2 is out of power\n", "switch-part"),
    ],
)
def test_a_switch_that_is_not_well_says_what_is_not(stopped, reasons, wanted):
    text = HEALTH.format(
        led="green" if wanted == "clean" else "red",
        services="Not OK" if stopped else "OK",
        hardware="Not OK" if reasons else "OK",
        stopped=stopped,
        reasons=reasons,
    )
    assert cause(text) == wanted


@given(st.sampled_from(["Up", "UP", "up", "Down", "DOWN", "Init"]))
def test_a_session_of_bfd_that_is_not_up_takes_its_neighbour_away(state):
    text = f"""\
Peer Addr    Interface    Vrf      State    Type          Local Addr
-----------  -----------  -------  -------  ------------  ------------
10.3.0.7     Ethernet40   default  {state:<7}  async_active  10.3.0.6
admin@leaf7:~$ show bfd peer 10.3.0.7
"""
    assert cause(text) == ("clean" if state.lower() == "up" else "bgp-down")


@pytest.mark.parametrize("shut", [False, True])
def test_a_neighbour_that_somebody_shut_down_is_no_fault(shut):
    text = "BGP neighbor is 10.9.1.1, remote AS 65101, local AS 65001, external link\n"
    text += " Administratively shut down\n" if shut else ""
    assert cause(text + "  BGP state = Idle\n") == ("clean" if shut else "bgp-down")


QOS = """\
cumulus@leaf3:~$ nv show interface swp9 counters qos
Ingress Buffer Statistics
============================
    priority-group  rx-frames  rx-buffer-discards  rx-shared-buffer-discards
    --------------  ---------  ------------------  -------------------------
    0               7120       0 Bytes             0 Bytes
    3               981200     {lost:<18}  0 Bytes
"""


@pytest.mark.parametrize(
    ("lost", "wanted"), [("0 Bytes", "clean"), ("512 KB", "headroom"), ("80 Bytes", "headroom")]
)
def test_nvue_shows_what_a_lossless_group_dropped(lost, wanted):
    assert cause(QOS.format(lost=lost)) == wanted


def test_an_interface_of_nvue_that_is_down_against_its_setting_is_named():
    text = """\
cumulus@leaf3:~$ nv show interface swp12 link
                       operational  applied
---------------------  -----------  -------
auto-negotiate         off          on
state                  {state:<11}  up
"""
    up = text.format(state="up")
    assert cause(up) == "clean"
    both = up + text.format(state="down").replace("swp12", "swp13")
    found = first(both)
    assert (found.id, found.object) == ("port-down", "swp13")


IBDIAGNET = """\
-I- Discovering ... 20 nodes (4 Switches & 16 CA-s) discovered.
-I- Duplicated GUIDs detection finished successfully
{said}
-I- Stage                     Warnings   Errors     Comment
-I- Discovery                 0          0
-I- Port Counters             0          {counters}
-I- Speed / Width checks      0          {speeds}
"""


@pytest.mark.parametrize(
    ("said", "counters", "speeds", "wanted"),
    [
        ("", 0, 0, "clean"),
        ("-E- Links Speed Check finished with errors", 0, 3, "link-slow"),
        ("-E- Link: S1/N1/P4<-->h3/U1/P1 - Unexpected width, actual link width is 1x (should be 4x)", 0, 1, "link-narrow"),
        ('-E- h7/U1/P1 - "symbol_error_counter" increased during the run (difference value=44)', 1, 0, "link-errors"),
        ('-E- h7/U1/P1 - "vl15_dropped" increased during the run (difference value=2)', 0, 0, "clean"),
        ("-E- Credit loop found on the following path", 0, 0, "subnet-manager-error"),
    ],
)  # fmt: skip
def test_the_log_of_ibdiagnet_tells_the_link_or_else_the_stage(said, counters, speeds, wanted):
    assert cause(IBDIAGNET.format(said=said, counters=counters, speeds=speeds)) == wanted


def test_what_ibdiagnet_informs_of_is_no_trouble_whatever_its_words():
    text = IBDIAGNET.format(said="-I- Error counters retrieving failed 0 times", counters=0, speeds=0)
    assert cause(text) == "clean"


@pytest.mark.parametrize(("other", "wanted"), [("up", "clean"), ("down", "port-down")])
def test_a_member_of_a_bond_without_a_link_is_down(other, wanted):
    text = "Ethernet Channel Bonding Driver: v5.15\n\nBonding Mode: IEEE 802.3ad\nMII Status: up\n"
    for name, state in (("ens1f0", "up"), ("ens1f1", other)):
        text += f"\nSlave Interface: {name}\nMII Status: {state}\nSpeed: 100000 Mbps\nLink Failure Count: 1\n"
    assert cause(text) == wanted


def test_one_interface_without_a_carrier_beside_others_is_not_cabled():
    alone = "3: ens2f1: <NO-CARRIER,BROADCAST,MULTICAST,UP> mtu 9000 qdisc mq state DOWN qlen 1000\n"
    other = "2: ens2f0: <BROADCAST,MULTICAST,UP,LOWER_UP> mtu 9000 qdisc mq state UP qlen 1000\n"
    assert cause(alone) == "port-down"
    assert cause(other + alone) == "clean"
