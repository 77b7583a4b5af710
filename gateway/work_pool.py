"""A few threads for work that is too long for the event loop, the short pieces first.

Order: smallest `cost_s - AGEING x waiting time`, so a piece of work is overtaken only by what arrives within
`cost_s / AGEING` after it. Threads don't preempt, so at least one is always kept free of long work.
"""

import asyncio
import heapq
import itertools
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

T = TypeVar("T")

AGEING = 0.1
LONG_S = 0.01
"""Work expected to take longer is long: several requests' worth of waiting."""


@dataclass(frozen=True, slots=True)
class Done(Generic[T]):
    """A result, with the seconds it waited for a thread and those it took."""

    result: T
    wait_s: float
    work_s: float


@dataclass(order=True, slots=True)
class _Job:
    key: float
    seq: int
    submitted_s: float = field(compare=False)
    work: Callable[[], object] = field(compare=False)
    done: "asyncio.Future[Done[object]]" = field(compare=False)


class WorkPool:
    """Belongs to one event loop. `clock` must be readable from any thread."""

    def __init__(self, num_threads: int, clock: Callable[[], float]) -> None:
        if num_threads < 2:
            raise ValueError("one thread for long work and one for the rest: at least 2")
        self._clock = clock
        self._max_long = num_threads - 1
        self._num_threads = num_threads
        self._condition = threading.Condition()
        self._short: list[_Job] = []
        self._long: list[_Job] = []
        self._num_long_running = 0
        self._is_closed = False
        self._seq = itertools.count()
        self._threads: list[threading.Thread] = []

    def start(self) -> None:
        for number in range(self._num_threads):
            thread = threading.Thread(target=self._work, name=f"work-{number}", daemon=True)
            self._threads.append(thread)
            thread.start()

    async def aclose(self) -> None:
        """What waits is cancelled, what runs is awaited. Idempotent."""
        with self._condition:
            self._is_closed = True
            waiting = self._short + self._long
            self._short, self._long = [], []
            self._condition.notify_all()
        for job in waiting:
            job.done.cancel()
        threads, self._threads = self._threads, []
        for thread in threads:
            await asyncio.to_thread(thread.join)

    @property
    def num_waiting(self) -> int:
        """Pieces of work that no thread has begun."""
        return len(self._short) + len(self._long)

    async def run(self, work: Callable[[], T], expected_s: float) -> Done[T]:
        """`work`, on a thread. What it raises is raised here. Cancelled while waiting, it is never begun."""
        loop = asyncio.get_running_loop()
        done: asyncio.Future[Done[T]] = loop.create_future()
        now_s = self._clock()
        job = _Job(expected_s + AGEING * now_s, next(self._seq), now_s, work, done)  # type: ignore[arg-type]
        queue = self._long if expected_s > LONG_S else self._short
        with self._condition:
            if self._is_closed:
                raise RuntimeError("the pool is closed")
            heapq.heappush(queue, job)
            self._condition.notify()
        try:
            return await done
        except asyncio.CancelledError:
            with self._condition:
                waiting = self._long if expected_s > LONG_S else self._short
                if job in waiting:
                    waiting.remove(job)
                    heapq.heapify(waiting)
            raise
        finally:
            del job, done  # an error that it holds refers to this frame, once it has been raised here

    def _work(self) -> None:
        while (taken := self._take()) is not None:
            self._do(*taken)
            del taken  # a thread that waits holds nothing of what it did last

    def _do(self, job: _Job, is_long: bool) -> None:
        began_s = self._clock()
        result: object = None
        error: Exception | None = None
        try:
            result = job.work()
        except Exception as caught:
            error = caught
        except BaseException as caught:  # a panic in native code: the thread must live and the caller must hear
            error = RuntimeError(f"{type(caught).__name__}: {caught}")
        ended_s = self._clock()
        if is_long:
            with self._condition:
                self._num_long_running -= 1
                self._condition.notify()
        self._hand_over(job, Done(result, began_s - job.submitted_s, ended_s - began_s), error)
        del job, error  # the error refers to this frame

    def _take(self) -> tuple[_Job, bool] | None:
        """The next job for this thread; None when the pool has closed."""
        with self._condition:
            while not self._is_closed:
                may_be_long = self._long and self._num_long_running < self._max_long
                if may_be_long and not (self._short and self._short[0] < self._long[0]):
                    self._num_long_running += 1
                    return heapq.heappop(self._long), True
                if self._short:
                    return heapq.heappop(self._short), False
                self._condition.wait()
            return None

    @staticmethod
    def _hand_over(job: _Job, done: Done[object], error: Exception | None) -> None:
        def settle() -> None:
            if job.done.done():
                return  # whoever asked is gone
            if error is not None:
                job.done.set_exception(error)
            else:
                job.done.set_result(done)

        loop = job.done.get_loop()
        try:
            loop.call_soon_threadsafe(settle)
        except RuntimeError:
            if not loop.is_closed():
                raise
