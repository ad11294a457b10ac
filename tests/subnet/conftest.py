"""Fabrics that tests of subnet management share."""

from __future__ import annotations

import pytest
from support.sm_fabrics import two_tiers

from fabrictwin.subnet.agents.agent_state import SubnetState


@pytest.fixture
def state() -> SubnetState:
    return SubnetState(two_tiers())
