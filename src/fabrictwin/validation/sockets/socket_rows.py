"""Published bandwidths and latencies of TCP sockets, and what the closed forms say of each."""

from __future__ import annotations

from pathlib import Path as FilePath
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError

from fabrictwin import catalog
from fabrictwin.base.errors import ConfigError, did_you_mean
from fabrictwin.base.records import record
from fabrictwin.base.units import PS_PER_S, PS_PER_US
from fabrictwin.base.validation_errors import config_errors
from fabrictwin.engines.sockets.request import one_way_ps
from fabrictwin.engines.sockets.stack import Cores, Costs, Network, Path, Processor, Stack, ends, wire
from fabrictwin.engines.sockets.stream import USUAL_WRITE, Streams, stream_bps
from fabrictwin.validation.published_data import Section, read_table, read_texts

TABLE, TEXTS = "sockets.csv", "sockets.yaml"
PROCESSOR = "xeon-8480c"  # all of the catalog's have the figures of one
Whole = Annotated[int, Field(ge=1)]


class Hosts(Section):
    """What bytes pass in both hosts."""

    path: Path = "host"
    cores: Cores = ""


class Link(Section):
    """What joins them."""

    gbps: Annotated[float, Field(gt=0)] = 100.0
    mtu: Annotated[int, Field(ge=576)] | None = None
    network: Network = "ethernet"


class Load(Section):
    """What a test does."""

    streams: Whole = 1
    threads: Whole = 1
    write: Whole = USUAL_WRITE
    size: Whole = 1
    segment: Whole | None = None
    at_once: Annotated[bool, Field(alias="at-once")] = False
    moderated: bool = True


SECTIONS: tuple[type[Section], ...] = (Link, Hosts, Load)


class SocketRow(Section):
    """One published figure; `settings` are keys of the sections above as `key=value`, spaces between."""

    set: str
    row: str
    test: Literal["stream", "request", "one-way"]
    settings: str
    value: Annotated[float, Field(gt=0)]
    unit: Literal["Gb/s", "us", "1/s"]


class SocketSet(Section):
    """One publication."""

    source: str
    note: str = ""


class SocketTexts(Section):
    sets: dict[str, SocketSet]


@record
class SocketPoint:
    """A row with its settings read."""

    row: SocketRow
    link: Link
    hosts: Hosts
    load: Load

    def predicted(self, costs: Costs) -> float:
        """Return what the stack does, in the row's unit."""
        return self._predicted(costs)[0]

    def by(self, costs: Costs) -> str:
        """Return which part sets a stream's bandwidth; empty for requests."""
        return self._predicted(costs)[1]

    def _predicted(self, costs: Costs) -> tuple[float, str]:
        carried = wire(self.link.network, self.link.gbps * 1e9, self.link.mtu or 0)
        passed = ends(self.hosts.path, self.link.network, self.hosts.cores)
        stack = Stack(carried, passed, Processor.of(catalog.chip(PROCESSOR)), costs)
        load, segment = self.load, self.load.segment or 0
        if self.row.test == "stream":
            streams = Streams(load.streams, load.threads, load.write, load.at_once, segment)
            bps, part = stream_bps(stack, streams)
            return bps / 1e9, part
        one = one_way_ps(stack, load.size, segment_bytes=segment, moderated=load.moderated)
        took = one if self.row.test == "one-way" else 2 * one
        return (took / PS_PER_US if self.row.unit == "us" else PS_PER_S / took), ""

    def error(self, costs: Costs) -> float:
        """Return the relative error of what is predicted."""
        return self.predicted(costs) / self.row.value - 1


def read_sockets(folder: FilePath) -> tuple[tuple[SocketPoint, ...], SocketTexts]:
    """Return rows and the sets that they are of. Raises ConfigError with file and line."""
    texts = read_texts(folder / TEXTS, SocketTexts)
    path, points = folder / TABLE, []
    for line, row in read_table(path, SocketRow):
        if row.set not in texts.sets:
            hint = did_you_mean(row.set, texts.sets)
            raise ConfigError(f"got {row.set!r}, expected a key of {TEXTS}{hint}", file=path, line=line, key="set")
        if (row.test == "stream") != (row.unit == "Gb/s"):
            raise ConfigError(f"got {row.unit!r} for {row.test}", file=path, line=line, key="unit")
        points.append(SocketPoint(row, *_settings(row.settings, path, line)))
    return tuple(points), texts


def _settings(text: str, path: FilePath, line: int) -> tuple[Link, Hosts, Load]:
    """Return a row's settings by section. Raises ConfigError."""
    keys = {field.alias or name: kind for kind in SECTIONS for name, field in kind.model_fields.items()}
    given: dict[type[Section], dict[str, Any]] = {kind: {} for kind in SECTIONS}
    for part in text.split():
        key, equals, value = part.partition("=")
        if key not in keys or not equals:
            known = ", ".join(keys)
            hint = did_you_mean(key, keys)
            message = f"got {part!r}, expected key=value with a key of {known}{hint}"
            raise ConfigError(message, file=path, line=line, key="settings")
        given[keys[key]][key] = value
    found = []
    for kind, values in given.items():
        try:
            found.append(kind.model_validate(values))
        except ValidationError as error:
            first = config_errors(error, kind, data=values)[0]
            raise ConfigError(first.message, file=path, line=line, key=f"settings {first.key}") from None
    link, hosts, load = found
    assert isinstance(link, Link)
    assert isinstance(hosts, Hosts)
    assert isinstance(load, Load)
    return link, hosts, load
