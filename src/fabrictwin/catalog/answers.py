"""The questions one may ask the catalog. Files are read at the first question about their kind.

Beside its own it reads those of the folder that FABRICTWIN_CATALOG names: hardware that a user adds.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Container, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, TypeVar, cast

from pydantic import ValidationError

from fabrictwin.base.errors import ConfigError, did_you_mean, quoted
from fabrictwin.base.textfile import read_text
from fabrictwin.base.validation_errors import config_errors
from fabrictwin.base.yamlfile import Lines, read_bundled, read_yaml
from fabrictwin.catalog.devices import FabricPreset, Nic, PortMode, Switch, VerbsDevice
from fabrictwin.catalog.entry_kinds import KINDS, figures
from fabrictwin.catalog.failures import FailureLog
from fabrictwin.catalog.figures import Entry, Source
from fabrictwin.catalog.gpus import Gpu, ServerPower
from fabrictwin.catalog.host_stack import Framework, HostStack
from fabrictwin.catalog.hosts import Chip, Host
from fabrictwin.catalog.links.host_links import CpuLink, LinkType, Nvlink, Pcie
from fabrictwin.catalog.links.link_speeds import Ethernet, Headers, Infiniband, Medium

E = TypeVar("E", bound=Entry)

_PLURALS = {
    "infiniband": "InfiniBand speeds",
    "ethernet": "Ethernet speeds",
    "headers": "headers",
    "switch": "switches",
    "fabric": "fabrics",
    "failures": "failure logs",
    "gpu": "GPUs",
    "nic": "NICs",
    "verbs_device": "what adapters tell programs",
    "nvlink": "NVLink generations",
    "pcie": "PCIe generations",
    "cpu_link": "processor links",
    "host_stack": "network stacks",
    "framework": "frameworks",
    "server_power": "servers with figures of power",
}
_LANES = (1, 2, 4, 8, 16)
FOLDER = "FABRICTWIN_CATALOG"
_PCIE_LINK = re.compile(r"pcie-(gen\d+)-x(\d+)")


def _unknown(got: str, known: tuple[str, ...], what: str) -> ConfigError:
    lowered = {name.lower(): name for name in known}
    hint = f", did you mean {lowered[got.lower()]!r}?" if got.lower() in lowered else did_you_mean(got, known)
    return ConfigError(f"got {got!r}, expected one of the {what} in the catalog ({', '.join(known)}){hint}")


class _Entries(Mapping[str, Entry]):
    """Entries of the catalog's own file, each built when it is asked for, and behind them the user's own."""

    def __init__(
        self, model: type[Entry], rows: Mapping[str, Mapping[str, Any]], own: Mapping[str, Entry]
    ) -> None:
        self._model, self._rows, self._own = model, rows, own
        self._made: dict[str, Entry] = {**own}

    def __getitem__(self, name: str) -> Entry:
        if name not in self._made:
            row = self._rows[name]
            context = {"source": row.get("source", "")}
            self._made[name] = self._model.model_validate({**row, "name": name}, context=context)
        return self._made[name]

    def __iter__(self) -> Iterator[str]:
        return iter((*self._rows, *self._own))

    def __len__(self) -> int:
        return len(self._rows) + len(self._own)


def read_entries(text: str, *, kind: str, file: str) -> dict[str, Entry]:
    """The entries of one data file. Raises ConfigError with file, line and key."""
    data, lines = read_yaml(text, file)
    if not isinstance(data, dict):
        raise ConfigError(f"expected entries by name, such as the {kind} ones of the catalog", file=file, line=1)
    model = KINDS[kind]
    entries: dict[str, Entry] = {}
    for name, raw in data.items():
        if not isinstance(raw, dict):
            raise ConfigError(f"got {raw!r}, expected an entry", file=file, line=lines[(name,)], key=name)
        if "name" in raw:
            line = lines[(name, "name")]
            raise ConfigError("an entry's name is its key", file=file, line=line, key=f"{name}.name")
        try:
            entry = model.model_validate({**raw, "name": name}, context={"source": raw.get("source", "")})
        except ValidationError as error:
            raise config_errors(error, model, data=raw, file=file, lines=lines, path=(name,))[0] from None
        for key, figure in figures(entry):
            if figure.source and figure.source not in sources():
                where = f"{name}.{key}"
                known = sources()
                raise ConfigError(
                    f"got source {figure.source!r}, expected a key of sources.yaml"
                    f"{did_you_mean(figure.source, known)}",
                    file=file,
                    line=lines[(name,)],
                    key=where,
                )
        entries[name] = entry
    return entries


def own_file(file: str) -> Path | None:
    """A data file of the user's own beside the catalog's: of the folder that FABRICTWIN_CATALOG names.

    Raises ConfigError for a folder that is none, and for files in it that nothing would read.
    """
    named = os.environ.get(FOLDER)
    if not named:
        return None
    folder, known = Path(named), (*KINDS, "sources")
    if not folder.is_dir():
        raise ConfigError(f"got {named!r}, expected a folder of catalog files", key=FOLDER)
    for path in sorted(folder.glob("*.y*ml")):
        if path.suffix != ".yaml" or path.stem not in known:
            hint = did_you_mean(path.stem, known)
            raise ConfigError(f"expected one of {', '.join(known)} and .yaml as its name{hint}", file=path)
    return folder / file if (folder / file).is_file() else None


@cache
def sources() -> dict[str, Source]:
    """Every source by its key, the user's own among them."""
    own = own_file("sources.yaml")
    rows = read_bundled("fabrictwin.catalog", "sources.yaml")
    result: dict[str, Source] = {key: Source.model_validate(raw) for key, raw in rows.items()}
    if own is not None:
        file = str(own)
        data, lines = read_yaml(read_text(own), file)
        if not isinstance(data, dict):
            raise ConfigError("expected sources by name, each with title and url", file=file, line=1)
        for key, raw in data.items():
            _once(key, result, file, lines)
            try:
                result[key] = Source.model_validate(raw)
            except ValidationError as error:
                raise config_errors(error, Source, data=raw, file=file, lines=lines, path=(key,))[0] from None
    return result


