"""The port: how much may be in flight on a replica."""

from typing import Protocol

from ..types import ReplicaLike


class Admission(Protocol):
    @property
    def name(self) -> str: ...

    def max_in_flight_tokens(self, replica: ReplicaLike) -> int:
        """Prompt + predicted output tokens that may be in flight there, at most what its KV cache holds.

        One request alone is always let in.
        """
        ...

    def max_prefill_tokens(self, replica: ReplicaLike) -> int:
        """While so many prompt tokens wait there for their first token, no further call starts."""
        ...
