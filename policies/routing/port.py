"""The port: which replica a request goes to."""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from ..types import RequestLike


class ReplicaLoad(NamedTuple):
    """A replica that has room for the request, as routing sees it."""

    replica_id: str
    in_flight_tokens: int
    prefill_tokens: int
    num_calls: int


class Room(Protocol):
    """The replicas that have room for a request; there is at least one. Valid during `pick` only."""

    def least_loaded(self) -> ReplicaLoad:
        """The fewest tokens in flight; of several, the one that was given a call longest ago, then by id."""
        ...

    def following(self, replica_id: str) -> ReplicaLoad:
        """The next one by id; after the last the first."""
        ...

    def all(self) -> Sequence[ReplicaLoad]:
        """In order of id. Looks at every replica, where the others cost the same for ten and for a thousand."""
        ...


class Routing(Protocol):
    @property
    def name(self) -> str: ...

    def pick(self, request: RequestLike, room: Room) -> tuple[str, str]:
        """(replica id, why in a few words), of those in `room`."""
        ...
