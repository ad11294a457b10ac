"""Barriers and writes to device registers (`pyverbs.dma_util`): memory is coherent, so barriers do nothing."""

from __future__ import annotations

from fabrictwin.verbs.pyverbs.mem_alloc import writebe32, writebe64


def udma_to_dev_barrier() -> None:
    """Let the adapter see what was written before."""


def udma_from_dev_barrier() -> None:
    """See what the adapter wrote before."""


def mmio_write64_as_be(addr: int, val: int) -> None:
    writebe64(addr, val)


def mmio_write32_as_be(addr: int, val: int) -> None:
    writebe32(addr, val)
