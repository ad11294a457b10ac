"""Neighbours of switches: BGP and BFD, as SONiC and FRR's own shell print them.

FRR's `show bgp neighbors` and `show bfd peers` tell each neighbour over several rows; SONiC's `show bfd summary`
is a table (sonic-utilities, show/main.py; FRR, bgp_vty.c and bfdd_vty.c).
"""

from __future__ import annotations

import re

from fabrictwin.diagnosis.evidence import Sink, Subject
from fabrictwin.diagnosis.readers.line_reader import LineReader

OPENS_SUMMARY = r"^\s*(?:Description\s+)?Neighbh?or\s+(?:Spk\s+)?(?:V\s+)?AS\s+MsgRcvd"
OPENS_NEIGHBOUR = (
    r"^BGP neighbor(?: on \S+| is)|^BFD Peers?:\s*$|^Session Id\s+LocalAddress|"
    r"^Peer Addr\s+Interface\s+Vrf\s+State"
)
OPENS_OSPF = r"^\s*Neighbor ID\s+(?:\w+ +){0,2}Pri\w*\s+State|^\s*Address\s+Interface\s+State\s+ID\s+Pri\s+Dead"
OPENS_JUNOS = r"^Peer\s+AS\s+InPkt\s+OutPkt"

_ADDRESS = re.compile(r"\d+\.\d+\.\d+\.\d+|[0-9a-fA-F]*:[0-9a-fA-F:.]+")
_ADDRESS_OR_NAME = re.compile(rf"{_ADDRESS.pattern}|[A-Za-z][\w.-]*(?:\([\w.-]*\))?")
_STATE = re.compile(r"(?i)up|down|init|(?:admin_?down|shutdown)")  # of BFD


class BgpSummary(LineReader):
    """Reads the neighbours of `show ip bgp summary`, of SONiC and of FRR's own shell."""

    _state = 0  # the column of a neighbour's state
    _peer = ""

    def __init__(self, sink: Sink) -> None:
        super().__init__(sink)
        self._names: list[str] = []

    def line(self, text: str) -> bool:
        """Take a line; False after the table."""
        words = text.split()
        if "MsgRcvd" in words and "AS" in words:  # SONiC spelled the first name Neighbhor for years
            self._names = words
            self._state = next(
                (words.index(one) for one in ("State/PfxRcd", "St/PfxRcd", "State") if one in words), 0
            )
            return True
        if len(words) == 1 and _ADDRESS.fullmatch(words[0]):
            self._peer = words[0]  # a long address has a row of its own
            return True
        if self._peer:
            words, self._peer = [self._peer, *words], ""
        at = next((n for n, name in enumerate(self._names) if name.startswith("Neighb")), 0)
        place = next((n for n, word in enumerate(words) if _ADDRESS.fullmatch(word)), at)
        words = words[max(place - at, 0) :]  # a description before it may have several words
        if not self._state or len(words) <= self._state or not _ADDRESS_OR_NAME.fullmatch(words[at]):
            return set(text) <= set("- ")
        as_number = words[self._names.index("AS")]
        if not re.fullmatch(r"\d+(?:\.\d+)?", as_number):
            return False
        state = words[self._state]
        off = words[self._state + 1 : self._state + 2] == ["(Admin)"]  # by who runs the switch
        off = off or bool(re.search(r"(?i)\(Admin\)|^Shut", state))
        if not off and not state.isdigit() and not state.startswith("Estab"):
            self.sink.add("bgp.away", (state[:20], f"AS {as_number}"), Subject(device=words[at]))
        self.sink.add("bgp.read", True)
        return True


class Neighbours(LineReader):
    """Reads neighbours one at a time, and tables of BFD's peers."""

    _peer = ""
    _column = 0  # of a table: where the state stands
    _is_off = False  # whoever runs the switch has shut it down

    def line(self, text: str) -> bool:
        """Take a line; False where it is none of the lists'."""
        bare = text.strip()
        words = bare.split()
        head = re.match(r"BGP neighbor (?:is|on) ([\w.:-]+)|peer ([\w.:]+)", bare)
        state = re.match(r"BGP state = (\w+)(.*)|Status: (\w+)$", bare)
        if re.match(OPENS_NEIGHBOUR, bare) and "BGP" not in bare:
            names = re.split(r"\s{2,}", bare)
            self._column = next((n for n, name in enumerate(names) if name in ("State", "Status")), 0)
            self.sink.add("bgp.read", True)
        elif head is not None:
            self._peer, self._column, self._is_off = head[1] or head[2], 0, False
            self.sink.add("bgp.read", True)
        elif "Administratively shut down" in bare:
            self._is_off = True
        elif state is not None and self._peer:
            self._keep(self._peer, state[1] or state[3])
        elif self._column and len(words) > self._column and _STATE.fullmatch(words[self._column]):
            peer = words[0] if _ADDRESS.fullmatch(words[0]) else words[2]
            self._keep(peer, words[self._column])
        else:
            return not bare or bool(self._peer) or set(bare) <= set("- ") or bare.startswith(("Total", "Flags"))
        return True

    def _keep(self, peer: str, state: str) -> None:
        if state.lower() not in ("established", "up", "admindown", "shutdown") and not self._is_off:
            self.sink.add("bgp.away", (state[:20], "BFD" if self._column else ""), Subject(device=peer[:60]))


class OspfNeighbours(LineReader):
    """Reads the neighbours of OSPF: `Full` exchanges routes, two that are not designated stay at `2-Way`."""

    _states = ("Down", "Attempt", "Init", "ExStart", "Exchange", "Loading")

    def line(self, text: str) -> bool:
        """Take a line; False after the table."""
        words = text.split()
        if not words or re.match(OPENS_OSPF, text):
            return True
        if not _ADDRESS.fullmatch(words[0]):
            return bool(re.match(r"(?:Total|OSPF|Address|Neighbor|VRF|-)", words[0]))
        self.sink.add("bgp.read", True)
        state = next((word.partition("/")[0] for word in words[1:6] if _OSPF_STATE.match(word)), "")
        if state.lower() in (one.lower() for one in self._states):
            self.sink.add("bgp.away", (state, "OSPF"), Subject(device=words[0]))
        return True


_OSPF_STATE = re.compile(r"(?i)(?:Full|2-?Way|Two-?way|Down|Attempt|Init|Ex-?Start|Exchange|Loading)\b")


class JunosPeers(LineReader):
    """Reads the peers of Junos' `show bgp summary`, whose last words are states or counts of routes."""

    def line(self, text: str) -> bool:
        """Take a line; False after the table."""
        words = text.split()
        if not words or re.match(OPENS_JUNOS, text):
            return True
        if not _ADDRESS.fullmatch(words[0]) or len(words) < 7:
            return text[:1] == " "
        self.sink.add("bgp.read", True)
        state = next((word for word in words[6:] if word in _IDLE), "")
        if state:
            self.sink.add("bgp.away", (state, f"AS {words[1]}"), Subject(device=words[0]))
        return True


_IDLE = ("Idle", "Connect", "Active", "OpenSent", "OpenConfirm")
