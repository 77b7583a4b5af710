"""When the prompts of calls that don't report a first token are thought to be computed."""

import heapq

from .books import Books
from .job import RunningCall


class EstimatedEnds:
    """When calls that don't report a first token are thought to have computed their prompts."""

    def __init__(self) -> None:
        self._ends: list[tuple[float, int]] = []  # heap of (instant, call id)

    @property
    def next_s(self) -> float | None:
        return self._ends[0][0] if self._ends else None

    def expect(self, call: RunningCall, end_s: float) -> None:
        heapq.heappush(self._ends, (end_s, call.call_id))

    def end_due(self, now_s: float, books: Books) -> None:
        """Those whose instant has come hold nothing of their replica's prefill bound any more."""
        while self._ends and self._ends[0][0] <= now_s:
            job = books.calls.get(heapq.heappop(self._ends)[1])
            if job is not None and job.call is not None:
                books.prefill_ended(job, job.call)
