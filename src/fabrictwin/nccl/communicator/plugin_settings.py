"""The variables that a network plugin sets as it loads, before NCCL reads them.

On adapters that spread the packets of a connection (SRD), NCCL comes with aws-ofi-nccl, which sets buffers and
chunks by the kind of instance. What the environment says stays. Source: aws-ofi-nccl, src/platform-aws.cpp
(commit 2daf7d30).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from fabrictwin import catalog
from fabrictwin.fabric.host_template import HostTemplate
from fabrictwin.nccl.settings.settings import PREFIX, Settings
from fabrictwin.nccl.topology.net_devices import SOCKET, HostNetwork

_EVERY = {"buffsize": 8388608, "p2p_net_chunksize": 524288}
_NVSWITCH_SHARP = {**_EVERY, "nvlstree_max_chunksize": 524288, "nvls_chunksize": 524288}
_HOPPER = 90  # instances from here on (p5) get the chunks of NVLS, too


def with_plugin(settings: Settings, template: HostTemplate, network: HostNetwork) -> Settings:
    """The settings, and those of the plugin that serves this kind of host, if one does."""
    if network.name == SOCKET or (settings.net or "").lower() == "ib":
        return settings
    if not any(name and catalog.nic(name).transport == "srd" for name in template.nic_types):
        return settings
    capability = catalog.gpu(template.gpu_type).compute_capability.value if template.gpu_type else 0
    set_by_user = {name for name, _ in settings.given}
    new: dict[str, Any] = {
        key: value
        for key, value in (_NVSWITCH_SHARP if capability >= _HOPPER else _EVERY).items()
        if PREFIX + key.upper() not in set_by_user
    }
    given = sorted((*settings.given, *((PREFIX + key.upper(), str(value)) for key, value in new.items())))
    return replace(settings, **new, given=tuple(given))
