"""dma-bufs (`pyverbs.dmabuf`): there are none; memory of a GPU is a `fabrictwin.verbs.gpu.GpuBuffer`."""

from __future__ import annotations

from fabrictwin.verbs.attributes.unsupported import absent

DmaBuf = absent("DmaBuf", "the twin has no dma-bufs")
