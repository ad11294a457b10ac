"""The living thing: fabric, tables, clock and engine together."""

from fabrictwin.base.capabilities import Fidelity
from fabrictwin.twin.twin import Twin

__all__ = ["Fidelity", "Twin"]
