"""Long prompts on their way through a replica: when their calls are closed, when they go on, and how far.

One at a time on each replica. Between two of its calls a request is parked: in no queue, its slot kept, for its blocks
lie in the replica's cache and the request goes on nowhere else.
"""

from dataclasses import dataclass

from .books import Books
from .estimate.prefill import PrefillTiming
from .job import Job, RunningCall
from .lifecycle import Event, State
from .policy import Policy
from .slicing import Prefill
from .slots import ReplicaSlots
from .types import Effect, Lane, Outcome, Sample, StopCall

_STOPPED_RATIO = 0.8
"""Of what a closed call is thought to have computed, what is counted on: too little costs a short call, too much a long
slice."""
_HIT_RATIO = 0.5
"""Of what was computed ahead, what has to be found in the cache to have been worth it."""
_MAX_IN_VAIN = 2
"""So many requests in a row that found less, and their replica gets whole prompts for a while: it evicts what is
computed before it can be used."""
_PAUSE_S = 300.0


@dataclass(slots=True)
class SliceCounts:
    """What became of long prompts so far."""

    num_slices: int = 0
    num_stops: int = 0
    num_sliced: int = 0
    """Requests that had at least one slice."""
    num_in_vain: int = 0
    """Of those, how many found next to nothing of their slices in the cache."""


