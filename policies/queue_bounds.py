"""How much may wait: memory stays bounded, whatever comes."""

from dataclasses import dataclass

from .job import Job
from .queue import WaitingQueue


@dataclass(frozen=True, slots=True)
class QueueBounds:
    """`max_tokens`: of prompts and predicted outputs. `max_bytes`: of the bodies held meanwhile.

    One request alone may be larger than the bounds on tokens and bytes: bodies and prompts have limits of their own.
    """

    max_requests: int
    max_tokens: int
    max_bytes: int

    def have_room(self, queue: WaitingQueue, job: Job) -> bool:
        """Whether it may join those that wait."""
        num_requests = queue.num_requests
        if num_requests >= self.max_requests:
            return False
        return not num_requests or (
            queue.num_tokens + job.slot_tokens <= self.max_tokens
            and queue.num_bytes + job.request.body_bytes <= self.max_bytes
        )
