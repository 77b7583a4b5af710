"""The port: which waiting request of a lane goes next."""

from typing import Protocol


class Ordering(Protocol):
    """A static key: the smallest goes first, ties in order of arrival. Stateless."""

    @property
    def name(self) -> str: ...

    def key(self, *, arrival_s: float, cost_s: float) -> float:
        """Called once when a request joins the queue. `cost_s`: its predicted seconds of replica time."""
        ...

    def overtaking_bound_s(self, max_cost_s: float) -> float:
        """Only arrivals within so many seconds after a request can pass it, when costs lie in 0..max_cost_s."""
        ...
