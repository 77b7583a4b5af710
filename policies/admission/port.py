"""The port: how much may be in flight on a replica."""

from collections.abc import Mapping
from typing import NamedTuple, Protocol

from ..estimate.timing import CallTiming
from ..types import ReplicaLike


class Answered(NamedTuple):
    """A call that was answered whole, at the instant it ends."""

    timing: CallTiming
    slot_tokens: int
    in_flight_tokens: int
    """On its replica, its own included."""
    began_s: float
    ended_s: float


class Admission(Protocol):
    @property
    def name(self) -> str: ...

    @property
    def reasons(self) -> Mapping[str, str]:
        """Why a replica's cap moved last, by replica id; nothing of those whose cap never moved."""
        ...

    def max_in_flight_tokens(self, replica: ReplicaLike) -> int:
        """Prompt + predicted output tokens that may be in flight there, at most what its KV cache holds.

        One request alone is always let in.
        """
        ...

    def max_prefill_tokens(self, replica: ReplicaLike) -> int:
        """While so many prompt tokens wait there for their first token, no further call starts."""
        ...

    def answered(self, replica: ReplicaLike, call: Answered) -> None:
        """Told of what was answered and of nothing else: not of failures, refusals, cancels, and what was stopped.

        Of all replicas, only the cap of this one may change, and only here.
        """
        ...

    def forget(self, replica_id: str) -> None:
        """The replica is gone."""
        ...
