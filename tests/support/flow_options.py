"""Options of flows by the names of single ones."""

from __future__ import annotations

from typing import Any

from fabrictwin.base.grouped import grouped
from fabrictwin.engines.base.messages import PLAIN, FlowOptions


def flow_options(**values: Any) -> FlowOptions:
    """Return the options of a flow; what is not named is as usual."""
    return grouped(PLAIN, values)
