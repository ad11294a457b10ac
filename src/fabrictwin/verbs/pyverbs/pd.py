"""Protection domains (`pyverbs.pd`)."""

from __future__ import annotations

import errno
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from fabrictwin.verbs.adapter.memory_regions import Domain
from fabrictwin.verbs.pyverbs.base import PyverbsCM, PyverbsObject, failure, still_open
from fabrictwin.verbs.pyverbs.device import Context
from fabrictwin.verbs.pyverbs.pyverbs_error import PyverbsUserError


class PD(PyverbsCM):
    """A protection domain of a context; `handle=` imports one that the same device has."""

    domain: Domain | None = None

    def __init__(self, creator: Context, **kwargs: Any) -> None:
        if not isinstance(creator, Context):
            raise PyverbsUserError(f"Cannot create PD from {type(creator)}")
        handle = kwargs.get("handle")
        opened = creator.context
        if handle is None:
            domain = opened.domain()
        elif handle in opened.domains:
            domain = opened.domains[handle]
        else:
            raise failure("Failed to import PD", errno.EINVAL)
        self.ctx: Context | None = creator
        self.adapter = creator.adapter
        self.world = creator.world
        self.domain = domain
        self._imported = handle is not None
        creator._adopt(self)

    @property
    def pd(self) -> Domain:
        """The domain below this interface."""
        return still_open(self.domain, "protection domain")

    @property
    def handle(self) -> int:
        return self.pd.handle

    def advise_mr(self, advise: int, flags: int, sg_list: Sequence[Any]) -> None:
        """Regions are always in memory; there is nothing to prefetch."""
        raise failure("Failed to advise MR", errno.EOPNOTSUPP)

    def unimport(self) -> None:
        """Let go of an imported domain; its owner keeps it."""
        self._close_children()
        self.domain = None

    def close(self) -> None:
        if self.domain is None:
            return
        self._close_children()
        opened = self.ctx.opened if self.ctx is not None else None
        if opened is not None and not self._imported:
            opened.domains.pop(self.domain.handle, None)
        self.domain = None
        self.ctx = None


class ParentDomainContext(PyverbsObject):
    """Functions that a program wants memory from."""

    def __init__(self, pd: PD, alloc_func: Any, free_func: Any, user_data: Any = None) -> None:
        self.pd = pd
        self.p_alloc, self.p_free = alloc_func, free_func
        self.user_data = user_data


@dataclass(eq=False, repr=False)
class ParentDomainInitAttr(PyverbsObject):
    pd: PD
    pd_context: ParentDomainContext | None = None
    comp_mask: int = 0


class ParentDomain(PD):
    """A domain with its own allocators, which the twin's queues have no use for."""

    def __init__(self, context: Context, attr: ParentDomainInitAttr) -> None:
        raise failure("Failed to allocate Parent Domain", errno.EOPNOTSUPP)
