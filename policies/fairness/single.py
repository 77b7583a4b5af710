"""No turns: lanes share one queue, ordered by key alone."""

from collections.abc import Mapping

from ..types import Lane


class SingleQueue:
    """The smallest ordering key goes, whatever its lane. With `fcfs` this is plain arrival order: the baseline."""

    name = "single"

    def next_lane(self, heads: Mapping[Lane, tuple[float, float]]) -> Lane:
        return min(heads, key=lambda lane: heads[lane][0])

    def charge(self, lane: Lane, cost_s: float) -> None:
        """Nothing is owed where nothing is earned."""

    def emptied(self, lane: Lane) -> None:
        """Nothing is kept."""
