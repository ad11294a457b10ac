"""What `import torch` loads by the entry point `torch.backends`: the backend's name, and nothing heavy."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from fabrictwin.torch import NAME


def _create(store: Any, rank: int, size: int, timeout: timedelta) -> Any:
    from fabrictwin.torch.c10d_backend import FabrictwinBackend

    return FabrictwinBackend(store, rank, size, timeout)


def register() -> None:
    """Make the backend known to c10d, once, where PyTorch has c10d."""
    import torch.distributed as dist

    if dist.is_available() and NAME not in dist.Backend.backend_list:
        dist.Backend.register_backend(NAME, _create, devices=["cpu"])
