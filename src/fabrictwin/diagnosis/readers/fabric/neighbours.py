"""Neighbours of switches: BGP and BFD, as SONiC and FRR's own shell print them.

FRR's `show bgp neighbors` and `show bfd peers` tell each neighbour over several rows; SONiC's `show bfd summary`
is a table (sonic-utilities, show/main.py; FRR, bgp_vty.c and bfdd_vty.c).
"""

from __future__ import annotations

import re

from fabrictwin.diagnosis.evidence import Subject
from fabrictwin.diagnosis.readers.line_reader import LineReader

OPENS_SUMMARY = r"^\s*Neighbh?or\s+V\s+AS\s+MsgRcvd"
OPENS_NEIGHBOUR = (
    r"^BGP neighbor(?: on \S+| is)|^BFD Peers?:\s*$|^Session Id\s+LocalAddress|"
    r"^Peer Addr\s+Interface\s+Vrf\s+State"
)

_ADDRESS = re.compile(r"\d+\.\d+\.\d+\.\d+|[0-9a-fA-F]*:[0-9a-fA-F:.]+")
_STATE = re.compile(r"(?i)up|down|init|(?:admin_?down|shutdown)")  # of BFD


class BgpSummary(LineReader):
    """Reads the neighbours of `show ip bgp summary`, of SONiC and of FRR's own shell."""

    _state = 0  # the column of a neighbour's state

    def line(self, text: str) -> bool:
        """Take a line; False after the table."""
        words = text.split()
        if words[1:3] == ["V", "AS"]:  # SONiC spelled the first name Neighbhor for years
            self._state = words.index("State/PfxRcd") if "State/PfxRcd" in words else 0
            return True
        if not self._state or len(words) <= self._state or words[1] not in ("4", "6"):
            return set(text) <= set("- ")
        off = words[self._state + 1 : self._state + 2] == ["(Admin)"]  # by who runs the switch
        if not off and not words[self._state].isdigit():
            self.sink.add("bgp.away", (words[self._state][:20], f"AS {words[2]}"), Subject(device=words[0]))
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
