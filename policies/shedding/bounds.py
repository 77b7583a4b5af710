"""Nobody is shed but by the bounds of the queue."""

from ..types import Lane, RequestLike
from .port import ADMIT, Backlog, Ruling


class BoundsOnly:
    """First come, first kept: whoever comes once the queue is full is turned away, whatever it is."""

    name = "bounds"

    def rule(self, request: RequestLike, lane: Lane, backlog: Backlog) -> Ruling:
        return ADMIT
