"""The living thing: fabric, tables, clock and session together."""

from fabrictwin.twin.twin import Fidelity, Twin

__all__ = ["Fidelity", "Twin"]
