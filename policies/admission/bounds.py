"""What bounds every cap of a replica, whichever policy sets it."""

from ..types import ReplicaLike


def highest_cap(replica: ReplicaLike) -> int | None:
    """The lower of what was configured for it and of what its KV cache holds; None: neither is known."""
    own_tokens, capacity_tokens = replica.max_in_flight_tokens, replica.kv_capacity_tokens
    if own_tokens is None or (capacity_tokens is not None and capacity_tokens < own_tokens):
        return capacity_tokens
    return own_tokens
