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


class Routing(Protocol):
    @property
    def name(self) -> str: ...

    def pick(self, request: RequestLike, candidates: Sequence[ReplicaLoad]) -> tuple[str, str]:
        """(replica id, why in a few words). `candidates` is never empty, in order of replica id, all with room."""
        ...
