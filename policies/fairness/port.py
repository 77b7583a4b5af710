"""The port: whose turn it is among lanes."""

from collections.abc import Mapping
from typing import Protocol

from ..types import Lane


class LaneTurns(Protocol):
    """Chooses the lane that dispatches next. Owns its own state (deficits); told of everything it needs."""

    @property
    def name(self) -> str: ...

    def next_lane(self, heads: Mapping[Lane, tuple[float, float]]) -> Lane:
        """Which lane goes. `heads`: lane → (ordering key, predicted cost in seconds) of its first dispatchable request.

        Never empty. Changes state: the lane's turn is taken as used by `charge`, which the core calls next.
        """
        ...

    def charge(self, lane: Lane, cost_s: float) -> None:
        """A request of this cost was dispatched (or, with the difference to what it really cost, has ended)."""
        ...

    def emptied(self, lane: Lane) -> None:
        """Nothing waits in this lane any more: unspent credit is lost."""
        ...