class LongPrefills:
    """Part of the core: reads and writes its books."""

    def __init__(self, books: Books) -> None:
        self._books = books
        self._others_came_s = float("-inf")
        self._in_vain: dict[str, int] = {}  # by replica id: such requests in a row
        self._paused_until_s: dict[str, float] = {}
        self.counts = SliceCounts()

    def came(self, job: Job, now_s: float) -> None:
        """A request was admitted."""
        if job.long is None and job.lane is not Lane.BACKGROUND:
            self._others_came_s = now_s

    def next_end(self, policy: Policy, job: Job, slots: ReplicaSlots, now_s: float) -> int | None:
        """How far the call goes that is about to begin there; None: whole. Enters the request where it is long."""
        long, block_tokens = job.long, slots.replica.slice_block_tokens
        if long is None or block_tokens is None or self.is_paused(slots.replica_id, now_s):
            return None
        self._books.longs[slots.replica.replica_id] = job
        long.since_s = now_s
        if long.goes_whole:
            return None
        end = policy.slicing.next_end(self._seen(policy, job, slots, block_tokens, now_s))
        if end is not None:
            self.counts.num_slices += 1
            self.counts.num_sliced += not long.num_slices
            long.num_slices += 1
        return end

    def computed(self, policy: Policy, job: Job, call: RunningCall, sample: Sample, now_s: float) -> None:
        """The request ended with an answer: learn from how long its prompt took."""
        end_tokens, ttft_s = job.request.prompt_tokens, sample.upstream_ttft_s
        if ttft_s is None or call.ahead_tokens != end_tokens - job.computed_tokens:
            return  # not known, or others' prompts were computed before it
        timing = policy.prefills.of(call.replica_id)
        if job.long is not None and job.long.num_slices:
            self._judge(job, call.replica_id, timing, sample.cached_tokens, ttft_s, now_s)
        else:
            policy.prefills.add(call.replica_id, sample.cached_tokens or 0, end_tokens, ttft_s)

    def _judge(
        self,
        job: Job,
        replica_id: str,
        timing: PrefillTiming,
        cached_tokens: int | None,
        ttft_s: float,
        now_s: float,
    ) -> None:
        """Whether the slices were of use: by what the replica says, else by how soon the first token came."""
        computed, end = job.computed_tokens, job.request.prompt_tokens
        if cached_tokens is not None:
            is_hit = cached_tokens >= _HIT_RATIO * computed
        else:
            rest_s, saved_s = timing.seconds(computed, end), timing.seconds(0, computed)
            is_hit = ttft_s <= rest_s + (1.0 - _HIT_RATIO) * saved_s
        self._in_vain[replica_id] = 0 if is_hit else self._in_vain.get(replica_id, 0) + 1
        self.counts.num_in_vain += not is_hit
        if self._in_vain[replica_id] >= _MAX_IN_VAIN:
            self._in_vain[replica_id] = 0
            self._paused_until_s[replica_id] = now_s + _PAUSE_S

    def is_paused(self, replica_id: str, now_s: float) -> bool:
        """Whether slices were in vain there lately, so that long prompts go whole."""
        until_s = self._paused_until_s.get(replica_id)
        return until_s is not None and now_s < until_s

    def forget(self, replica_id: str) -> None:
        """The replica is gone."""
        self._in_vain.pop(replica_id, None)
        self._paused_until_s.pop(replica_id, None)

    def part_ended(
        self,
        policy: Policy,
        job: Job,
        call: RunningCall,
        outcome: Outcome,
        sample: Sample,
        *,
        was_stopping: bool,
        now_s: float,
    ) -> None:
        """A slice ended, or a prefill was stopped: the request is parked."""
        long = job.long
        assert long is not None
        slots = self._books.replicas[call.replica_id]
        timing = policy.prefills.of(call.replica_id)
        if call.slice_end_tokens is not None and outcome is Outcome.SUCCESS:
            if sample.upstream_ttft_s is not None and call.ahead_tokens == call.slice_end_tokens - job.computed_tokens:
                policy.prefills.add(call.replica_id, job.computed_tokens, call.slice_end_tokens, sample.upstream_ttft_s)
            job.computed_tokens = min(call.slice_end_tokens, job.request.prompt_tokens)  # counted anew meanwhile
            long.may_be_stopped = True
        elif was_stopping and outcome is Outcome.IGNORED:
            reached = timing.end_tokens(job.computed_tokens, (now_s - long.since_s) * _STOPPED_RATIO)
            block_tokens = slots.replica.slice_block_tokens or 1
            last = (job.request.prompt_tokens - 1) // block_tokens * block_tokens
            job.computed_tokens = max(job.computed_tokens, min(last, int(reached) // block_tokens * block_tokens))
            long.may_be_stopped = False
        else:
            long.goes_whole = True  # the replica won't have slices of this one
        long.since_s = now_s
        self._books.park(job, call)

    def stop(self, policy: Policy, now_s: float, effects: list[Effect]) -> None:
        """Closes the calls of whole prefills that others wait behind."""
        for replica_id, job in self._books.longs.items():
            call, slots, long = job.call, self._books.replicas[replica_id], job.long
            block_tokens = slots.replica.slice_block_tokens
            if call is None or long is None or block_tokens is None or job.state is not State.CALLING:
                continue
            if (
                call.slice_end_tokens is None
                and long.may_be_stopped
                and not long.goes_whole
                and self._others_wait(policy, slots, call.prefill_tokens)
                and policy.slicing.may_stop(self._seen(policy, job, slots, block_tokens, now_s))
            ):
                job.move(Event.STOP)
                self.counts.num_stops += 1
                effects.append(StopCall(call.call_id, job.request.request_id, replica_id))

    def ready(self, policy: Policy) -> list[tuple[Job, ReplicaSlots]]:
        """The parked requests that go on now, with their replicas: nobody waits whom they would hold up."""
        return [(job, slots) for job, slots, _ in self._placed() if not self._others_wait(policy, slots, 0)]

    def overdue(self, policy: Policy, now_s: float) -> list[tuple[Job, ReplicaSlots]]:
        """The parked requests that have waited long enough and go on whoever waits, with their replicas."""
        patience_s = policy.slicing.patience_s
        return [(job, slots) for job, slots, since_s in self._placed() if now_s >= since_s + patience_s]

    def _placed(self) -> list[tuple[Job, ReplicaSlots, float]]:
        """Parked requests whose replica takes one more call, with their replicas and since when they are parked."""
        return [
            (job, slots, job.long.since_s)
            for replica_id, job in self._books.longs.items()
            if job.state is State.PARKED
            and job.long is not None
            and (slots := self._books.replicas[replica_id]).has_place
        ]

    def lost(self) -> list[Job]:
        """Parked requests whose replica can't be used any more."""
        return [
            job
            for replica_id, job in self._books.longs.items()
            if job.state is State.PARKED and not self._books.replicas[replica_id].is_usable
        ]

    def wakeups_s(self, policy: Policy) -> list[float]:
        """When parked requests go on whoever waits."""
        return [
            job.long.since_s + policy.slicing.patience_s
            for job in self._books.longs.values()
            if job.state is State.PARKED and job.long is not None
        ]

    def _others_wait(self, policy: Policy, slots: ReplicaSlots, own_tokens: int) -> bool:
        """Whether others wait for a first token on this replica, or for the prompt to make room for theirs."""
        if slots.prefill_tokens > own_tokens:
            return True
        if slots.prefill_tokens < policy.admission.max_prefill_tokens(slots.replica):
            return False  # what waits doesn't wait for prompts to be computed
        models = slots.replica.models
        return any(not pool.is_long and pool.model in models for pool in self._books.queue.pools())

    def _seen(self, policy: Policy, job: Job, slots: ReplicaSlots, block_tokens: int, now_s: float) -> Prefill:
        request = job.request
        own_tokens = 0 if job.call is None else job.call.prefill_tokens
        return Prefill(
            prompt_tokens=request.prompt_tokens,
            computed_tokens=job.computed_tokens,
            block_tokens=block_tokens,
            timing=policy.prefills.of(slots.replica.replica_id),
            left_s=None if request.deadline_s is None else request.deadline_s - now_s,
            quiet_s=0.0 if self._others_wait(policy, slots, own_tokens) else now_s - self._others_came_s,
        )
