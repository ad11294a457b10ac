"""Status of PCIe devices as `lspci -vvv` prints it: which flags tell of trouble (pciutils, ls-caps.c, ls-ecaps.c).

Flags of errors stay set until somebody clears them. Requests for registers that a device has not (UnsupReq), and
advisory errors for the same, come from enumerating it; receiver errors and damaged packets of the link's own kind
come with its training. What a device in use does not get by itself: time-outs of completions, malformed or
poisoned packets, overflows and errors of the protocol, replays that had to be given up (PCI Express Base
Specification, 6.2 and 7.8.4).
"""

from __future__ import annotations

import re

# uncorrectable errors: of the link's protocol and flow control, of packets, of the device itself
FATAL = frozenset(("DLP", "FCP", "RxOF", "MalfTLP", "ECRC", "TLP", "UncorrIntErr", "PoisonTLPBlocked"))
SERIOUS = FATAL | {"CmpltTO"}
REPLAYED = frozenset(
    ("Rollover", "Timeout")
)  # corrected, but for a packet that was sent again four times, or late
_ON = re.compile(r"(\w+)\+")
_NAMES = ("UESta", "CESta", "DevSta", "DpcSta", "SltSta")


def flags(text: str, name: str) -> frozenset[str] | None:
    """Names of the flags that are set in a row of this name; None where it is another row."""
    return frozenset(_ON.findall(text)) if text.startswith(f"{name}:") else None


def status(text: str) -> tuple[str, str] | None:
    """Return the kind of a row of status and the flags that count; None where it tells nothing."""
    for name in _NAMES:
        on = flags(text, name)
        if on is None:
            continue
        counts = {
            "UESta": on & SERIOUS,
            "CESta": on if on & REPLAYED else frozenset(),
            "DevSta": on & {"FatalErr"},
            "DpcSta": on & {"Trigger"},
            "SltSta": on & {"PowerFlt"},
        }[name]
        return (name, " ".join(sorted(counts))) if counts else None
    return None
