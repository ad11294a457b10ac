"""A small fabric as ibnetdiscover prints it."""

from __future__ import annotations

from pathlib import Path

# Two leaves and a spine; a box on each leaf; a storage host with a card of two ports, one of which says nothing
# of itself; a subnet manager's host on the spine; an aggregation node; a chassis's external port; a loop cable.
TEXT = Path(__file__).with_name("ibnetdiscover.txt").read_text(encoding="utf-8")
