"""Requests to the subnet management agent of one node."""

from __future__ import annotations

from fabrictwin.subnet.agents.agent_state import SubnetState
from fabrictwin.subnet.agents.sma import SubnetAgent
from fabrictwin.subnet.wire.header import LidSmp, Method


class Agent:
    """Requests to one node, by the attribute's number."""

    def __init__(self, state: SubnetState, name: str, port: int = 1) -> None:
        self.state, self.agent = state, SubnetAgent(state)
        self.m = state.find(name)
        self.entry = state.base[self.m] + port

    def ask(
        self, method: int, attribute: int, modifier: int = 0, data: bytes = b"", **more
    ) -> tuple[int, bytes] | None:
        mad = LidSmp(
            method=method, attribute=attribute, modifier=modifier, data=data.ljust(64, b"\0"), tid=9, **more
        )
        answer = self.agent.answer(self.m, self.entry, mad.encode(), more.pop("now", 0))
        if answer is None:
            return None
        back = LidSmp.decode(answer)
        assert (back.method, back.tid, back.attribute, back.modifier) == (0x81, 9, attribute, modifier)
        return back.status, back.data

    def get(self, attribute: int, modifier: int = 0) -> tuple[int, bytes]:
        return self.ask(Method.GET, attribute, modifier)

    def put(self, attribute: int, modifier: int, data: bytes) -> tuple[int, bytes]:
        return self.ask(Method.SET, attribute, modifier, data)
