"""Flows take turns, and in each of them its lanes."""

from collections import OrderedDict
from collections.abc import Callable

from .flows import FlowKey, FlowTurns
from .port import LaneTurns

_MAX_FLOWS = 4096


class Turns:
    """The flows' order, and the account of lanes that each flow has; of flows not seen for long it is forgotten."""

    def __init__(self, flows: FlowTurns, make_lanes: Callable[[], LaneTurns]) -> None:
        self.flows = flows
        self._make_lanes = make_lanes
        self._lanes: OrderedDict[FlowKey, LaneTurns] = OrderedDict()
        self._latest: tuple[FlowKey | None, LaneTurns] = (None, make_lanes())

    def lanes(self, flow: FlowKey) -> LaneTurns:
        """The turns of this flow's lanes."""
        if flow == self._latest[0]:  # mostly: a request is asked for three times
            return self._latest[1]
        lanes = self._lanes.get(flow)
        if lanes is None:
            lanes = self._lanes[flow] = self._make_lanes()
            if len(self._lanes) > _MAX_FLOWS:
                self._lanes.popitem(last=False)
        else:
            self._lanes.move_to_end(flow)
        self._latest = (flow, lanes)
        return lanes
