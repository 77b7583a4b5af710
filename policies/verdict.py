"""What becomes of a request that is offered."""

from typing import NamedTuple

from .job import Job
from .types import Lane, Reason


class Admitted(NamedTuple):
    """The request waits. `own_lane`: the lane by its size or declaration, whatever overload made of it."""

    lane: Lane
    lane_why: str
    predicted_output_tokens: int
    budget_tokens: float
    own_lane: Lane


class Rejected(NamedTuple):
    """The request was turned away and is unknown to the core.

    `retry_after_s` None: waiting doesn't help. `lane`: the one it would have been in; None where it didn't come so far.
    """

    reason: Reason
    retry_after_s: float | None
    lane: Lane | None = None


def admitted(job: Job) -> Admitted:
    return Admitted(job.lane, job.lane_why, job.predicted_output_tokens, job.budget_tokens, job.own_lane)
