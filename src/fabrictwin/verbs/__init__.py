"""The RDMA programming interface on the twin, in the names of rdma-core's pyverbs.

`install(twin)` makes `import pyverbs` mean the twin; `use(twin)` does without that, for programs that import
from here (`from fabrictwin.verbs.pyverbs.device import Context`). Semantics are in `engine`, the interface in
modules named as pyverbs names them.
"""

from __future__ import annotations

from fabrictwin.verbs.connect_pair import connect
from fabrictwin.verbs.current_host import use, world
from fabrictwin.verbs.import_hook import install, uninstall

__all__ = ["connect", "install", "uninstall", "use", "world"]
