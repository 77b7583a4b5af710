"""Awaitables run as far as they go: at once, awaited later, or watched without a task."""

import asyncio

import pytest

from gateway.eager import Pending, begin
from tests.support.serve import until


async def test_what_needs_no_waiting_is_done_at_once() -> None:
    """The result itself comes back, and errors are raised as they are."""

    async def work(value: int) -> int:
        if value < 0:
            raise ValueError(value)
        return value

    assert begin(work(7)) == 7
    with pytest.raises(ValueError, match="-1"):
        begin(work(-1))


async def test_the_rest_can_be_awaited() -> None:
    """Through several waits, a bare turn of the loop among them; also when the future was done long before."""
    loop = asyncio.get_running_loop()
    first, second = loop.create_future(), loop.create_future()

    async def work() -> int:
        found: int = await first
        await asyncio.sleep(0)
        return found + int(await second)

    pending = begin(work())
    assert isinstance(pending, Pending)
    first.set_result(1)
    second.set_result(2)
    await asyncio.sleep(0)
    assert await pending == 3


async def test_a_cancellation_reaches_what_waits_inside() -> None:
    """It can clean up there, and what it raises is what the waiting task sees."""
    seen: list[str] = []

    async def work() -> None:
        try:
            await asyncio.get_running_loop().create_future()
        except asyncio.CancelledError:
            seen.append("cancelled")
            raise

    async def wait() -> None:
        pending = begin(work())
        assert isinstance(pending, Pending)
        await pending

    task = asyncio.create_task(wait())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert seen == ["cancelled"]


async def test_a_swallowed_cancellation_goes_on_waiting() -> None:
    """As it would inside a task: what is awaited next is waited for."""
    later = asyncio.get_running_loop().create_future()

    async def work() -> str:
        try:
            await asyncio.get_running_loop().create_future()
        except asyncio.CancelledError:
            return str(await later)
        return "never"

    pending = begin(work())
    assert isinstance(pending, Pending)

    async def wait() -> str:
        return await pending

    task = asyncio.create_task(wait())
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.sleep(0)
    later.set_result("after")
    assert await task == "after"


async def test_watched_without_a_task() -> None:
    """Each wait is taken up by a callback; the end is told once, whether it was a result or an error."""
    loop = asyncio.get_running_loop()
    gates = [loop.create_future() for _ in range(2)]
    ends: list[object] = []

    async def work(fails: bool) -> str:
        for gate in gates:
            await gate
            await asyncio.sleep(0)
        if fails:
            raise OSError("gone")
        return "all"

    for fails in (False, True):
        pending = begin(work(fails))
        assert isinstance(pending, Pending)
        pending.watch(loop, ends.append)
    for gate in gates:
        await asyncio.sleep(0)
        assert ends == []
        gate.set_result(None)
    await until(lambda: len(ends) == 2)
    assert sorted(map(str, ends)) == ["all", "gone"]


async def test_watching_can_be_given_up() -> None:
    """The awaitable is closed where it waits, and nothing is told, even if the wait was over already."""
    ends: list[object] = []
    closed: list[bool] = []
    queue: asyncio.Queue[int] = asyncio.Queue()

    async def work() -> int:
        try:
            return await queue.get()
        finally:
            closed.append(True)

    for is_over in (False, True):
        pending = begin(work())
        assert isinstance(pending, Pending)
        pending.watch(asyncio.get_running_loop(), ends.append)
        if is_over:
            queue.put_nowait(1)
        pending.give_up()
        await asyncio.sleep(0)
    assert ends == []
    assert closed == [True, True]
    assert queue.get_nowait() == 1
