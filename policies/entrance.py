"""Whether a request that is offered may wait, and where; when to come again if it may not."""

from .job import Job
from .policy import Policy
from .queue import WaitingQueue
from .shedding.port import ADMIT, Backlog, Ruling
from .types import Lane, Reason


def ruling(policy: Policy, queue: WaitingQueue, job: Job) -> Ruling:
    """What is to become of it; it has been put into a lane."""
    if not policy.queue_bounds.have_room(queue, job):
        return Ruling(Reason.QUEUE_FULL)
    if not queue.num_requests:
        return ADMIT
    return policy.shedding.rule(job.request, job.lane, backlog(policy, queue, job.request.model))


def backlog(policy: Policy, queue: WaitingQueue, model: str) -> Backlog:
    """What waits for this model, in seconds at the rate at which work of all models was got done lately."""
    capacity = policy.traffic.capacity
    by_lane = queue.work_s_by_lane(model)
    background_s = by_lane[Lane.BACKGROUND]
    turns_s = sum(by_lane.values()) - background_s
    return Backlog(turns_s / capacity, by_lane[Lane.INTERACTIVE] / capacity, background_s / capacity)


def why_late(job: Job, now_s: float) -> Reason:
    """Whose patience is over: the caller's, or that of all queues."""
    by_s = job.request.first_token_by_s
    return Reason.QUEUE_TIMEOUT if by_s is None or by_s > now_s else Reason.DEADLINE


def retry_after_s(policy: Policy, queue: WaitingQueue) -> float:
    """Seconds until all that waits now will have gone; at least 1."""
    return max(1.0, queue.work_s / policy.traffic.capacity)
