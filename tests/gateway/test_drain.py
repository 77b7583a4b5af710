"""Draining: what counts as idle, and how long is waited for it."""

import asyncio

import pytest

from gateway.drain import Drain


async def test_idle_is_when_the_last_request_ended() -> None:
    """However it ended."""
    drain = Drain()
    assert await drain.wait_idle(0.0)
    with drain.serving():
        with pytest.raises(ValueError, match="broke"), drain.serving():
            raise ValueError("broke")
        assert drain.num_active == 1
        waiting = asyncio.create_task(drain.wait_idle(30.0))
        await asyncio.sleep(0)
        assert not waiting.done()
    assert await waiting
    assert drain.num_active == 0


async def test_waiting_has_an_end() -> None:
    """A request that goes on too long is told of."""
    drain = Drain()
    with drain.serving():
        assert not await drain.wait_idle(0.01)
    drain.begin()
    assert drain.is_draining
