"""Requests that can't be in time any more: behind all others, but never without a part of the slots."""

from .fairness.flows import FlowKey
from .heaps import Arrivals
from .job import Job

LATE_KEY_S = 1e9
"""Beyond the keys of all that can be in time; small enough that arrivals added to it keep their order."""


class LateFifo:
    """By flow, in order of arrival. Each dispatch of a flow earns its late ones their share of one, which one uses."""

    def __init__(self) -> None:
        self._by_flow: dict[FlowKey, Arrivals] = {}
        self._earned: dict[FlowKey, float] = {}  # of a dispatch; 0 when the first late one comes

    def add(self, job: Job) -> None:
        of_flow = self._by_flow.get(job.flow)
        if of_flow is None:
            of_flow = self._by_flow[job.flow] = Arrivals()
            self._earned[job.flow] = 0.0
        of_flow.add(job)

    def remove(self, job: Job) -> None:
        """Its ticket has moved on."""
        of_flow = self._by_flow[job.flow]
        of_flow.remove(job.pool)
        if not of_flow.pools():
            del self._by_flow[job.flow], self._earned[job.flow]

    def went(self, job: Job, share: float) -> None:
        """It is dispatched; it is in the queue still."""
        if job.flow in self._earned:
            earned = self._earned[job.flow] + share
            self._earned[job.flow] = max(0.0, earned - 1.0) if job.is_late else earned

    def due(self, flow: FlowKey, share: float) -> list[Job]:
        """The oldest of each pool, oldest first, if it is their turn; none else."""
        if flow not in self._by_flow or self._earned[flow] + share < 1.0 - 1e-9:
            return []
        return self._by_flow[flow].oldest()
