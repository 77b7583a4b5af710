"""What a core does at a poll: who leaves the queue, who goes where, what becomes of long prompts.

`DispatchCore` takes the inputs and shows what is so; this is the half of it that decides.
"""

from functools import partial
from typing import Final

from . import appraisal, entrance, idle
from .absence import Absence
from .adaptive import Choice
from .books import Books
from .fairness.flows import FlowKey
from .job import Job, RunningCall
from .lifecycle import Event
from .long_prefills import LongPrefills
from .policy import Policy
from .prefills import EstimatedEnds
from .queue import WaitingQueue
from .routing.port import Room
from .selection import Selection
from .slots import ReplicaSlots
from .types import Call, Effect, Evict, Lane, Notice, Reason

# For every request: see `policies.types`.
_DISPATCH: Final = Event.DISPATCH
_LANE: Final = Reason.LANE
_CAPACITY: Final = Reason.CAPACITY

REFIT_EVERY_S = 10.0
"""How often orderings are fitted to the traffic."""


class Deciding:
    """Records, the policy, and the decisions of a poll over them."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self.idle = idle.IdleTime()
        self._books = Books(policy.admission)
        self._selection = Selection(policy, self._books.queue, self._books.fleet, self._books.longs.keys())
        self._absence = Absence()
        self._prefill_ends = EstimatedEnds()
        self._longs = LongPrefills(self._books)
        self.num_choice_changes = 0
        self._num_offered = 0
        self._num_calls = 0
        self._latest_arrival_dispatched_s = float("-inf")
        self._polled_s = float("-inf")
        self._refit_s = float("-inf")

    @property
    def choice(self) -> Choice | None:
        """What a policy that chooses among several ways does at present, and why; None: this one doesn't choose."""
        return self._policy.ordering.choice

    def _use(self, policy: Policy) -> None:
        """It decides from now on, over an empty queue."""
        self._policy = policy
        self._books.fleet.govern(policy.admission)
        self._books.queue = WaitingQueue()
        self._selection = Selection(policy, self._books.queue, self._books.fleet, self._books.longs.keys())

    def _decide(self, now_s: float, effects: list[Effect]) -> None:
        """What `poll` returns, in order."""
        self._polled_s = now_s
        if now_s >= self._refit_s:
            self._refit_s = now_s + REFIT_EVERY_S
            if self._policy.ordering.refit(self._policy.traffic.load()):
                self._books.queue.reorder(partial(appraisal.order, self._policy))
                if chosen := self.choice:
                    self.num_choice_changes += 1
                    effects.append(Notice(f"requests are ordered by {chosen.name} from now on: {chosen.why}"))
        if self._books.longs:
            self._start_over()
            # Whose patience is over goes first: where calls are bounded, the queue would always take the place.
            self._go_on(self._longs.overdue(self._policy, now_s), now_s, effects)
        queue = self._books.queue
        if not (queue.num_requests or self._absence.is_noted):
            self._prefill_ends.end_due(now_s, self._books)
        else:
            selection = self._selection
            self._evict_late(now_s, effects)
            if self._absence.is_noted:  # before anybody goes, so that what held it back is known
                self._evict_unservable(now_s, effects)
            self._prefill_ends.end_due(now_s, self._books)
            while queue.num_requests and (choice := selection.next(now_s)):
                effects.append(self._dispatch(*choice, now_s))
            if queue.num_requests:
                self._evict_unservable(now_s, effects)
                selection.want_capacity(effects)
                self.idle.polled(now_s, idle.found(queue, selection))
        if self.idle.since_s is not None and not queue.num_requests:
            self.idle.polled(now_s, idle.Idle.NOTHING)
        if self._books.longs:  # what becomes of long prompts, now that everybody who could go has gone
            self._go_on(self._longs.ready(self._policy), now_s, effects)
            self._longs.stop(self._policy, now_s, effects)
        self._policy.traffic.polled(now_s, queue.num_requests, len(self._books.calls))

    def _join_queue(self, job: Job) -> None:
        queue = self._books.queue
        waiting = queue.flows() if queue.num_requests else ()
        if job.flow not in waiting:
            self._policy.turns.flows.woke(job.flow, waiting)
        queue.add(job)

    def _leave_queue(self, job: Job) -> None:
        self._books.queue.remove(job)
        self._left_lane(job.flow, job.lane)

    def _left_lane(self, flow: FlowKey, lane: Lane) -> None:
        queue = self._books.queue
        if not queue.num_requests or not queue.waits_in(flow, lane):
            self._policy.turns.lanes(flow).emptied(lane)

    def _evict(self, job: Job, reason: Reason, effects: list[Effect]) -> None:
        self._leave_queue(job)
        retry_after_s = entrance.retry_after_s(self._policy, self._books.queue)
        job.move(Event.EVICT)
        del self._books.jobs[job.request.request_id]
        effects.append(Evict(job.request.request_id, reason, retry_after_s))

    def _evict_late(self, now_s: float, effects: list[Effect]) -> None:
        while (job := self._books.queue.next_deadline()) and (job.request.deadline_s or 0.0) <= now_s:
            self._evict(job, entrance.why_late(job, now_s), effects)

    def _evict_unservable(self, now_s: float, effects: list[Effect]) -> None:
        pools, has_replica = self._books.queue.pools(), self._books.fleet.has_replica
        if not self._absence.is_noted and all(map(has_replica, pools)):
            return
        self._absence.note({pool for pool in pools if not has_replica(pool)}, now_s)
        if given_up := self._absence.give_up(self._policy.no_replica_grace_s, now_s):
            for job in self._books.queue.jobs():
                if job.pool in given_up:
                    self._evict(job, Reason.NO_REPLICA, effects)

    def _dispatch(self, job: Job, room: Room, now_s: float) -> Call:
        policy, request = self._policy, job.request
        replica_id, why = policy.routing.pick(request, room)
        policy.turns.flows.charge(job.flow, request.prompt_tokens, 0)
        if job.charged_to is None:
            lanes = policy.turns.lanes(job.flow)
            lanes.charge(job.lane, job.cost_s)
            job.charged_to, job.charged_s = lanes, job.cost_s
        self._leave_queue(job)
        waited_for = self._waited_for(job, now_s)
        if request.arrival_s > self._latest_arrival_dispatched_s:
            self._latest_arrival_dispatched_s = request.arrival_s
        return self._start(job, self._books.replicas[replica_id], why, waited_for, now_s)

    def _start_over(self) -> None:
        """Long prompts whose replica can't be used any more wait again: what was computed lay in its cache."""
        for job in self._longs.lost():
            self._books.unpark(job)
            job.move(Event.UNPARK)
            job.computed_tokens = 0
            self._join_queue(job)

    def _go_on(self, parked: list[tuple[Job, ReplicaSlots]], now_s: float, effects: list[Effect]) -> None:
        for job, slots in parked:
            self._books.unpark(job)
            effects.append(self._start(job, slots, "where its prompt is being computed", None, now_s))

    def _start(self, job: Job, slots: ReplicaSlots, why: str, waited_for: Reason | None, now_s: float) -> Call:
        policy, request, replica_id = self._policy, job.request, slots.replica_id
        slice_end_tokens = self._longs.next_end(policy, job, slots, now_s) if job.long is not None else None
        prefill_tokens = (slice_end_tokens or request.prompt_tokens) - job.computed_tokens
        self._num_calls += 1
        call = RunningCall(
            self._num_calls,
            replica_id,
            job.slot_tokens,
            prefill_tokens,
            slice_end_tokens,
            slots.prefill_tokens + prefill_tokens,
            len(slots.calls) + 1,
            now_s,
        )
        if not request.streams:
            self._prefill_ends.expect(call, now_s + policy.cost.prefill_s(replica_id, call.ahead_tokens))
        job.move(_DISPATCH)
        self._books.start(job, call)
        return Call(call.call_id, request, replica_id, slice_end_tokens, job.lane, why, waited_for)

    def _waited_for(self, job: Job, now_s: float) -> Reason | None:
        if now_s <= job.request.arrival_s:
            return None
        if self._absence.held_back(job.pool, job.request.arrival_s):
            return Reason.NO_REPLICA
        passed = job.request.arrival_s < self._latest_arrival_dispatched_s
        return _LANE if passed else _CAPACITY