def _once(name: str, known: Container[str], file: str, lines: Lines) -> None:
    if name in known:
        message = "the catalog has an entry of that name already, expected another"
        raise ConfigError(message, file=file, line=lines[(name,)], key=name)


@cache
def _kind(kind: str) -> Mapping[str, Entry]:
    file = f"{kind}.yaml"
    bundled, own = read_bundled("fabrictwin.catalog", file), own_file(file)
    if own_file("sources.yaml") is not None:
        sources()  # what is wrong there is said whatever is asked
    if own is None:
        return _Entries(KINDS[kind], bundled, {})
    text = read_text(own)
    more = read_entries(text, kind=kind, file=str(own))
    for name in more:
        _once(name, bundled, str(own), read_yaml(text, str(own))[1])
    return _Entries(KINDS[kind], bundled, more)


def names(kind: str) -> tuple[str, ...]:
    """The names of a kind's entries, in the order of the data file."""
    if kind not in KINDS:
        raise ConfigError(f"got {kind!r}, expected one of {', '.join(KINDS)}{did_you_mean(kind, KINDS)}")
    return tuple(_kind(kind))


def entries() -> Iterator[tuple[str, str, Entry]]:
    """Every entry as (kind, name, model)."""
    for kind in KINDS:
        for name, entry in _kind(kind).items():
            yield kind, name, entry


def find(name: str) -> list[tuple[str, Entry]]:
    """Every (kind, entry) of that name or alias; a PCIe link's name finds its generation. Raises ConfigError."""
    match = _PCIE_LINK.fullmatch(name)
    wanted = match[1] if match else name
    found = [(kind, entry) for kind, entry_name, entry in entries() if entry_name == wanted]
    found = found or [(kind, entry) for kind, _, entry in entries() if wanted.lower() in _aliases(entry)]
    if not found:
        known = tuple(dict.fromkeys(entry_name for _, entry_name, _ in entries()))
        hint = did_you_mean(name, known)
        raise ConfigError(f"got {quoted(name)}, expected a name that `fabrictwin catalog list` shows{hint}")
    return found


def _aliases(entry: Entry) -> tuple[str, ...]:
    return tuple(getattr(entry, "aliases", ()))


def _one(kind: str, name: str, model: type[E]) -> E:
    table = _kind(kind)
    if name not in table:
        named = (entry for entry in table.values() if name.lower() in _aliases(entry))
        if (found := next(named, None)) is not None:
            return cast(E, found)
        raise _unknown(name, tuple(table), _PLURALS.get(kind, f"{kind}s"))
    return cast(E, table[name])


def _by_name(kind: str, model: type[E]) -> Callable[[str], E]:
    """Return the question for an entry of a kind by its name or an alias, which raises ConfigError for another."""
    return lambda name: _one(kind, name, model)


