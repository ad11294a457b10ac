"""Times of a server's steps beside neighbours: of each of their phases on the links that they leave then."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

from fabrictwin.serving.network.link_load import Neighbourhood, Phase
from fabrictwin.serving.step.parts import Parts
from fabrictwin.serving.step.shape import StepCost, StepShape

Cost = TypeVar("Cost", bound=StepCost)


class CostBeside(Generic[Cost]):
    """Costs by phase of the neighbours. `make` returns that of links at other rates, by port, made when needed."""

    def __init__(
        self,
        neighbours: Neighbourhood,
        rates: Callable[[Phase], dict[int, int]],
        make: Callable[[dict[int, int]], Cost],
    ) -> None:
        self._neighbours, self._rates, self._make = neighbours, rates, make
        self._by_phase: dict[Phase, Cost] = {}
        self._by_rates: dict[tuple[tuple[int, int], ...], Cost] = {}

    def at(self, now_ps: int) -> Cost:
        """Return the cost of steps that begin at an instant, picoseconds."""
        phase = self._neighbours.phase(now_ps)
        if phase not in self._by_phase:
            rates = self._rates(phase)
            key = tuple(sorted(rates.items()))
            if key not in self._by_rates:
                self._by_rates[key] = self._make(rates)
            self._by_phase[phase] = self._by_rates[key]
        return self._by_phase[phase]

    def stages_ps(self, shape: StepShape) -> tuple[int, ...]:
        """Return times of a step at the beginning, picoseconds."""
        return self.at(0).stages_ps(shape)

    def decode_parts(self, *, mixed: bool) -> Parts:
        """Return what decoded tokens spent in steps so far, of all phases."""
        found = Parts()
        for cost in self._by_rates.values():
            parts = cost.decode_parts(mixed=mixed)
            for name in Parts.__slots__:
                setattr(found, name, getattr(found, name) + getattr(parts, name))
        return found
