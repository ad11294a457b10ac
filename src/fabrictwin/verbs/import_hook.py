"""Make `import pyverbs...` resolve to the twin, in this process."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import TYPE_CHECKING

from fabrictwin.verbs import current_host
from fabrictwin.verbs.adapter.world import World
from fabrictwin.verbs.attributes.unsupported import provider_module

if TYPE_CHECKING:
    from fabrictwin.base.capabilities import Fidelity
    from fabrictwin.engines.base.engine import Engine
    from fabrictwin.twin import Twin

_ROOM = "fabrictwin.verbs.pyverbs"
_PUBLIC = "pyverbs"
_RENAMED = {"libibverbs_enums": "enums", "librdmacm_enums": "cm_enums"}
_MODULES = frozenset(
    (
        "addr", "base", "cm_enums", "cmid", "cq", "device", "dma_util", "dmabuf", "enums", "flow", "fork",
        "libibverbs_enums", "librdmacm_enums", "mem_alloc", "mr", "pd", "pyverbs_error", "qp", "spec", "srq",
        "utils", "wq", "wr", "xrcd",
    )
)  # fmt: skip


class _Finder(MetaPathFinder, Loader):
    """Finds `pyverbs` and everything in it among the modules of this room, before any that is installed."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        first, _, rest = fullname.partition(".")
        if first != _PUBLIC:
            return None
        name = rest.split(".")[0]
        if rest and name != "providers" and (name not in _MODULES or "." in rest):
            return None
        package = not rest or (name == "providers" and rest.count(".") < 2)
        return ModuleSpec(fullname, self, is_package=package)

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        _, _, rest = spec.name.partition(".")
        if not rest or rest == "providers":
            return ModuleType(spec.name, "The RDMA verbs on the twin.")
        if rest.startswith("providers."):
            return provider_module(spec.name)
        # a module of its own under the public name, so that the room's keeps its own; objects are the same
        found = import_module(f"{_ROOM}.{_RENAMED.get(rest, rest)}")
        module = ModuleType(spec.name, found.__doc__)
        vars(module).update({name: value for name, value in vars(found).items() if name[:2] != "__"})
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Nothing is left to run."""


_finder = _Finder()


def install(twin: Twin, *, host: str | None = None, engine: Fidelity | Engine = "packet") -> World:
    """Run this process on a host of `twin`, and let `import pyverbs` mean the twin's verbs from now on.

    Modules of an installed pyverbs that were imported before are dropped from `sys.modules`; names that a program
    took from them keep meaning hardware. Raises ConfigError for a host that the twin does not have.
    """
    world = current_host.use(twin, host=host, engine=engine)
    for name in [name for name in sys.modules if name == _PUBLIC or name.startswith(f"{_PUBLIC}.")]:
        del sys.modules[name]
    if _finder not in sys.meta_path:
        sys.meta_path.insert(0, _finder)
    return world


def uninstall() -> None:
    """Let `import pyverbs` mean what it did before."""
    if _finder in sys.meta_path:
        sys.meta_path.remove(_finder)
    for name in [name for name in sys.modules if name == _PUBLIC or name.startswith(f"{_PUBLIC}.")]:
        del sys.modules[name]
