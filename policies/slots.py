"""The ledger of one replica: what its running calls hold."""

import math

from .job import RunningCall
from .routing.port import ReplicaLoad
from .types import ReplicaLike


class ReplicaSlots:
    """Tokens in flight, prompt tokens that wait for a first token, what was granted. Counted here, never scraped."""

    def __init__(self, replica: ReplicaLike) -> None:
        self.replica = replica
        self.replica_id = replica.replica_id
        self.in_flight_tokens = 0
        self.prefill_tokens = 0
        self.computed_tokens = 0  # of all prompts whose first token came, cached ones included; only ever grows
        self.calls: dict[int, RunningCall] = {}
        self.last_call_id = 0
        """The last call that began here: of two replicas, the lower one was given a call longer ago."""
        self.granted_tokens: int | None = 0  # None: everything
        self.parked_tokens = 0  # of the request that is between two slices here, counted in flight
        self.asked_tokens = 0  # the largest amount asked for since the last grant
        self.is_removed = False  # forgotten once its last call has ended
        self.told: list[set[ReplicaSlots]] = []
        """It puts itself into these sets when something of it changes: see `Pool.stale`."""

    def take(self, call: RunningCall) -> None:
        self.calls[call.call_id] = call
        self.last_call_id = call.call_id
        self.in_flight_tokens += call.slot_tokens
        self.prefill_tokens += call.prefill_tokens
        self._changed()

    def give_back(self, call: RunningCall) -> None:
        del self.calls[call.call_id]
        self.in_flight_tokens -= call.slot_tokens
        self.prefill_tokens -= call.prefill_tokens
        self._changed()

    def park(self, slot_tokens: int) -> None:
        """A request between two slices keeps its slot."""
        self.parked_tokens += slot_tokens
        self.in_flight_tokens += slot_tokens
        self._changed()

    def unpark(self) -> None:
        self.in_flight_tokens -= self.parked_tokens
        self.parked_tokens = 0
        self._changed()

    @property
    def is_usable(self) -> bool:
        return self.replica.is_available and not self.is_removed

    @property
    def has_place(self) -> bool:
        """Whether one more call keeps within the replica's number of calls."""
        max_requests = self.replica.max_in_flight_requests
        return max_requests is None or len(self.calls) < max_requests

    def prefill_ended(self, call: RunningCall) -> None:
        """Idempotent."""
        if call.prefill_tokens:
            self.prefill_tokens -= call.prefill_tokens
            self.computed_tokens += call.prefill_tokens
            call.computed_before_tokens = self.computed_tokens
            call.prefill_tokens = 0
            self._changed()

    def resize(self, call: RunningCall, slot_tokens: int) -> None:
        if slot_tokens != call.slot_tokens:
            self.in_flight_tokens += slot_tokens - call.slot_tokens
            call.slot_tokens = slot_tokens
            self._changed()

    def grant(self, tokens: int | None) -> None:
        """So many tokens may be in flight in all; None: everything."""
        self.granted_tokens = tokens
        self.asked_tokens = 0
        self._changed()

    def room_tokens(self, max_tokens: int, max_prefill_tokens: int) -> float:
        """How many tokens another call may hold under the caps, grants aside; below 0: none may start.

        A replica without calls has room for any.
        """
        if not self.calls and not self.parked_tokens:
            return math.inf
        if not self.has_place:
            return -1
        return max_tokens - self.in_flight_tokens if self.prefill_tokens < max_prefill_tokens else -1

    @property
    def granted_room_tokens(self) -> float:
        """How many tokens another call may hold under what was granted."""
        return math.inf if self.granted_tokens is None else self.granted_tokens - self.in_flight_tokens

    def load(self) -> ReplicaLoad:
        return ReplicaLoad(self.replica_id, self.in_flight_tokens, self.prefill_tokens, len(self.calls))

    def _changed(self) -> None:
        for stale in self.told:
            stale.add(self)
