"""The waiting requests: heaps by lane and pool, with removal by invalidation."""

import heapq
from collections.abc import Collection, Sequence, Set

from .fairness.flows import FlowKey
from .job import Job, PoolKey
from .lifecycle import State
from .types import Lane

_Entry = tuple[float, int, int, Job]  # key, seq, ticket, job: seq is unique, so jobs are never compared


class WaitingQueue:
    """Answers "which is first" by key within a flow, lane and pool, by arrival within a pool, by deadline over all.

    A job that leaves is only marked (its ticket moves on); dead entries are dropped when they reach the top, and a
    heap is rebuilt when most of it is dead, so everything is O(log n) amortised and memory follows what waits.

    A job that waits alone is kept beside the heaps, as `only`: a gateway that isn't overloaded sees hardly any other.
    """

    def __init__(self) -> None:
        self._by_flow: dict[FlowKey, dict[Lane, dict[PoolKey, list[_Entry]]]] = {}
        self._arrivals = _Arrivals()
        self._arrivals_by_flow: dict[FlowKey, _Arrivals] = {}
        self._background_arrivals = _Arrivals()
        self._by_deadline: list[_Entry] = []
        self._num_in: dict[tuple[FlowKey, Lane, PoolKey], int] = {}
        self._num_by_lane = dict.fromkeys(Lane, 0)
        self.only: Job | None = None
        """The job that waits, if it came into an empty queue and is alone still."""
        self.num_requests = 0
        self.num_tokens = 0
        self.num_bytes = 0
        self._work_s_by_lane = dict.fromkeys(Lane, 0.0)

    def add(self, job: Job) -> None:
        if not self.num_requests:
            self.only = job
        else:
            if self.only is not None:
                self._push(self.only)
                self.only = None
            self._push(job)
        self._num_by_lane[job.lane] += 1
        self.num_requests += 1
        self.num_tokens += job.slot_tokens
        self.num_bytes += job.request.body_bytes
        self._work_s_by_lane[job.lane] += job.cost_s

    def _push(self, job: Job) -> None:
        job.ticket += 1
        flow, pool, lane, request = job.flow, job.pool, job.lane, job.request
        heaps = self._by_flow.setdefault(flow, {}).setdefault(lane, {})
        heapq.heappush(heaps.setdefault(pool, []), (job.key, job.seq, job.ticket, job))
        if lane is Lane.BACKGROUND:
            self._background_arrivals.add(job)
        else:
            self._arrivals.add(job)
            of_flow = self._arrivals_by_flow.get(flow)
            if of_flow is None:
                of_flow = self._arrivals_by_flow[flow] = _Arrivals()
            of_flow.add(job)
        if request.deadline_s is not None:
            heapq.heappush(self._by_deadline, (request.deadline_s, job.seq, job.ticket, job))
        self._num_in[flow, lane, pool] = self._num_in.get((flow, lane, pool), 0) + 1

    def remove(self, job: Job) -> None:
        """Takes a waiting job out; what the queue knows of it must be as when it was added."""
        self._num_by_lane[job.lane] -= 1
        self.num_requests -= 1
        self.num_tokens -= job.slot_tokens
        self.num_bytes -= job.request.body_bytes
        # Exactly 0 where nothing waits: what rounding leaves must not add up.
        self._work_s_by_lane[job.lane] = (
            self._work_s_by_lane[job.lane] - job.cost_s if self._num_by_lane[job.lane] else 0.0
        )
        if self.only is not None:
            self.only = None
            return
        job.ticket += 1
        flow, pool, lane = job.flow, job.pool, job.lane
        lanes = self._by_flow[flow]
        heaps = lanes[lane]
        self._num_in[flow, lane, pool] = num_left = self._num_in[flow, lane, pool] - 1
        if num_left:
            _compact(heaps[pool], num_left)
        else:
            del self._num_in[flow, lane, pool], heaps[pool]
            if not heaps:
                del lanes[lane]
                if not lanes:
                    del self._by_flow[flow]
        if lane is Lane.BACKGROUND:
            self._background_arrivals.remove(pool)
        else:
            self._arrivals.remove(pool)
            of_flow = self._arrivals_by_flow[flow]
            of_flow.remove(pool)
            if not of_flow.pools():
                del self._arrivals_by_flow[flow]
        _compact(self._by_deadline, self.num_requests)

    def num_in_lane(self, lane: Lane) -> int:
        return self._num_by_lane[lane]

    @property
    def work_s(self) -> float:
        """What all that waits is expected to cost."""
        return sum(self._work_s_by_lane.values())

    def work_s_in_lane(self, lane: Lane) -> float:
        """What those that wait there are expected to cost."""
        return self._work_s_by_lane[lane]

    def pools(self) -> Collection[PoolKey]:
        """Every pool in which something waits."""
        if self.only is not None:
            return (self.only.pool,)
        return self._arrivals.pools() | self._background_arrivals.pools()

    def flows(self) -> Collection[FlowKey]:
        """Every flow of which something waits."""
        return self._by_flow if self.only is None else (self.only.flow,)

    def waits_in(self, flow: FlowKey, lane: Lane) -> bool:
        """Whether anything of this flow waits in this lane."""
        if self.only is not None:
            return self.only.flow == flow and self.only.lane is lane
        return lane in self._by_flow.get(flow, ())

    def lanes(self, flow: FlowKey) -> Collection[Lane]:
        """The lanes in which something of this flow waits."""
        return self._by_flow[flow] if self.only is None else (self.only.lane,)

    def heads(self, flow: FlowKey, lane: Lane) -> Sequence[Job]:
        """The first of each pool in this lane of this flow, in order; the flow must wait."""
        if self.only is not None:
            return (self.only,) if self.only.lane is lane else ()
        heaps = self._by_flow[flow].get(lane)
        if heaps is None:
            return ()
        heads = [_top(heap) for heap in heaps.values()]
        if len(heads) > 1:
            heads.sort(key=lambda job: (job.key, job.seq))
        return heads

    def oldest(self) -> list[Job]:
        """The first to arrive of each pool, oldest first, background work left out."""
        if self.only is not None:
            return [] if self.only.lane is Lane.BACKGROUND else [self.only]
        return self._arrivals.oldest()

    def oldest_of(self, flow: FlowKey) -> list[Job]:
        """The first of this flow to arrive of each pool, oldest first, background work left out."""
        if self.only is not None:
            return self.oldest() if self.only.flow == flow else []
        of_flow = self._arrivals_by_flow.get(flow)
        return [] if of_flow is None else of_flow.oldest()

    def oldest_background(self) -> list[Job]:
        """The first background request to arrive of each pool, oldest first."""
        if self.only is not None:
            return [self.only] if self.only.lane is Lane.BACKGROUND else []
        return self._background_arrivals.oldest()

    def next_deadline(self) -> Job | None:
        if self.only is not None:
            return None if self.only.request.deadline_s is None else self.only
        heap = self._by_deadline
        while heap and not _is_live(heap[0]):
            heapq.heappop(heap)
        return heap[0][3] if heap else None

    def jobs(self) -> list[Job]:
        """All that wait, in order of arrival; O(n log n)."""
        if self.only is not None:
            return [self.only]
        live = {
            entry[1]: entry[3]
            for lanes in self._by_flow.values()
            for heaps in lanes.values()
            for heap in heaps.values()
            for entry in heap
            if _is_live(entry)
        }
        return [live[seq] for seq in sorted(live)]


class _Arrivals:
    """Waiting jobs by arrival within each pool."""

    def __init__(self) -> None:
        self._heaps: dict[PoolKey, list[_Entry]] = {}
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
            _compact(self._heaps[pool], self._num_in[pool])

    def pools(self) -> Set[PoolKey]:
        return self._num_in.keys()

    def oldest(self) -> list[Job]:
        oldest = [_top(heap) for heap in self._heaps.values()]
        if len(oldest) > 1:
            oldest.sort(key=lambda job: job.seq)
        return oldest


def _is_live(entry: _Entry) -> bool:
    return entry[3].ticket == entry[2] and entry[3].state is State.WAITING


def _top(heap: list[_Entry]) -> Job:
    while not _is_live(heap[0]):
        heapq.heappop(heap)
    return heap[0][3]


def _compact(heap: list[_Entry], num_live: int) -> None:
    if len(heap) > 64 and len(heap) > 4 * num_live:
        heap[:] = [entry for entry in heap if _is_live(entry)]
        heapq.heapify(heap)
