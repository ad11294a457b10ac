"""The RDMA programming interface on the twin, in the names of rdma-core's pyverbs.

`install(twin)` makes `import pyverbs` mean the twin; `use(twin)` does without that, for programs that import from
here (`from fabrictwin.verbs.device import Context`). Semantics are in `engine`, the interface in modules named as
pyverbs names them.
"""

from __future__ import annotations

from fabrictwin.verbs.connecting import connect
from fabrictwin.verbs.installing import install, uninstall
from fabrictwin.verbs.place import use, world

__all__ = ["connect", "install", "uninstall", "use", "world"]
