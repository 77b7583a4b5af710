"""Which waiting request goes next, and where it can go."""

from collections.abc import Iterable, Mapping

from .fairness.flows import FlowKey
from .job import Job, PoolKey
from .policy import Policy
from .queue import WaitingQueue
from .slots import ReplicaSlots
from .types import Effect, Lane, WantCapacity

_TURN_LANES = tuple(lane for lane in Lane if lane is not Lane.BACKGROUND)


class Selection:
    """The decisions of one poll, during which no replica comes, goes or changes; thrown away after it."""

    def __init__(self, policy: Policy, queue: WaitingQueue, replicas: Mapping[str, ReplicaSlots]) -> None:
        self._policy = policy
        self._queue = queue
        self._replicas = replicas
        self._eligible: dict[PoolKey, list[ReplicaSlots]] = {}

    def next(self, now_s: float) -> tuple[Job, list[ReplicaSlots]] | None:
        """The request that goes now, with the replicas that have room for it; None: nobody can."""
        if choice := self._choose(now_s):
            job = choice[0]
            if job.lane is not Lane.BACKGROUND:
                self._policy.background.others_went(job.cost_s)
        return choice

    def _choose(self, now_s: float) -> tuple[Job, list[ReplicaSlots]] | None:
        if (job := self._queue.only) is not None:
            return self._choose_only(job, now_s)
        reserved: set[str] = set()
        for job in self._overdue_background(now_s):
            if room := self.with_room(job, reserved):
                if self._queue.num_requests > self._queue.num_in_lane(job.lane):
                    self._policy.background.claimed(job.cost_s)
                return job, room
            self._reserve(job, reserved)
        turns = self._policy.turns
        held: set[tuple[Lane, PoolKey]] = set()
        num_places = len(self._queue.pools()) * sum(self._queue.num_in_lane(lane) > 0 for lane in _TURN_LANES)
        for flow in turns.flows.in_order(self._queue.flows()):
            if len(held) == num_places:  # nobody else can go: a thousand flows aren't looked at in vain
                break
            # In its flow's turn, not before others': a tenant that floods would have everything overdue, and be served
            # in order of arrival.
            for job in self._queue.oldest_of(flow):
                if now_s - job.request.arrival_s >= self._policy.max_wait_s:
                    if room := self.with_room(job, reserved):
                        return job, room
                    self._reserve(job, reserved)
            if heads := self._heads(flow, reserved, held):
                return heads[
                    turns.lanes(flow).next_lane({lane: (job.key, job.cost_s) for lane, (job, _) in heads.items()})
                ]
        return self._idle_capacity(reserved)

    def _heads(
        self, flow: FlowKey, reserved: set[str], held: set[tuple[Lane, PoolKey]]
    ) -> dict[Lane, tuple[Job, list[ReplicaSlots]]]:
        """The first request of each of the flow's lanes that can go now, with where it can.

        `held`: where a flow whose turn came earlier has a request that doesn't fit, which nobody in the same lane and
        pool may pass: else those of others that are small enough could hold it up for ever.
        """
        heads: dict[Lane, tuple[Job, list[ReplicaSlots]]] = {}
        lanes = self._queue.lanes(flow)
        for lane in _TURN_LANES:
            if lane in lanes:
                for job in self._queue.heads(flow, lane):
                    if (lane, job.pool) in held:
                        continue
                    if room := self.with_room(job, reserved):
                        heads[lane] = (job, room)
                        break
                    held.add((lane, job.pool))
        return heads

    def _choose_only(self, job: Job, now_s: float) -> tuple[Job, list[ReplicaSlots]] | None:
        """What the rules come to where nobody else waits."""
        room = self.with_room(job)
        if not room:
            return None
        if job.lane is not Lane.BACKGROUND and now_s - job.request.arrival_s < self._policy.max_wait_s:
            self._policy.turns.lanes(job.flow).next_lane({job.lane: (job.key, job.cost_s)})
        return job, room

    def _overdue_background(self, now_s: float) -> list[Job]:
        """The first of each pool, of background work, where they have waited too long; oldest first."""
        background = self._policy.background
        if not (self._queue.num_in_lane(Lane.BACKGROUND) and background.may_claim):
            return []
        oldest = self._queue.oldest_background()
        return [job for job in oldest if now_s - job.request.arrival_s >= background.max_wait_s]

    def _reserve(self, job: Job, reserved: set[str]) -> None:
        """Overdue and too big for what is free: the replica closest to having room takes nothing else meanwhile."""
        waiting_for = [slots for slots in self.eligible(job.pool) if slots.replica.replica_id not in reserved]
        if waiting_for:
            reserved.add(min(waiting_for, key=lambda slots: slots.in_flight_tokens).replica.replica_id)

    def _idle_capacity(self, reserved: set[str]) -> tuple[Job, list[ReplicaSlots]] | None:
        """Background work runs where nobody else waits."""
        if not self._queue.num_in_lane(Lane.BACKGROUND):
            return None
        wanted = {slots.replica.replica_id for job in self._queue.oldest() for slots in self.eligible(job.pool)}
        closed = reserved | wanted
        for flow in self._policy.turns.flows.in_order(self._queue.flows()):
            for job in self._queue.heads(flow, Lane.BACKGROUND):
                if room := self.with_room(job, closed):
                    return job, room
        return None

    def eligible(self, pool: PoolKey) -> list[ReplicaSlots]:
        """The replicas that may be used at all: available, serving the model, not failed for this request."""
        eligible = self._eligible.get(pool)
        if eligible is None:
            model, adapter, feature, exclude = pool
            eligible = self._eligible[pool] = [
                slots
                for replica_id, slots in self._replicas.items()
                if slots.replica.is_available
                and not slots.is_removed
                and model in slots.replica.models
                and (adapter is None or adapter in slots.replica.models)
                and (feature is None or feature in slots.replica.features)
                and replica_id not in exclude
            ]
        return eligible

    def with_room(self, job: Job, reserved: Iterable[str] = ()) -> list[ReplicaSlots]:
        """Where this request could start now, in order of replica id."""
        slot_tokens = job.slot_tokens
        return [slots for slots in self.under_caps(job, reserved) if slots.is_granted(slot_tokens)]

    def under_caps(self, job: Job, reserved: Iterable[str] = ()) -> list[ReplicaSlots]:
        """Where the caps would allow it, whatever has been granted."""
        admission, slot_tokens = self._policy.admission, job.slot_tokens
        eligible = self.eligible(job.pool)
        if job.pinned_replica_id is not None:  # where its slices are cached, as long as that one is there
            pinned = [slots for slots in eligible if slots.replica.replica_id == job.pinned_replica_id]
            eligible = pinned or eligible
        return [
            slots
            for slots in eligible
            if slots.replica.replica_id not in reserved
            and slots.has_room(
                slot_tokens,
                admission.max_in_flight_tokens(slots.replica),
                admission.max_prefill_tokens(slots.replica),
            )
        ]

    def want_capacity(self, effects: list[Effect]) -> None:
        """Asks for what the heads of the queue need beyond the grants; once, until a grant comes."""
        if all(slots.granted_tokens is None for slots in self._replicas.values()):
            return
        queue = self._queue
        for job in [job for flow in queue.flows() for lane in queue.lanes(flow) for job in queue.heads(flow, lane)]:
            for slots in self.under_caps(job):
                tokens = slots.in_flight_tokens + job.slot_tokens
                if not slots.is_granted(job.slot_tokens) and tokens > slots.asked_tokens:
                    slots.asked_tokens = tokens
                    effects.append(WantCapacity(slots.replica.replica_id, tokens, (job.key, float(job.seq))))
