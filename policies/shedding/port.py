"""The port: what becomes of a request when more comes than can be served."""

from typing import NamedTuple, Protocol

from ..types import Lane, Reason, RequestLike


class Backlog(NamedTuple):
    """The work that waits for a request's model, as seconds until all of it will have gone at the measured rate."""

    turns_s: float
    """Of what has turns: everything but background work."""
    interactive_s: float
    """Of the interactive lane's part of that."""
    background_s: float


class Ruling(NamedTuple):
    """`reason` None: it may wait. `lane`: where, in place of its own. `defer_s`: ordered as if it had come later."""

    reason: Reason | None = None
    lane: Lane | None = None
    defer_s: float = 0.0


ADMIT = Ruling()


class Shedding(Protocol):
    @property
    def name(self) -> str: ...

    def rule(self, request: RequestLike, lane: Lane, backlog: Backlog) -> Ruling:
        """Asked once for every request that has to wait behind others; `lane`: the one it is in by size or
        declaration. A request that is turned away goes nevertheless where a replica has room for it at once."""
        ...
