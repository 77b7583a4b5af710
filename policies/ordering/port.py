"""The port: which waiting request goes next, of those whose turn it is."""

from typing import Protocol

from ..traffic import Load


class Ordering(Protocol):
    """A static key: the smallest goes first, ties in order of arrival. Owns nothing but what `refit` fitted."""

    @property
    def name(self) -> str: ...

    def key(self, *, arrival_s: float, cost_s: float) -> float:
        """Called when a request joins the queue. `cost_s`: its predicted seconds of replica time."""
        ...

    def refit(self, load: Load) -> None:
        """Once a minute of given time: fit to what comes. Keys given before must stay comparable with new ones."""
        ...

    def overtaking_bound_s(self, max_cost_s: float) -> float:
        """Only arrivals within so many seconds after a request can pass it, when costs lie in 0..max_cost_s."""
        ...
