"""Which waiting request goes next, and where it can go."""

from collections.abc import Iterator, Set
from typing import Final

from .fairness.flows import FlowKey
from .fleet import Fleet
from .job import Job, PoolKey
from .policy import Policy
from .pool import Room
from .queue import WaitingQueue
from .slots import ReplicaSlots
from .types import Effect, Lane, WantCapacity

# For every request: see `policies.types`.
_BACKGROUND: Final = Lane.BACKGROUND

_NONE: frozenset[str] = frozenset()
_TURN_LANES = tuple(lane for lane in Lane if lane is not _BACKGROUND)


class Selection:
    """A policy's choice among what waits and where it could go; keeps nothing of its own."""

    def __init__(self, policy: Policy, queue: WaitingQueue, fleet: Fleet, longs: Set[str]) -> None:
        """`longs`: ids of the replicas that compute a long prompt, and take no second one meanwhile."""
        self._policy = policy
        self._queue = queue
        self._fleet = fleet
        self._longs = longs

    def next(self, now_s: float) -> tuple[Job, Room] | None:
        """The request that goes now, with where there is room for it; None: nobody can."""
        if choice := self._choose(now_s):
            job = choice[0]
            if (lateness := self._policy.ordering.lateness) is not None:
                self._queue.late.went(job, lateness.share)
            if job.lane is not _BACKGROUND:
                self._policy.background.others_went(job.cost_s)
        return choice

    def _choose(self, now_s: float) -> tuple[Job, Room] | None:
        if (job := self._queue.only) is not None:
            return self._choose_only(job, now_s)
        reserved: set[str] = set()
        for job in self._overdue_background(now_s):
            if room := self.with_room(job, reserved):
                if self._queue.num_requests > self._queue.num_in_lane(job.lane):
                    self._policy.background.claimed(job.cost_s)
                return job, room
            self._reserve(job, reserved)
        turns, lateness = self._policy.turns, self._policy.ordering.lateness
        held: set[tuple[Lane, PoolKey]] = set()
        num_places = len(self._queue.pools()) * sum(self._queue.num_in_lane(lane) > 0 for lane in _TURN_LANES)
        # A copy: a flow leaves the queue for a moment when its only request is postponed.
        for flow in turns.flows.in_order(tuple(self._queue.flows())):
            if len(held) == num_places:  # nobody else can go: a thousand flows aren't looked at in vain
                break
            # In its flow's turn, not before others': a tenant that floods would have everything overdue, and be served
            # in order of arrival.
            for job in self._queue.oldest_of(flow):
                if now_s - job.request.arrival_s >= self._policy.max_wait_s:
                    if room := self.with_room(job, reserved):
                        return job, room
                    self._reserve(job, reserved)
            if lateness is not None:
                self._postpone(flow, now_s)
                for job in self._queue.late.due(flow, lateness.share):
                    if room := self.with_room(job, reserved):
                        return job, room
            if heads := self._heads(flow, reserved, held):
                return heads[
                    turns.lanes(flow).next_lane({lane: (job.key, job.cost_s) for lane, (job, _) in heads.items()})
                ]
        return self._idle_capacity(reserved)

    def _heads(
        self, flow: FlowKey, reserved: set[str], held: set[tuple[Lane, PoolKey]]
    ) -> dict[Lane, tuple[Job, Room]]:
        """The first request of each of the flow's lanes that can go now, with where it can.

        `held`: where a flow whose turn came earlier has a request that doesn't fit, which nobody in the same lane and
        pool may pass: else those of others that are small enough could hold it up for ever.
        """
        heads: dict[Lane, tuple[Job, Room]] = {}
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

    def _postpone(self, flow: FlowKey, now_s: float) -> None:
        """Whoever comes first in a lane of this flow and can't be in time any more goes behind the others."""
        for lane in [lane for lane in self._queue.lanes(flow) if lane is not _BACKGROUND]:
            while late := [job for job in self._queue.heads(flow, lane) if job.start_by_s < now_s and not job.is_late]:
                for job in late:
                    self._queue.postpone(job)

    def _choose_only(self, job: Job, now_s: float) -> tuple[Job, Room] | None:
        """What the rules come to where nobody else waits."""
        room = self.with_room(job)
        if not room:
            return None
        if job.lane is not _BACKGROUND and now_s - job.request.arrival_s < self._policy.max_wait_s:
            self._policy.turns.lanes(job.flow).next_lane({job.lane: (job.key, job.cost_s)})
        return job, room

    def _overdue_background(self, now_s: float) -> list[Job]:
        """The first of each pool, of background work, where they have waited too long; oldest first."""
        background = self._policy.background
        if not (self._queue.num_in_lane(_BACKGROUND) and background.may_claim):
            return []
        oldest = self._queue.oldest_background()
        return [job for job in oldest if now_s - job.request.arrival_s >= background.max_wait_s]

    def _reserve(self, job: Job, reserved: set[str]) -> None:
        """Overdue and too big for what is free: the replica closest to having room takes nothing else meanwhile."""
        nearest = self._fleet.pool(job.pool).nearest(reserved | self._closed_to(job))
        if nearest is not None:
            reserved.add(nearest.replica_id)

    def _idle_capacity(self, reserved: set[str]) -> tuple[Job, Room] | None:
        """Background work runs where nobody else waits."""
        if not self._queue.num_in_lane(_BACKGROUND):
            return None
        closed = reserved | self._wanted()
        for flow in self._policy.turns.flows.in_order(self._queue.flows()):
            for job in self._queue.heads(flow, _BACKGROUND):
                if room := self.with_room(job, closed):
                    return job, room
        return None

    def _wanted(self) -> set[str]:
        """The replicas that somebody waits for who isn't background."""
        return {
            slots.replica_id
            for job in self._queue.oldest()
            for slots in self._fleet.pool(job.pool).members
            if slots.replica_id not in job.pool[3]
        }

    def with_room(self, job: Job, reserved: Set[str] = _NONE) -> Room | None:
        """Where this request could start now."""
        closed = self._closed_to(job)
        return self._fleet.pool(job.pool).room(job.slot_tokens, closed | reserved if closed else reserved)

    def under_caps(self, job: Job) -> Iterator[ReplicaSlots]:
        """Where the caps would allow it, whatever has been granted."""
        admission, slot_tokens, closed = self._policy.admission, job.slot_tokens, self._closed_to(job)
        for slots in self._fleet.pool(job.pool).members:
            replica = slots.replica
            caps = admission.max_in_flight_tokens(replica), admission.max_prefill_tokens(replica)
            if slots.replica_id not in closed and slots.room_tokens(*caps) >= slot_tokens:
                yield slots

    def _closed_to(self, job: Job) -> Set[str]:
        """Where it can't go, whatever room there is."""
        return job.pool.excluded if job.long is None else job.pool.excluded | self._longs

    def want_capacity(self, effects: list[Effect]) -> None:
        """Asks for what the heads of the queue need beyond the grants; once, until a grant comes."""
        if self._fleet.is_all_granted:
            return
        queue = self._queue
        for job in [job for flow in queue.flows() for lane in queue.lanes(flow) for job in queue.heads(flow, lane)]:
            for slots in self.under_caps(job):
                tokens = slots.in_flight_tokens + job.slot_tokens
                if job.slot_tokens > slots.granted_room_tokens and tokens > slots.asked_tokens:
                    slots.asked_tokens = tokens
                    effects.append(WantCapacity(slots.replica_id, tokens, (job.key, float(job.seq))))