gpu = _by_name("gpu", Gpu)
nic = _by_name("nic", Nic)
verbs_device = _by_name("verbs_device", VerbsDevice)
switch = _by_name("switch", Switch)
nvlink = _by_name("nvlink", Nvlink)
pcie = _by_name("pcie", Pcie)  # a generation, such as gen4
infiniband = _by_name("infiniband", Infiniband)
ethernet = _by_name("ethernet", Ethernet)
headers = _by_name("headers", Headers)  # bytes per packet of infiniband, ethernet; RoCE v2 takes fields of both
failures = _by_name("failures", FailureLog)
fabric = _by_name("fabric", FabricPreset)  # a network to compare with others
chip = _by_name("chip", Chip)
cpu_link = _by_name("cpu_link", CpuLink)
host_stack = _by_name("host_stack", HostStack)  # an operating system, such as linux
framework = _by_name("framework", Framework)

server_power = _by_name("server_power", ServerPower)  # by the host's name, such as power-dgx-h200

_defined: dict[str, Host] = {}


def host(name: str) -> Host:
    return _defined[name] if name in _defined else _one("host", name, Host)


def define_host(name: str, data: dict[str, Any]) -> Host:
    """Know one more host, described elsewhere; its name tells its content. Raises pydantic's ValidationError."""
    entry = Host.model_validate({**data, "name": name}, context={"source": data.get("source", "derived")})
    return _defined.setdefault(name, entry)


def defined_hosts() -> dict[str, Host]:
    """The hosts that were defined beside the catalog's."""
    return dict(_defined)


@cache
def link(name: str) -> LinkType:
    """Any link inside a host by its name: `nvlink3`, `pcie-gen4-x16`, `xgmi`. Raises ConfigError."""
    match = _PCIE_LINK.fullmatch(name)
    if match and match[1] in _kind("pcie") and int(match[2]) in _LANES:
        return pcie(match[1]).link_type(int(match[2]))
    if name in _kind("nvlink"):
        return nvlink(name).link_type()
    if name in _kind("cpu_link"):
        return cpu_link(name).link_type()
    known = (*names("nvlink"), *(f"pcie-{gen}-x16" for gen in names("pcie")), *names("cpu_link"))
    raise _unknown(name, known, "links")


@cache
def reckoned_rate(name: str) -> int:
    """Bits per second that NCCL counts a link inside a host as, by the link's name. Raises ConfigError."""
    match = _PCIE_LINK.fullmatch(name)
    if match and match[1] in _kind("pcie") and int(match[2]) in _LANES:
        return pcie(match[1]).reckoned_rate.value * int(match[2])
    return link(name).payload_rate_bps


def infiniband_rate(speed: str, width: int = 4) -> int:
    """Data rate in bits per second: lane rate × lanes × line code. Raises ConfigError."""
    entry = infiniband(speed)
    if width not in entry.widths:
        widths = ", ".join(f"{w}x" for w in entry.widths)
        raise ConfigError(f"got an InfiniBand width of {width}, expected one of {widths}")
    return entry.rate_bps(width)


def ethernet_rate(name: str) -> int:
    """Data rate in bits per second. Raises ConfigError."""
    return ethernet(name).rate_bps


def port_rate(mode: PortMode) -> int:
    """Data rate in bits per second of a switch port in one of its modes. Raises ConfigError."""
    if mode.technology == "infiniband":
        return infiniband_rate(mode.speed, mode.width)
    return ethernet_rate(mode.speed)


@cache
def medium(length_mm: int, rate_bps: int) -> Medium:
    """Choose what one would cable a run with: the first medium of the file that reaches. Raises ConfigError."""
    media = [cast(Medium, entry) for entry in _kind("cable").values()]
    for candidate in media:
        if length_mm <= candidate.reach_mm(rate_bps):
            return candidate
    longest = max(candidate.reach_mm(rate_bps) for candidate in media)
    raise ConfigError(
        f"got a cable of {length_mm / 1000:g} m at {rate_bps / 1e9:g} Gb/s, "
        f"expected at most {longest / 1000:g} m at that rate"
    )


def cable_latency_ps(length_mm: int, rate_bps: int) -> int:
    """Propagation and transceivers of the medium chosen for the run, in picoseconds."""
    return medium(length_mm, rate_bps).latency_ps(length_mm)


@cache
def gemm_efficiency(gpu_name: str, precision: str) -> tuple[tuple[int, int, int, float], ...]:
    """Measured matrix products as (m, n, k, FLOP/s), smallest first. Raises ConfigError."""
    tables = gpu(gpu_name).gemm
    if precision not in tables:
        raise ConfigError(
            f"got {precision!r}, expected one of the precisions measured on {gpu_name} "
            f"({', '.join(tables)}){did_you_mean(precision, tables)}"
        )
    table = tables[precision]
    if not table.like:
        return table.rows()
    other_gpu, _, other_precision = table.like.partition("/")
    factor = float(table.factor)
    rows = gemm_efficiency(other_gpu, other_precision)
    return tuple((m, n, k, flops * factor) for m, n, k, flops in rows)
