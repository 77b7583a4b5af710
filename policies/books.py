"""Who waits, who runs, and what each replica's running calls hold: every fact once."""

from collections.abc import Mapping

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
        slots = self.replicas[call.replica_id]
        slots.give_back(call)
        self.fleet.forget_if_removed(slots)

    def queued_by_lane(self) -> dict[Lane, int]:
        return {lane: self.queue.num_in_lane(lane) for lane in Lane}

    def check_integrity(self) -> None:
        """Raises AssertionError where two records of the same fact differ."""
        waiting = self.queue.jobs()
        assert len(waiting) == self.queue.num_requests == sum(self.queued_by_lane().values())
        assert sum(job.slot_tokens for job in waiting) == self.queue.num_tokens
        assert sum(job.request.body_bytes for job in waiting) == self.queue.num_bytes
        for lane in Lane:
            work_s = sum(job.cost_s for job in waiting if job.lane is lane)
            assert abs(self.queue.work_s_in_lane(lane) - work_s) <= 1e-6 * (1.0 + work_s)
        assert {job.request.request_id for job in waiting} == {
            request_id for request_id, job in self.jobs.items() if job.state is State.WAITING
        }
        held = {call_id for slots in self.replicas.values() for call_id in slots.calls}
        assert held == set(self.calls)
        self.fleet.check_integrity()
        for call_id, job in self.calls.items():
            assert job.call is not None
            assert job.call.call_id == call_id
            assert self.jobs[job.request.request_id] is job
