"""`DispatchCore`: the one truth about what waits and what is in flight.

Inputs are calls with the instant they happened; outputs are effects, returned by `poll`, which the shell performs.
After every input the shell polls; the next instant at which polling could matter by itself is `next_wakeup_s`.
Everything is synchronous and deterministic: the same inputs give the same effects.

A request is offered, waits, and is dispatched as one or more calls. A call holds a slot on its replica from the
`Call` effect until `call_ended`, whatever happens in between, and gives it back exactly once.
"""

from collections.abc import Collection
from typing import Final

from . import appraisal, entrance
from .deciding import Deciding
from .estimate.calibration import Calibration
from .estimate.prefill import TELLING_TOKENS
from .job import Job, PoolKey
from .lifecycle import Event, LifecycleError, State
from .long_prefills import SliceCounts
from .policy import Policy
from .replica_view import ReplicaView, view_of
from .shedding.port import ADMIT
from .types import Effect, Lane, Outcome, Reason, ReplicaLike, RequestLike, Sample
from .verdict import Admitted, Rejected, admitted

# For every request: see `policies.types`.
_DROPPED: Final = Outcome.DROPPED
_SUCCESS: Final = Outcome.SUCCESS
_IGNORED: Final = Outcome.IGNORED
_WAITING: Final = State.WAITING
_STOPPING: Final = State.STOPPING
_PARKED: Final = State.PARKED
_ENDED: Final = State.ENDED
_CALL_DONE: Final = Event.CALL_DONE


