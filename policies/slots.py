"""The ledger of one replica: what its running calls hold."""

from .job import RunningCall
from .routing.port import ReplicaLoad
from .types import ReplicaLike


class ReplicaSlots:
    """Tokens in flight, prompt tokens that wait for a first token, what was granted. Counted here, never scraped."""

    def __init__(self, replica: ReplicaLike) -> None:
        self.replica = replica
        self.in_flight_tokens = 0
        self.prefill_tokens = 0
        self.calls: dict[int, RunningCall] = {}
        self.granted_tokens: int | None = 0  # None: everything
        self.asked_tokens = 0  # the largest amount asked for since the last grant
        self.is_removed = False  # forgotten once its last call has ended

    def take(self, call: RunningCall) -> None:
        self.calls[call.call_id] = call
        self.in_flight_tokens += call.slot_tokens
        self.prefill_tokens += call.prefill_tokens

    def give_back(self, call: RunningCall) -> None:
        del self.calls[call.call_id]
        self.in_flight_tokens -= call.slot_tokens
        self.prefill_tokens -= call.prefill_tokens

    def prefill_ended(self, call: RunningCall) -> None:
        """Idempotent."""
        self.prefill_tokens -= call.prefill_tokens
        call.prefill_tokens = 0

    def resize(self, call: RunningCall, slot_tokens: int) -> None:
        self.in_flight_tokens += slot_tokens - call.slot_tokens
        call.slot_tokens = slot_tokens

    def has_room(self, slot_tokens: int, max_tokens: int, max_prefill_tokens: int) -> bool:
        """Whether another call may start under the caps, leaving grants aside. A replica without calls always has."""
        if not self.calls:
            return True
        max_requests = self.replica.max_in_flight_requests
        if max_requests is not None and len(self.calls) >= max_requests:
            return False
        return self.in_flight_tokens + slot_tokens <= max_tokens and self.prefill_tokens < max_prefill_tokens

    def is_granted(self, slot_tokens: int) -> bool:
        return self.granted_tokens is None or self.in_flight_tokens + slot_tokens <= self.granted_tokens

    def load(self) -> ReplicaLoad:
        return ReplicaLoad(self.replica.replica_id, self.in_flight_tokens, self.prefill_tokens, len(self.calls))
