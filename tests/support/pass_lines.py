"""Passes of a layer, and the same written down by hand."""

from __future__ import annotations

from fabrictwin.workload.layers.pass_script import Collective, Compute, Script, Start, Wait


def written(script: Script) -> list[tuple]:
    """A script as tuples: kernels with their part, communication begun, communication waited for."""
    found = []
    for item in script.items:
        if isinstance(item, Compute):
            found.append((item.part, item.cost.ps, item.cost.kernels))
        elif isinstance(item, Start):
            c = item.collective
            found.append(("begin", item.key, c.group, c.kind, c.size_bytes, c.sms))
        else:
            assert isinstance(item, Wait)
            found.append(("wait", item.key))
    return found


def run(*steps) -> list[tuple]:
    """The list by hand: (part, costs...), or a communication (group, kind, bytes, SMs) for itself, numbered."""
    found, key = [], 0
    for step in steps:
        if isinstance(step, Collective):
            found += [("begin", key, step.group, step.kind, step.size_bytes, step.sms), ("wait", key)]
            key += 1
        elif step[0] == "begin":
            c = step[1]
            found.append(("begin", key, c.group, c.kind, c.size_bytes, c.sms))
            key += 1
        elif step[0] == "wait":
            found.append(step)
        else:
            total = sum(step[2:], step[1])
            found.append((step[0], total.ps, total.kernels))
    return found


def fw(*costs):
    return ("forward", *costs)


def bw(*costs):
    return ("backward", *costs)


def wt(*costs):
    return ("weight", *costs)


def tensor(kind, size, sms=0):
    return Collective("tp", kind, size, sms)
