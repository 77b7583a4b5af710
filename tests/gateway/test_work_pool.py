"""The threads for long work: order, reserve, cancellation, failures."""

import asyncio
import threading
import time
import weakref
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from gateway.work_pool import Done, WorkPool
from tests.support.cycles import no_cycles

from .tiny_replica import until


@asynccontextmanager
async def running(num_threads: int = 2) -> AsyncIterator[WorkPool]:
    pool = WorkPool(num_threads, time.monotonic)
    pool.start()
    try:
        yield pool
    finally:
        await pool.aclose()


class Hold:
    """Work that a test keeps a thread busy with."""

    def __init__(self) -> None:
        self.begun = threading.Event()
        self.gate = threading.Event()

    def __call__(self) -> None:
        self.begun.set()
        assert self.gate.wait(10)


async def held(pool: WorkPool, *costs_s: float) -> tuple[list[Hold], list[asyncio.Task[Done[None]]]]:
    """A thread for each of these costs, busy until its hold's gate opens."""
    holds = [Hold() for _ in costs_s]
    tasks = [asyncio.create_task(pool.run(hold, cost_s)) for hold, cost_s in zip(holds, costs_s, strict=True)]
    await until(lambda: all(hold.begun.is_set() for hold in holds))
    return holds, tasks


async def test_short_work_passes_long_work() -> None:
    """A thread is kept free of long work, and among what waits the short goes first."""
    order = list[str]()
    async with running() as pool:

        def note(name: str) -> None:
            order.append(name)

        (hold,), tasks = await held(pool, 1.0)
        long = asyncio.create_task(pool.run(lambda: note("long"), 0.5))
        shorts = [pool.run(lambda: note("short"), 0.001) for _ in range(3)]
        await asyncio.gather(*shorts)
        assert order == ["short"] * 3
        assert pool.num_waiting == 1
        hold.gate.set()
        await asyncio.gather(*tasks, long)
        assert order[-1] == "long"


async def test_long_work_is_not_starved() -> None:
    """Waiting makes old work precious: what comes after cost / ageing seconds can't pass it any more."""
    now_s, order = 0.0, list[str]()
    pool = WorkPool(2, lambda: now_s)
    pool.start()
    holds, tasks = await held(pool, 1.0, 0.0)
    old = asyncio.create_task(pool.run(lambda: order.append("old long"), 0.2))
    await until(lambda: pool.num_waiting == 1)
    now_s = 3.0  # more than 0.2 / 0.1 later
    new = [asyncio.create_task(pool.run(lambda: order.append("new short"), 0.001)) for _ in range(3)]
    await until(lambda: pool.num_waiting == 4)
    holds[0].gate.set()  # the thread that may do long work comes free, the other doesn't
    await asyncio.gather(old, *new)
    assert order == ["old long", "new short", "new short", "new short"]
    holds[1].gate.set()
    await asyncio.gather(*tasks)
    await pool.aclose()


async def test_waiting_and_working_are_told_apart() -> None:
    """The seconds are of the pool's own clock."""
    async with running() as pool:
        done = await pool.run(lambda: time.sleep(0.02), 0.001)
        assert done.work_s >= 0.02
        assert 0.0 <= done.wait_s < 5.0


async def test_a_failure_reaches_the_caller() -> None:
    """Even one that isn't an Exception, and the threads live on."""

    def fail() -> None:
        raise ValueError("no")

    def panic() -> None:
        raise SystemExit("native code")

    async with running() as pool:
        for _ in range(4):
            with pytest.raises(ValueError, match="no"):
                await pool.run(fail, 0.001)
            with pytest.raises(RuntimeError, match="native code"):
                await pool.run(panic, 0.001)
        assert (await pool.run(lambda: 7, 0.001)).result == 7


async def test_cancelled_while_waiting_it_is_never_begun() -> None:
    """And nothing of it is left."""
    begun = list[str]()
    async with running() as pool:
        holds, tasks = await held(pool, 1.0, 0.0)
        waiting = asyncio.create_task(pool.run(lambda: begun.append("x"), 0.001))
        await until(lambda: pool.num_waiting == 1)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert pool.num_waiting == 0
        for hold in holds:
            hold.gate.set()
        await asyncio.gather(*tasks)
        assert begun == []


async def test_cancelled_while_running_the_result_is_dropped() -> None:
    """The thread finishes and takes the next."""
    async with running() as pool:
        (hold,), (task,) = await held(pool, 0.001)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        hold.gate.set()
        assert (await pool.run(lambda: 7, 1.0)).result == 7


async def test_closing_cancels_what_waits_and_refuses_more() -> None:
    """Twice does no harm."""
    pool = WorkPool(2, time.monotonic)
    pool.start()
    holds, tasks = await held(pool, 1.0, 0.0)
    waiting = asyncio.create_task(pool.run(lambda: 1, 0.001))
    await until(lambda: pool.num_waiting == 1)
    closing = asyncio.create_task(pool.aclose())
    await asyncio.wait([waiting])
    assert waiting.cancelled()
    for hold in holds:
        hold.gate.set()
    await closing
    await pool.aclose()
    await asyncio.gather(*tasks)
    with pytest.raises(RuntimeError, match="closed"):
        await pool.run(lambda: 1, 0.001)


async def test_failed_work_is_freed_at_once() -> None:
    """Its error refers to the frames it went through: nothing of those refers to it."""

    def fail() -> None:
        raise ArithmeticError("a fault planted by the test")

    async with running() as pool:
        with no_cycles():
            for _ in range(3):
                with pytest.raises(ArithmeticError):
                    await pool.run(fail, 0.0)
                await pool.run(int, 0.0)


async def test_a_thread_that_waits_holds_nothing_of_what_it_did_last() -> None:
    """A prompt of megabytes would stay until somebody else has one counted."""

    class Prompt:
        def __call__(self) -> "Prompt":
            return self

    async with running() as pool:
        prompt = Prompt()
        gone = weakref.ref(prompt)
        for expected_s in (0.0, 1.0):
            await pool.run(prompt, expected_s)
        del prompt
        await until(lambda: gone() is None)


def test_one_thread_is_not_enough() -> None:
    """Long work would hold up the rest."""
    with pytest.raises(ValueError, match="at least 2"):
        WorkPool(1, time.monotonic)
