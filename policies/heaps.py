"""Heaps of waiting jobs, from which jobs are removed by marking them: their tickets move on."""

import heapq
from collections.abc import Set

from .job import Job, PoolKey
from .lifecycle import State

Entry = tuple[float, int, int, Job]  # key, seq, ticket, job: seq is unique, so jobs are never compared


class Arrivals:
    """Waiting jobs by arrival within each pool."""

    def __init__(self) -> None:
        self._heaps: dict[PoolKey, list[Entry]] = {}
        self._num_in: dict[PoolKey, int] = {}

    def add(self, job: Job) -> None:
        pool = job.pool
        heapq.heappush(self._heaps.setdefault(pool, []), (job.request.arrival_s, job.seq, job.ticket, job))
        self._num_in[pool] = self._num_in.get(pool, 0) + 1

    def remove(self, pool: PoolKey) -> None:
        """One of this pool has left: its ticket has moved on."""
        self._num_in[pool] -= 1
        if not self._num_in[pool]:
            del self._num_in[pool], self._heaps[pool]
        else:
            compact(self._heaps[pool], self._num_in[pool])

    def pools(self) -> Set[PoolKey]:
        return self._num_in.keys()

    def oldest(self) -> list[Job]:
        oldest = [top(heap) for heap in self._heaps.values()]
        if len(oldest) > 1:
            oldest.sort(key=lambda job: job.seq)
        return oldest


def is_live(entry: Entry) -> bool:
    """Whether its job waits still, and under this entry."""
    return entry[3].ticket == entry[2] and entry[3].state is State.WAITING


def top(heap: list[Entry]) -> Job:
    """The first that is live; there must be one."""
    while not is_live(heap[0]):
        heapq.heappop(heap)
    return heap[0][3]


def compact(heap: list[Entry], num_live: int) -> None:
    """Rebuilt where most of it is dead."""
    if len(heap) > 64 and len(heap) > 4 * num_live:
        heap[:] = [entry for entry in heap if is_live(entry)]
        heapq.heapify(heap)
