"""Work conservation, measured: time during which a request waits that a replica has room for."""

from enum import Enum

from .queue import WaitingQueue
from .selection import Selection
from .types import Lane


class Idle(Enum):
    """What a poll left behind."""

    NOTHING = "nothing"
    """Nobody waits, or nobody of those that have waited longest fits anywhere."""
    KEPT = "kept"
    """Somebody fits, and it may be that the policy keeps the room for another: see `found`."""
    VIOLATION = "violation"
    """Somebody fits, and nothing that a policy declares can be why it waits."""


def found(queue: WaitingQueue, selection: Selection) -> Idle:
    """Looks at the longest waiting request of each pool, after everything was done that could be; O(pools).

    Room is kept on purpose for the head of a lane, for one that is overdue, and for what isn't background work. None of
    that can be the reason where one flow waits, in one pool, nothing of it background, and the oldest leads its lane.
    """
    oldest = queue.oldest() or queue.oldest_background()
    for job in oldest:
        if selection.with_room(job):
            is_alone = len(oldest) == 1 == len(queue.flows()) and not queue.num_in_lane(Lane.BACKGROUND)
            return Idle.VIOLATION if is_alone and job in queue.heads(job.flow, job.lane) else Idle.KEPT
    return Idle.NOTHING


class IdleTime:
    """Adds it up, by what was found. `since_s` None: nothing is idle."""

    __slots__ = ("_found", "num_times", "seconds", "since_s")

    def __init__(self) -> None:
        self.seconds = {Idle.KEPT: 0.0, Idle.VIOLATION: 0.0}
        self.num_times = {Idle.KEPT: 0, Idle.VIOLATION: 0}
        self.since_s: float | None = None
        self._found = Idle.NOTHING

    def polled(self, now_s: float, is_found: Idle) -> None:
        """A poll has ended, which found this; it holds until the next one."""
        if self.since_s is not None:
            self.seconds[self._found] += now_s - self.since_s
        if is_found is Idle.NOTHING:
            self.since_s = None
        else:
            self.num_times[is_found] += self.since_s is None or is_found is not self._found
            self.since_s = now_s
        self._found = is_found
