"""Every kind of entry by the name that data files and people use, and all figures of an entry."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pydantic import BaseModel

from fabrictwin.catalog.devices import FabricPreset, Nic, Switch, VerbsDevice
from fabrictwin.catalog.failures import FailureLog
from fabrictwin.catalog.figures import Entry, Figure, SourcedPart
from fabrictwin.catalog.gpus import Gpu, ServerPower
from fabrictwin.catalog.host_stack import Framework, HostStack
from fabrictwin.catalog.hosts import Chip, Host
from fabrictwin.catalog.links.host_links import CpuLink, Nvlink, Pcie
from fabrictwin.catalog.links.link_speeds import Ethernet, Headers, Infiniband, Medium

KINDS: dict[str, type[Entry]] = {
    "gpu": Gpu,
    "host": Host,
    "nic": Nic,
    "switch": Switch,
    "nvlink": Nvlink,
    "pcie": Pcie,
    "infiniband": Infiniband,
    "ethernet": Ethernet,
    "headers": Headers,
    "cable": Medium,
    "fabric": FabricPreset,
    "chip": Chip,
    "cpu_link": CpuLink,
    "verbs_device": VerbsDevice,
    "failures": FailureLog,
    "host_stack": HostStack,
    "framework": Framework,
    "server_power": ServerPower,
}

Sourced = Figure[Any] | SourcedPart


def figures(entry: BaseModel, path: str = "") -> Iterator[tuple[str, Sourced]]:
    """Everything in an entry that carries a source, with its key path."""

    def walk(value: object, at: str) -> Iterator[tuple[str, Sourced]]:
        if isinstance(value, Figure | SourcedPart):
            yield at, value
        elif isinstance(value, BaseModel):
            yield from figures(value, at)
        elif isinstance(value, dict):
            for key, item in value.items():
                yield from walk(item, f"{at}.{key}")
        elif isinstance(value, tuple):
            for i, item in enumerate(value):
                yield from walk(item, f"{at}[{i}]")

    for field in type(entry).model_fields:
        yield from walk(getattr(entry, field), f"{path}.{field}" if path else field)
