"""The port: which waiting request goes next, of those whose turn it is."""

from typing import NamedTuple, Protocol

from ..adaptive import Choice
from ..traffic import Load


class Lateness(NamedTuple):
    """What becomes of requests that can't be in time any more: they go last, in order of arrival, with `share` of
    their flow's dispatches. `within_s`: of those that neither caller nor lane gave a time to the first token."""

    share: float
    within_s: float


class Ordering(Protocol):
    """A static key: the smallest goes first, ties in order of arrival. Owns nothing but what `refit` fitted."""

    @property
    def name(self) -> str: ...

    @property
    def lateness(self) -> Lateness | None:
        """None: no request is ever late."""
        ...

    @property
    def choice(self) -> Choice | None:
        """What it does at present and why, where it chooses among several ways; None: there is only one."""
        ...

    def key(self, *, arrival_s: float, cost_s: float, due_s: float | None = None) -> float:
        """Called when a request joins the queue. `cost_s`: its predicted seconds of replica time; 0 for one that is to
        be protected whatever is predicted of it, since its caller declared it interactive and may. `due_s`: the instant
        by which its first token is wanted, given where there is a `lateness`."""
        ...

    def refit(self, load: Load) -> bool:
        """Every ten seconds of given time: fit to what comes. True: all keys must be given anew, else they stay."""
        ...

    def overtaking_bound_s(self, max_cost_s: float) -> float:
        """Only arrivals within so many seconds after a request can pass it, when costs lie in 0..max_cost_s.

        Where there is a `lateness`: of requests that are wanted equally soon after their arrival, and while the one
        that is passed isn't late.
        """
        ...
