"""Fixed caps, in tokens."""

from collections.abc import Mapping
from types import MappingProxyType

from ..types import ReplicaLike
from .bounds import highest_cap
from .port import Answered


class FixedCaps:
    """A replica's own setting wins, and its KV cache's capacity; the policy's figures stand in where it has neither.

    Two bounds hold a call back. In-flight tokens: what the replica must keep in its KV cache. Prefill tokens: prompt
    tokens sent whose first token hasn't come; an engine that computes prompts in order of arrival gains nothing from
    a second long prompt behind the first, and once it is inside, its place can't be changed any more.
    """

    name = "fixed"
    reasons: Mapping[str, str] = MappingProxyType({})

    def __init__(self, *, in_flight_tokens: int, prefill_tokens: int) -> None:
        self._in_flight_tokens = in_flight_tokens
        self._prefill_tokens = prefill_tokens

    def max_in_flight_tokens(self, replica: ReplicaLike) -> int:
        highest_tokens = highest_cap(replica)
        return self._in_flight_tokens if highest_tokens is None else highest_tokens

    def max_prefill_tokens(self, replica: ReplicaLike) -> int:
        own_tokens = replica.max_prefill_tokens
        return self._prefill_tokens if own_tokens is None else own_tokens

    def answered(self, replica: ReplicaLike, call: Answered) -> None:
        """Nothing moves."""

    def forget(self, replica_id: str) -> None:
        """There is nothing."""
