"""Who waits, who runs, and what each replica's running calls hold: every fact once."""

from collections.abc import Mapping
from itertools import product

from .admission.port import Admission
from .fleet import Fleet
from .job import Job, RunningCall
from .lifecycle import LifecycleError, State
from .queue import WaitingQueue
from .slots import ReplicaSlots
from .types import Lane


class Books:
    """The records that `DispatchCore` keeps. No decision is made here."""

    def __init__(self, admission: Admission) -> None:
        self.queue = WaitingQueue()
        self.jobs: dict[str, Job] = {}  # by request id, from offer to end
        self.calls: dict[int, Job] = {}  # by call id, while a slot is held
        self.longs: dict[str, Job] = {}  # by replica id: whose prompt is computed there in as many calls as it takes
        self.fleet = Fleet(admission)
        self.replicas: Mapping[str, ReplicaSlots] = self.fleet.replicas

    def running(self, call_id: int) -> tuple[Job, RunningCall]:
        """The call and its request; LifecycleError where it has ended or never began."""
        job = self.calls.get(call_id)
        if job is None or job.call is None:
            raise LifecycleError(f"call {call_id} isn't running: it has ended, or never began")
        return job, job.call

    def start(self, job: Job, call: RunningCall) -> None:
        job.call = call
        self.calls[call.call_id] = job
        self.replicas[call.replica_id].take(call)

    def end(self, job: Job, call: RunningCall) -> None:
        job.call = None
        del self.calls[call.call_id]
        if self.longs and self.longs.get(call.replica_id) is job:
            del self.longs[call.replica_id]
        slots = self.replicas[call.replica_id]
        slots.give_back(call)
        self.fleet.forget_if_removed(slots)

    def resize(self, job: Job) -> None:
        """What it holds on its replica follows what is known of it."""
        if job.call is not None:
            self.replicas[job.call.replica_id].resize(job.call, job.slot_tokens)
        elif job.state is State.PARKED:
            slots = self.replicas[self._parked_at(job)]
            slots.unpark()
            slots.park(job.slot_tokens)

    def _parked_at(self, job: Job) -> str:
        return next(replica_id for replica_id, parked in self.longs.items() if parked is job)

    def prefill_ended(self, job: Job, call: RunningCall) -> None:
        """The prompt has been computed: the replica may take the next long one, unless this was a slice, or stops."""
        self.replicas[call.replica_id].prefill_ended(call)
        if (
            self.longs
            and call.slice_end_tokens is None
            and job.state is not State.STOPPING
            and self.longs.get(call.replica_id) is job
        ):
            del self.longs[call.replica_id]

    def park(self, job: Job, call: RunningCall) -> None:
        """Between two slices: the call is over, the slot is kept, and so is the ledger of a replica that is removed."""
        job.call = None
        del self.calls[call.call_id]
        self.longs[call.replica_id] = job
        slots = self.replicas[call.replica_id]
        slots.give_back(call)
        slots.park(job.slot_tokens)

    def unpark(self, job: Job) -> None:
        """It goes on, or ends."""
        replica_id = self._parked_at(job)
        del self.longs[replica_id]
        slots = self.replicas[replica_id]
        slots.unpark()
        self.fleet.forget_if_removed(slots)

    def queued_by_lane(self) -> dict[Lane, int]:
        return {lane: self.queue.num_in_lane(lane) for lane in Lane}

    def check_integrity(self) -> None:
        """Raises AssertionError where two records of the same fact differ."""
        waiting = self.queue.jobs()
        assert len(waiting) == self.queue.num_requests == sum(self.queued_by_lane().values())
        assert sum(job.slot_tokens for job in waiting) == self.queue.num_tokens
        assert sum(job.request.body_bytes for job in waiting) == self.queue.num_bytes
        for model, lane in product({job.request.model for job in waiting}, Lane):
            work_s = sum(job.cost_s for job in waiting if job.lane is lane and job.request.model == model)
            assert abs(self.queue.work_s_by_lane(model)[lane] - work_s) <= 1e-6 * (1.0 + work_s)
        assert {job.request.request_id for job in waiting} == {
            request_id for request_id, job in self.jobs.items() if job.state is State.WAITING
        }
        held = {call_id for slots in self.replicas.values() for call_id in slots.calls}
        assert held == set(self.calls)
        self.fleet.check_integrity()
        for replica_id, job in self.longs.items():
            assert self.jobs[job.request.request_id] is job
            held_tokens = job.slot_tokens if job.state is State.PARKED else 0
            assert self.replicas[replica_id].parked_tokens == held_tokens
        for call_id, job in self.calls.items():
            assert job.call is not None
            assert job.call.call_id == call_id
            assert self.jobs[job.request.request_id] is job
