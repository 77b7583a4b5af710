"""Stopping without dropping anything: readiness goes first, then new work is refused, then what runs may finish."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager


class Drain:
    """Counts the requests being served, and knows whether the gateway is about to stop. Belongs to the event loop."""

    def __init__(self) -> None:
        self.is_draining = False
        self.num_active = 0
        """Requests being served, from their first byte to the end of their answer."""
        self._idle = asyncio.Event()
        self._idle.set()

    def begin(self) -> None:
        """From now on the gateway is not ready and takes no new work. Can't be undone."""
        self.is_draining = True

    @contextmanager
    def serving(self) -> Iterator[None]:
        """The scope of one request."""
        self.num_active += 1
        self._idle.clear()
        try:
            yield
        finally:
            self.num_active -= 1
            if not self.num_active:
                self._idle.set()

    async def wait_idle(self, timeout_s: float) -> bool:
        """Waits until no request is being served; False when that takes longer than `timeout_s`."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._idle.wait()
        except TimeoutError:
            return False
        return True
