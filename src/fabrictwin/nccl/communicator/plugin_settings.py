"""The variables that a network plugin sets as it loads, before NCCL reads them.

On adapters that spread the packets of a connection (SRD), NCCL comes with aws-ofi-nccl, which sets buffers and
chunks by the kind of instance. On instances before p5 it moves data by sends, whose bytes libfabric's provider
does not promise to deliver in order (FI_OPT_EFA_SENDRECV_IN_ORDER_ALIGNED_128_BYTES), so that NCCL may only use
Simple. What the environment says stays. Source: aws-ofi-nccl, src/platform-aws.cpp (commit 2daf7d30); libfabric,
prov/efa/src/rdm/efa_rdm_ep_fiops.c.
"""

from __future__ import annotations

from dataclasses import replace

from fabrictwin import catalog
from fabrictwin.fabric.host_template import HostTemplate
from fabrictwin.nccl.settings.settings import PREFIX, Settings, read_settings
from fabrictwin.nccl.topology.net_devices import SOCKET, HostNetwork

_EVERY = {"buffsize": "8388608", "p2p_net_chunksize": "524288"}
_BY_SENDS = {**_EVERY, "proto": "simple"}
_BY_WRITES = {**_EVERY, "nvlstree_max_chunksize": "524288", "nvls_chunksize": "524288"}
_HOPPER = 90  # instances from here on (p5) write remotely, and get the chunks of NVLS, too


def with_plugin(settings: Settings, template: HostTemplate, network: HostNetwork) -> Settings:
    """The settings, and those of the plugin that serves this kind of host, if one does."""
    if not served(settings, template, network.name):
        return settings
    capability = catalog.gpu(template.gpu_type).compute_capability.value if template.gpu_type else 0
    set_by_user = {name for name, _ in settings.given}
    new = {
        key: text
        for key, text in (_BY_WRITES if capability >= _HOPPER else _BY_SENDS).items()
        if PREFIX + key.upper() not in set_by_user
    }
    read = read_settings({PREFIX + key.upper(): text for key, text in new.items()}, release=settings.release)
    given = tuple(sorted((*settings.given, *read.given)))
    return replace(settings, **{key: getattr(read, key) for key in new}, given=given)


def served(settings: Settings, template: HostTemplate, network: str) -> bool:
    """Return true if the plugin serves this kind of host, over the network that NCCL found."""
    if network == SOCKET or (settings.net or "").lower() == "ib":
        return False
    return any(name and catalog.nic(name).transport == "srd" for name in template.nic_types)
