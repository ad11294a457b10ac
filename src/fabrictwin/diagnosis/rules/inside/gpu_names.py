"""Names of GPUs by which it is known how their boards join them."""

from __future__ import annotations

import re

from fabrictwin import catalog
from fabrictwin.diagnosis.expectation.hardware import gpu_of, host_of

BASEBOARD = 8  # GPUs of an HGX baseboard with NVSwitches
# GPUs that no NVSwitch joins, by a word of their names
STANDS_ALONE = re.compile(
    r"GeForce|\bRTX\b|Quadro|TITAN|Tesla [TPKM]\d|\b(?:T4|L4|L40S?|A2|A10G?|A16|A30|A40)\b|PCI-?E|"
    r"\bH[128]00 NVL\b",
    re.IGNORECASE,
)


def is_on_baseboard(name: str) -> bool:
    """Return true for a GPU, by its product's name, whose host in the catalog has eight behind NVSwitches."""
    host = host_of(gpu_of(name), efa=False)
    nodes = catalog.host(host).nodes if host is not None else None
    return nodes is not None and nodes.gpu == BASEBOARD and nodes.nvswitch > 0
