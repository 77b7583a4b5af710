"""What is known of one replica, for whoever shows it."""

from typing import NamedTuple

from .estimate.timing import ReplicaTiming
from .policy import Policy
from .slots import ReplicaSlots


class ReplicaView(NamedTuple):
    """At one instant."""

    in_flight_tokens: int
    """Prompt and predicted output tokens of its calls."""
    cap_tokens: int
    """How many there may be."""
    cap_reason: str | None
    """Why that moved last; None: it never did."""
    kv_capacity_tokens: int | None
    """How many its KV cache holds, where that is known."""
    timing: ReplicaTiming
    """How fast it was found to be."""


def view_of(policy: Policy, slots: ReplicaSlots) -> ReplicaView:
    replica = slots.replica
    return ReplicaView(
        in_flight_tokens=slots.in_flight_tokens,
        cap_tokens=policy.admission.max_in_flight_tokens(replica),
        cap_reason=policy.admission.reasons.get(slots.replica_id),
        kv_capacity_tokens=replica.kv_capacity_tokens,
        timing=policy.cost.timing(slots.replica_id),
    )
