"""A case: the evidence of some files, and what the twin expects of the hardware that they show."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cached_property

from fabrictwin.base.records import record
from fabrictwin.diagnosis.evidence import Evidence, Fact
from fabrictwin.diagnosis.expectation.expected import Expected
from fabrictwin.diagnosis.expectation.hardware import PART
from fabrictwin.diagnosis.finding import Finding

MOST_OF_A_HOST = 8  # GPUs of a host; few have 16


@record
class Case:
    """Evidence and expectation. `expected` is None where the hardware is unknown or was not asked for."""

    evidence: Evidence
    expected: Expected | None = None

    def of(self, *kinds: str) -> list[Fact]:
        """Facts of these kinds."""
        return self.evidence.of(*kinds)

    @property
    def knows_host(self) -> bool:
        """Return true where the hosts are likely those of the expectation, with all that they have."""
        return self.expected is not None and self.expected.confidence > PART

    @cached_property
    def settings(self) -> dict[str, list[Fact]]:
        """NCCL_* variables that were set, by name."""
        found: dict[str, list[Fact]] = {}
        for fact in self.of("nccl.setting"):
            found.setdefault(str(fact.parts[0]), []).append(fact)
        return found

    @cached_property
    def nodes(self) -> int:
        """Hosts of the largest communicator, as far as files say; 0 where they do not."""
        over = 2 if any(str(fact.parts[0]).startswith("NET/") for fact in self.of("nccl.way")) else 0
        placed = [int(fact.parts[1] or 0) for fact in self.of("nccl.placed")]
        if placed:
            # a file may hold jobs of one host each, of many hosts
            return max(*placed, over)
        began = self.of("nccl.start", "nccl.complete")
        hosts = {fact.subject.host for fact in [*began, *self.of("bench.gpu", "nccl.bootstrap", "nccl.network")]}
        # a log of some ranks shows their hosts alone
        ranks = max((int(fact.parts[1] or 0) for fact in began), default=0)
        shown = {fact.subject for fact in began}
        if len(hosts) < 2 and not self.of("bench.gpu") and max(len(shown), MOST_OF_A_HOST) < ranks:
            return max(over, 2 if ranks > 2 * MOST_OF_A_HOST else 0)
        return max(len(hosts - {""}), over)

    @cached_property
    def is_one_host(self) -> bool:
        """Return true where every rank of the largest communicator was seen to start, all on one host."""
        began = self.of("nccl.start", "nccl.complete")
        ranks = max((int(fact.parts[1] or 0) for fact in began), default=0)
        shown = {fact.subject for fact in began if int(fact.parts[1] or 0) == ranks}
        return self.nodes == 1 and 0 < ranks <= len(shown)

    @cached_property
    def release(self) -> tuple[int, int]:
        """NCCL's release, as (2, minor); (0, 0) where no file names it."""
        fact = self.evidence.first("nccl.version")
        parts = str(fact.value).split(".") if fact is not None else []
        return (int(parts[0]), int(parts[1])) if len(parts) > 1 and all(p.isdigit() for p in parts[:2]) else (0, 0)


Rule = Callable[[Case], Iterator[Finding]]
