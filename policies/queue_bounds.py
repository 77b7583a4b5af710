"""How much may wait: memory stays bounded, whatever comes."""

import math
from dataclasses import dataclass

from .job import Job
from .queue import WaitingQueue
from .types import Lane

_BACKGROUND_PART = 0.5


@dataclass(frozen=True, slots=True)
class QueueBounds:
    """`max_tokens`: of prompts and predicted outputs. `max_bytes`: of the bodies held meanwhile.

    One request alone may be larger than the bounds on tokens and bytes: bodies and prompts have limits of their own.
    Background work, which waits longest, joins only up to half of each, so that it keeps nobody else out.
    """

    max_requests: int
    max_tokens: int
    max_bytes: int

    def have_room(self, queue: WaitingQueue, job: Job) -> bool:
        """Whether it may join those that wait."""
        num_requests = queue.num_requests
        part = _BACKGROUND_PART if job.lane is Lane.BACKGROUND else 1.0
        if num_requests >= math.ceil(self.max_requests * part):
            return False
        return not num_requests or (
            queue.num_tokens + job.slot_tokens <= self.max_tokens * part
            and queue.num_bytes + job.request.body_bytes <= self.max_bytes * part
        )
