"""The waiting requests: heaps by lane and pool, with removal by invalidation."""

import heapq
from collections.abc import Callable, Collection, Mapping, Sequence

from .fairness.flows import FlowKey
from .heaps import Arrivals, Entry, compact, is_live, top
from .job import Job, PoolKey
from .late import LATE_KEY_S, LateFifo
from .types import Lane

_NO_WORK = dict.fromkeys(Lane, 0.0)


class WaitingQueue:
    """Answers "which is first" by key within a flow, lane and pool, by arrival within a pool, by deadline over all.

    A job that leaves is only marked (its ticket moves on); dead entries are dropped when they reach the top, and a
    heap is rebuilt when most of it is dead, so everything is O(log n) amortised and memory follows what waits.

    A job that waits alone is kept beside the heaps, as `only`: a gateway that isn't overloaded sees hardly any other.
    """

    def __init__(self) -> None:
        self._by_flow: dict[FlowKey, dict[Lane, dict[PoolKey, list[Entry]]]] = {}
        self._arrivals = Arrivals()
        self._arrivals_by_flow: dict[FlowKey, Arrivals] = {}
        self._background_arrivals = Arrivals()
        self._by_deadline: list[Entry] = []
        self._num_in: dict[tuple[FlowKey, Lane, PoolKey], int] = {}
        self._num_by_lane = dict.fromkeys(Lane, 0)
        self.late = LateFifo()
        """Those of them that can't be in time any more."""
        self.only: Job | None = None
        """The job that waits, if it came into an empty queue and is alone still."""
        self.num_requests = 0
        self.num_tokens = 0
        self.num_bytes = 0
        self._work_s: dict[str, dict[Lane, float]] = {}  # by model and lane

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
        work_s = self._work_s.get(job.request.model)
        if work_s is None:
            work_s = self._work_s[job.request.model] = _NO_WORK.copy()  # for every lone request
        work_s[job.lane] += job.cost_s

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
                of_flow = self._arrivals_by_flow[flow] = Arrivals()
            of_flow.add(job)
        if request.deadline_s is not None:
            heapq.heappush(self._by_deadline, (request.deadline_s, job.seq, job.ticket, job))
        if job.is_late:
            self.late.add(job)
        self._num_in[flow, lane, pool] = self._num_in.get((flow, lane, pool), 0) + 1

    def remove(self, job: Job) -> None:
        """Takes a waiting job out; what the queue knows of it must be as when it was added."""
        self._num_by_lane[job.lane] -= 1
        self.num_requests -= 1
        self.num_tokens -= job.slot_tokens
        self.num_bytes -= job.request.body_bytes
        if self.num_requests:
            self._work_s[job.request.model][job.lane] -= job.cost_s
        else:
            self._work_s.clear()  # exactly 0 where nothing waits: what rounding leaves must not add up
        if self.only is not None:
            self.only = None
            return
        job.ticket += 1
        if job.is_late:
            self.late.remove(job)
        flow, pool, lane = job.flow, job.pool, job.lane
        lanes = self._by_flow[flow]
        heaps = lanes[lane]
        self._num_in[flow, lane, pool] = num_left = self._num_in[flow, lane, pool] - 1
        if num_left:
            compact(heaps[pool], num_left)
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
        compact(self._by_deadline, self.num_requests)

    def postpone(self, job: Job) -> None:
        """Behind all that can be in time; in order of arrival there."""
        self.remove(job)
        job.is_late = True
        job.key = LATE_KEY_S + job.request.arrival_s
        self.add(job)

    def reorder(self, order: Callable[[Job], None]) -> None:
        """Keys anew for all but the late, by `order`; O(n)."""
        if self.only is not None:
            order(self.only)
            return
        for lanes in self._by_flow.values():
            for heaps in lanes.values():
                for heap in heaps.values():
                    live = [entry[3] for entry in heap if is_live(entry)]
                    for job in live:
                        if not job.is_late:
                            order(job)
                    heap[:] = [(job.key, job.seq, job.ticket, job) for job in live]
                    heapq.heapify(heap)

    def num_in_lane(self, lane: Lane) -> int:
        return self._num_by_lane[lane]

    @property
    def work_s(self) -> float:
        """What all that waits is expected to cost."""
        return sum(sum(by_lane.values()) for by_lane in self._work_s.values())

    def work_s_by_lane(self, model: str) -> Mapping[Lane, float]:
        """What those that wait for this model are expected to cost, every lane named."""
        return self._work_s.get(model, _NO_WORK)

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
        heads = [top(heap) for heap in heaps.values()]
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
        while heap and not is_live(heap[0]):
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
            if is_live(entry)
        }
        return [live[seq] for seq in sorted(live)]
