"""Values of one GPU in `nvidia-smi -q` and `-q -x` that mean trouble by themselves or beside each other (nvml.h).

Names are those of the text, in lower case; the tags of the XML form say the same with lines between the words, and
some in other words. Margins (`T.Limit`) count down to the temperature at which the GPU slows down.
"""

from __future__ import annotations

import re

from fabrictwin.diagnosis.evidence import Place, Sink, Subject

# tags of the XML form (nvsmi_device's DTD) whose words are others than the text's
_TAGS = {
    "gpu temp": "gpu current temp",
    "gpu temp tlimit": "gpu t.limit temp",
    "gpu temp slow threshold": "gpu slowdown temp",
    "gpu temp slow tlimit threshold": "gpu slowdown t.limit temp",
    "power limit": "current power limit",
    "replay rollover counter": "replay number rollovers",
    "row remapper histogram none": "none",
}
# values that are a fault whatever the others are: the kind of fact, and the words it is told in
_TELLS = {
    ("drain and reset recommended", "yes"): ("smi.recovery", "Drain and Reset"),
    ("sram threshold exceeded", "yes"): ("smi.worn", "SRAM Threshold Exceeded"),
    ("channel repair pending", "yes"): ("smi.repair", "Channel Repair Pending"),
    ("tpc repair pending", "yes"): ("smi.repair", "TPC Repair Pending"),
    ("compute mode", "prohibited"): ("smi.closed", "Compute Mode: Prohibited"),
    ("bandwidth", "degraded"): ("smi.link-health", "Bandwidth: Degraded"),
    ("route unhealthy", "true"): ("smi.link-health", "Route Unhealthy"),
    ("access timeout recovery", "true"): ("smi.link-health", "Access Timeout Recovery"),
    ("route recovery in progress", "true"): ("smi.link-health", "Route Recovery in progress"),
}
_REASON = re.compile(r"clocks (?:event|throttle) reasons? ")
_NUMBER = re.compile(r"(-?\d{1,18}(?:\.\d{1,6})?)(?: (?:C|W|us|bank\(s\)))?$")
CAPPED = 0.9  # of the default limit of power


def plain_name(name: str) -> str:
    """Return a name as the text has it, in lower case, of the text's or of a tag's words."""
    words = _REASON.sub("", name.replace("_", " ").lower())
    return _TAGS.get(words, words)


class GpuReadings:
    """Values of a GPU, one after the other."""

    def __init__(self, sink: Sink) -> None:
        self.sink = sink
        self._values: dict[str, tuple[float, Place]] = {}

    def value(self, name: str, value: str, gpu: str) -> None:
        """Take a value."""
        name = plain_name(name)
        tells = _TELLS.get((name, value.lower()))
        if tells is not None:
            self.sink.add(tells[0], tells[1], Subject(device=gpu))
            return
        number = _NUMBER.match(value)
        if number is not None and name in _COMPARED:
            self._values.setdefault(name, (float(number[1]), self.sink.here()))

    def end(self, gpu: str) -> None:
        """Compare the values of a GPU, which are all there."""
        values, self._values = self._values, {}
        get = {name: number for name, (number, _) in values.items()}.get
        for warmest, at in (
            ("gpu current temp", "gpu slowdown temp"),
            ("gpu slowdown t.limit temp", "gpu t.limit temp"),
        ):
            now, bound = get(warmest), get(at)
            if now is not None and bound is not None and 0 != bound <= now:
                words = f"{warmest} {now:g} C, {at} {bound:g} C"
                self.sink.add("smi.hot-reading", words, Subject(device=gpu), place=values[warmest][1])
        limit, default = get("current power limit"), get("default power limit")
        if limit is not None and default is not None and 0 < limit < CAPPED * default:
            self.sink.add(
                "smi.capped", (limit, default), Subject(device=gpu), place=values["current power limit"][1]
            )
        for name, kind in (("replay number rollovers", "smi.rollovers"), ("none", "smi.no-spares")):
            if get(name, 0.0):
                self.sink.add(kind, int(values[name][0]), Subject(device=gpu), place=values[name][1])


_COMPARED = frozenset((
    "gpu current temp", "gpu slowdown temp", "gpu t.limit temp", "gpu slowdown t.limit temp",
    "current power limit", "default power limit", "replay number rollovers", "none",
))  # fmt: skip
