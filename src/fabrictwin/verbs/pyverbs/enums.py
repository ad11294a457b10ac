"""Every constant of the interface, flat and by enum class, as `pyverbs.enums` (to v58) has them.

`libibverbs_enums` (v60 and later) is this module under its new name. Members are plain `IntEnum`s: combinations
of flags are ints, as Cython's are.
"""

from __future__ import annotations

from enum import IntEnum

from fabrictwin.verbs.abi import completion_codes as completions
from fabrictwin.verbs.abi import device_codes as device
from fabrictwin.verbs.abi import further_codes as further
from fabrictwin.verbs.abi import memory_codes as memory
from fabrictwin.verbs.abi import queue_codes as queues

IBV_LINK_LAYER_UNSPECIFIED = 0
IBV_LINK_LAYER_INFINIBAND = 1
IBV_LINK_LAYER_ETHERNET = 2
IBV_QPF_GRH_REQUIRED = 1
IBV_WC_STANDARD_FLAGS = 0x7F

IBV_DEVICE_RAW_SCATTER_FCS = _IBV_DEVICE_RAW_SCATTER_FCS = 1 << 34
IBV_DEVICE_PCI_WRITE_END_PADDING = _IBV_DEVICE_PCI_WRITE_END_PADDING = 1 << 36
IBV_DEVICE_CC_DMA_BOUNCE = _IBV_DEVICE_CC_DMA_BOUNCE = 1 << 41
IBV_ADVISE_MR_ADVICE_PREFETCH = _IBV_ADVISE_MR_ADVICE_PREFETCH = 0
IBV_ADVISE_MR_ADVICE_PREFETCH_WRITE = _IBV_ADVISE_MR_ADVICE_PREFETCH_WRITE = 1
IBV_ADVISE_MR_ADVICE_PREFETCH_NO_FAULT = _IBV_ADVISE_MR_ADVICE_PREFETCH_NO_FAULT = 2
IBV_ADVISE_MR_FLAG_FLUSH = _IBV_ADVISE_MR_FLAG_FLUSH = 1
_IBV_ALLOCATOR_USE_DEFAULT = (1 << 64) - 1

for _classes in (vars(completions), vars(device), vars(memory), vars(queues), further.ENUMERATIONS):
    for _name, _class in _classes.items():
        if isinstance(_class, type) and issubclass(_class, IntEnum) and _class is not IntEnum:
            globals()[_name] = _class
            globals().update(_class.__members__)
del _classes, _name, _class