class DispatchCore(Deciding):
    """One core per set of replicas that share work. Not thread-safe; one shell owns it."""

    # --- inputs -----------------------------------------------------------------------------------------------------

    def offer(self, request: RequestLike, now_s: float) -> Admitted | Rejected:
        """A request arrives; its id must not be one that is still known (LifecycleError)."""
        if request.request_id in self._books.jobs:
            raise LifecycleError(f"request {request.request_id} was offered already")
        if not self._books.fleet.serves(request.model):
            return Rejected(Reason.UNKNOWN_MODEL, None)
        self._num_offered += 1
        job = Job(request, self._num_offered)
        appraisal.estimate(self._policy, job)
        appraisal.enlist(self._policy, job)
        ruling = entrance.ruling(self._policy, self._books.queue, job)
        if ruling is not ADMIT and not self._can_go_at_once(job):
            if ruling.reason is not None:
                retry_after_s = entrance.retry_after_s(self._policy, self._books.queue)
                return Rejected(ruling.reason, retry_after_s, job.lane)
            job.ruling = ruling
            appraisal.classify(self._policy, job)
        self._books.jobs[request.request_id] = job
        self._longs.came(job, now_s)
        self._join_queue(job)
        return admitted(job)

    def recount(self, request: RequestLike, now_s: float) -> Admitted | None:
        """The prompt of a request was estimated and has been counted: the same request, with other prompt tokens.

        While it waits, it is put into a lane and ordered anew, its arrival kept, and what became of it is returned. Of
        one that runs only the slot changes. None for both that and a request that has ended.
        """
        job = self._books.jobs.get(request.request_id)
        if job is None:
            return None
        if job.state is not _WAITING:
            job.request = request
            job.computed_tokens = min(job.computed_tokens, request.prompt_tokens)
            appraisal.estimate(self._policy, job)
            self._books.resize(job)
            return None
        left_lane = job.lane
        self._books.queue.remove(job)
        job.request = request
        job.computed_tokens = min(job.computed_tokens, request.prompt_tokens)
        appraisal.estimate(self._policy, job)
        appraisal.classify(self._policy, job)
        self._join_queue(job)
        self._left_lane(job.flow, left_lane)
        return admitted(job)

    def cancel(self, request_id: str, now_s: float) -> None:
        """The client left, or the shell gives up. Idempotent; an unknown id is one that has ended.

        A request without a call is gone at once. A running one keeps its slot until `call_ended`, with whatever
        outcome.
        """
        job = self._books.jobs.get(request_id)
        if job is None:
            return
        if job.state is _WAITING:
            self._leave_queue(job)
        elif job.state is _PARKED:
            self._books.unpark(job)
        job.move(Event.CANCEL)
        if job.state is _ENDED:
            del self._books.jobs[request_id]

    def first_token(self, call_id: int, now_s: float) -> None:
        """The first output token of a call came: its prompt has been computed."""
        job, call = self._books.running(call_id)
        job.move(Event.FIRST_TOKEN)
        self._books.prefill_ended(job, call)

    def progress(self, call_id: int, output_tokens: int, now_s: float) -> None:
        """Output tokens of this call so far, over all choices. Beyond the prediction, the slot grows with them."""
        job, _ = self._books.running(call_id)
        if output_tokens > job.output_tokens:
            self._policy.turns.flows.charge(job.flow, 0, output_tokens - job.output_tokens)
            job.output_tokens = output_tokens
        self._books.resize(job)

    def call_ended(self, call_id: int, outcome: Outcome, sample: Sample, now_s: float) -> None:
        """The call is over and its slot free. Once per call: a second time raises LifecycleError.

        SUCCESS and IGNORED end the request, unless this was a slice or a prefill stopped by `StopCall`: those go on
        by themselves, after an IGNORED slice in one call. DROPPED leaves it to the shell, which says `requeue` or
        `cancel`.
        """
        job, call = self._books.running(call_id)
        was_stopping = job.state is _STOPPING
        if outcome is _DROPPED:
            event = Event.CALL_DROPPED
        elif call.slice_end_tokens is not None or (was_stopping and outcome is _IGNORED):
            event = Event.CALL_PART_DONE
        else:
            event = _CALL_DONE
        job.move(event)
        slots = self._books.replicas[call.replica_id]
        if job.state is _PARKED:
            self._longs.part_ended(self._policy, job, call, outcome, sample, was_stopping=was_stopping, now_s=now_s)
            return
        if outcome is _SUCCESS and call.slice_end_tokens is None:
            appraisal.time(self._policy, job, call, slots, sample, now_s)
            if job.long is not None or job.request.prompt_tokens >= TELLING_TOKENS:
                self._longs.computed(self._policy, job, call, sample, now_s)
        self._books.end(job, call)
        appraisal.settle(self._policy, job, outcome, sample)
        if job.state is _ENDED:
            del self._books.jobs[job.request.request_id]

    def requeue(self, request_id: str, exclude: Collection[str], now_s: float) -> None:
        """After a failed call: waits again with its old arrival, never to be sent to these replicas again."""
        job = self._books.jobs.get(request_id)
        if job is None:
            raise LifecycleError(f"request {request_id} has ended")
        job.move(Event.REQUEUE)
        job.exclude(exclude)
        job.output_tokens = job.computed_tokens = 0
        self._join_queue(job)

    def replica_changed(self, replica: ReplicaLike, now_s: float) -> None:
        """A replica is new, or something of it changed. Until `capacity_granted`, a new one has no capacity."""
        self._books.fleet.announce(replica)

    def replica_removed(self, replica_id: str, now_s: float) -> None:
        """Nothing more is sent there; its running calls end as they end."""
        appraisal.forget(self._policy, replica_id)
        self._longs.forget(replica_id)
        self._books.fleet.remove(replica_id)

    def capacity_granted(self, replica_id: str, tokens: int | None, now_s: float) -> None:
        """Tokens that may be in flight there in all; None: everything. Less than what runs stops nothing that runs."""
        self._books.fleet.grant(replica_id, tokens)

    def set_policy(self, policy: Policy, now_s: float) -> None:
        """From now on this policy decides; what waits is estimated, put into lanes and ordered anew."""
        waiting = self._books.queue.jobs()
        self._use(policy)
        for job in waiting:
            appraisal.estimate(policy, job)
            appraisal.enlist(policy, job)
            self._join_queue(job)

    # --- outputs ----------------------------------------------------------------------------------------------------

    def poll(self, now_s: float) -> list[Effect]:
        """Everything that can be done now. The core counts it as done: the shell must perform each effect."""
        effects: list[Effect] = []
        self._decide(now_s, effects)
        return effects

    def next_wakeup_s(self) -> float | None:
        """The next instant at which `poll` might do something without further input; None: none."""
        instants = self._absence.ends_s(self._policy.no_replica_grace_s)
        if (prefill_end_s := self._prefill_ends.next_s) is not None:
            instants.append(prefill_end_s)
        if self._books.longs:
            instants += (end_s for end_s in self._longs.wakeups_s(self._policy) if end_s > self._polled_s)
        if not self._books.queue.num_requests:
            return min(instants, default=None)
        for jobs, max_wait_s in (
            (self._books.queue.oldest(), self._policy.max_wait_s),
            (self._books.queue.oldest_background(), self._policy.background.max_wait_s),
        ):
            overdue = (job.request.arrival_s + max_wait_s for job in jobs)
            instants.extend(overdue_s for overdue_s in overdue if overdue_s > self._polled_s)
        if (late := self._books.queue.next_deadline()) and late.request.deadline_s is not None:
            instants.append(late.request.deadline_s)
        return min(instants, default=None)

    # --- views ------------------------------------------------------------------------------------------------------

    @property
    def policy_name(self) -> str:
        return self._policy.name

    @property
    def calibration(self) -> Calibration:
        """How right this policy's predictions have been."""
        return self._policy.traffic.calibration

    @property
    def num_queued(self) -> int:
        return self._books.queue.num_requests

    @property
    def has_parked(self) -> bool:
        """Whether a request waits between two calls that compute its prompt."""
        longs = self._books.longs
        return bool(longs) and any(job.state is _PARKED for job in longs.values())

    @property
    def num_in_flight(self) -> int:
        """Calls that hold a slot."""
        return len(self._books.calls)

    def knows(self, request_id: str) -> bool:
        """Whether this request was admitted and hasn't ended."""
        return request_id in self._books.jobs

    def in_flight_tokens(self, replica_id: str) -> int:
        slots = self._books.replicas.get(replica_id)
        return slots.in_flight_tokens if slots else 0

    def view(self, replica_id: str) -> ReplicaView | None:
        """What is known of a replica; None: nobody announced it."""
        slots = self._books.replicas.get(replica_id)
        return view_of(self._policy, slots) if slots else None

    @property
    def slice_counts(self) -> SliceCounts:
        """What became of long prompts so far."""
        return self._longs.counts

    def queued_by_lane(self) -> dict[Lane, int]:
        return self._books.queued_by_lane()

    def can_serve(self, model: str, exclude: Collection[str] = (), *, feature: str | None = None) -> bool:
        """Whether an available replica outside `exclude` serves this model: would a `requeue` find a place?"""
        return self._books.fleet.has_replica(PoolKey(model, None, feature, frozenset(exclude)))

    def check_integrity(self) -> None:
        """Raises AssertionError where two records of the same fact differ. For tests, and for a check when idle."""
        self._books.check_integrity()

    # --- inside -----------------------------------------------------------------------------------------------------

    def _can_go_at_once(self, job: Job) -> bool:
        """Whether it wouldn't wait, so that a full queue is none of its business."""
        return job.pool not in self._books.queue.pools() and any(self._selection.under_caps(job))
