"""Slurm's topology.conf and gres.conf."""

from __future__ import annotations

import re
from itertools import islice

from fabrictwin.base.errors import ConfigError
from fabrictwin.configuration.model.cluster import Slurm, SlurmNode, SlurmSwitch
from fabrictwin.configuration.readers.problems import Problems

MOST_NAMES = 100_000


def names_of(text: str) -> list[str]:
    """Return the names of a host list, `host-[0-3,7],login`, at most MOST_NAMES. Raises ValueError."""
    found: list[str] = []
    for part in re.findall(r"[^,\[]+(?:\[[^\]]*\])?[^,\[]*", text):
        span = re.fullmatch(r"([^\[]*)\[([0-9,\-]*)\](.*)", part)
        if span is None:
            found.append(part.strip())
            continue
        for piece in span[2].split(","):
            low, dash, high = piece.partition("-")
            if not low.isdecimal() or (dash and not high.isdecimal()) or len(low) > 9 or len(high) > 9:
                raise ValueError(f"got {part[:60]!r}, expected numbers in brackets, such as host-[0-3,7]")
            last = int(high) if dash else int(low)
            width = len(low)
            numbers = islice(range(int(low), last + 1), MOST_NAMES - len(found) + 1)
            found += [f"{span[1]}{n:0{width}d}{span[3]}" for n in numbers]
            if len(found) > MOST_NAMES:
                raise ValueError(f"got more than {MOST_NAMES} names")
    return [name for name in found if name]


def read_slurm(text: str, file: str) -> tuple[Slurm, Problems]:
    """Return the switches and devices of a file. Raises ConfigError where it has neither."""
    problems = Problems(file)
    switches: list[SlurmSwitch] = []
    gres: list[SlurmNode] = []
    seen, plugin = False, ""
    for line, raw in enumerate(text.splitlines(), 1):
        content = raw.partition("#")[0].strip()
        if not content:
            continue
        row = {k.lower(): v for k, e, v in (word.partition("=") for word in content.split()) if e}
        try:
            if "switchname" in row:
                seen = True
                switches.append(
                    SlurmSwitch(
                        row["switchname"],
                        tuple(names_of(row.get("nodes", ""))),
                        tuple(names_of(row.get("switches", ""))),
                    )
                )
            elif "name" in row and "nodename" in row:
                seen = True
                names = tuple(names_of(row["nodename"]))
                gres.append(SlurmNode(names, row["name"], row.get("type", ""), row.get("file", "")))
            elif "topologyplugin" in row or "grestypes" in row:
                seen = True
                plugin = row.get("topologyplugin", plugin)
        except ValueError as error:
            problems.add("syntax", content[:40], str(error), line)
    if not seen:
        raise ConfigError("got no SwitchName= and no NodeName=, expected Slurm's files", file=file, line=1)
    return Slurm(tuple(switches), tuple(gres), plugin, file), problems
