"""The port: how much may be in flight, and who is turned away."""

from typing import NamedTuple, Protocol

from ..types import Reason, ReplicaLike, RequestLike


class QueueLoad(NamedTuple):
    """What waits."""

    num_requests: int
    num_tokens: int


class Admission(Protocol):
    @property
    def name(self) -> str: ...

    def turn_away(self, request: RequestLike, slot_tokens: int, queue: QueueLoad) -> Reason | None:
        """Why this request may not join the queue; None: it may."""
        ...

    def max_in_flight_tokens(self, replica: ReplicaLike) -> int:
        """Prompt + predicted output tokens that may be in flight there. One request alone is always let in."""
        ...

    def max_prefill_tokens(self, replica: ReplicaLike) -> int:
        """While so many prompt tokens wait there for their first token, no further call starts."""
        ...
