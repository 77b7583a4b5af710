"""Who waits, who runs, and what each replica's running calls hold: every fact once."""

from .job import Job, RunningCall
from .lifecycle import LifecycleError, State
from .queue import WaitingQueue
from .slots import ReplicaSlots
from .types import Lane, ReplicaLike


class Books:
    """The records that `DispatchCore` keeps. No decision is made here."""

    def __init__(self) -> None:
        self.queue = WaitingQueue()
        self.jobs: dict[str, Job] = {}  # by request id, from offer to end
        self.calls: dict[int, Job] = {}  # by call id, while a slot is held
        self.replicas: dict[str, ReplicaSlots] = {}  # in order of replica id

    def running(self, call_id: int) -> tuple[Job, RunningCall]:
        """The call and its request; LifecycleError where it has ended or never began."""
        job = self.calls.get(call_id)
        if job is None or job.call is None:
            raise LifecycleError(f"call {call_id} isn't running: it has ended, or never began")
        return job, job.call

    def serves(self, model: str) -> bool:
        """Whether any replica names this model, available or not."""
        for slots in self.replicas.values():  # noqa: SIM110 - once a request: a generator takes three times as long
            if model in slots.replica.models:
                return True
        return False

    def start(self, job: Job, call: RunningCall) -> None:
        job.call = call
        self.calls[call.call_id] = job
        self.replicas[call.replica_id].take(call)

    def end(self, job: Job, call: RunningCall) -> None:
        job.call = None
        del self.calls[call.call_id]
        slots = self.replicas[call.replica_id]
        slots.give_back(call)
        self.forget_if_removed(slots)

    def announce(self, replica: ReplicaLike) -> None:
        slots = self.replicas.get(replica.replica_id)
        if slots is None:
            self.replicas[replica.replica_id] = ReplicaSlots(replica)
            self.replicas = dict(sorted(self.replicas.items()))
        else:
            slots.replica = replica
            slots.is_removed = False

    def forget_if_removed(self, slots: ReplicaSlots) -> None:
        if slots.is_removed and not slots.calls:
            del self.replicas[slots.replica.replica_id]

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
        for slots in self.replicas.values():
            assert slots.in_flight_tokens == sum(call.slot_tokens for call in slots.calls.values())
            assert slots.prefill_tokens == sum(call.prefill_tokens for call in slots.calls.values())
        for call_id, job in self.calls.items():
            assert job.call is not None
            assert job.call.call_id == call_id
            assert self.jobs[job.request.request_id] is job
