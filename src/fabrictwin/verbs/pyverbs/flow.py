"""Flow steering (`pyverbs.flow`): the twin's adapters have none."""

from __future__ import annotations

from fabrictwin.verbs.attributes.unsupported import Bag, absent


class FlowAttr(Bag):
    """Match of a steering rule."""

    def __init__(
        self, num_of_specs: int = 0, flow_type: int = 0, priority: int = 0, port: int = 1, flags: int = 0
    ) -> None:
        super().__init__(num_of_specs=num_of_specs, flow_type=flow_type, priority=priority, port=port, flags=flags)
        self.specs: list[Bag] = []


Flow = absent("Flow", "the twin's adapters have no flow steering")
