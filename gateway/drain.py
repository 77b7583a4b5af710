"""Stopping without dropping anything: readiness goes first, then new work is refused, then what runs may finish."""

import asyncio
from types import TracebackType
from typing import Protocol

from .errors import GatewayError
from .overload_errors import ShuttingDown


class Stoppable(Protocol):
    """A request that is being served."""

    def stop(self, error: GatewayError) -> None:
        """End it, telling its client this, as far as that is still possible."""
        ...


class Drain:
    """Knows the requests being served, and whether the gateway is about to stop. Belongs to the event loop.

    `grace_s`: how long what runs may go on after the beginning. `unready_s`: how long of it new work is still taken,
    so that whoever looks at readiness can send it elsewhere. Both may be changed until it begins.
    """

    def __init__(self, *, grace_s: float = 30.0, unready_s: float = 0.0) -> None:
        self.grace_s = grace_s
        self.unready_s = unready_s
        self.is_draining = False
        """Whether it has begun: the gateway isn't ready, and ends connections with their answers."""
        self.is_refusing = False
        """Whether new work is refused."""
        self._serving: set[Stoppable] = set()
        self._idle = asyncio.Event()
        self._idle.set()

    @property
    def num_active(self) -> int:
        """Requests being served, from their head to the end of their answer."""
        return len(self._serving)

    def begin(self) -> None:
        """From now on the gateway is not ready. Can't be undone."""
        self.is_draining = True

    def refuse(self) -> None:
        """From now on the gateway takes no new work."""
        self.is_draining = self.is_refusing = True

    def cut(self) -> None:
        """End what still runs."""
        for request in tuple(self._serving):
            request.stop(ShuttingDown())

    def serving(self, request: Stoppable) -> "Serving":
        """The scope of one request."""
        return Serving(self, request)

    def enter(self, request: Stoppable) -> None:
        self._serving.add(request)
        self._idle.clear()

    def leave(self, request: Stoppable) -> None:
        self._serving.discard(request)
        if not self._serving:
            self._idle.set()

    async def wait_idle(self, timeout_s: float) -> bool:
        """Waits until no request is being served; False when that takes longer than `timeout_s`."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._idle.wait()
        except TimeoutError:
            return False
        return True


class Serving:
    """A context manager: inside, the request counts as being served."""

    __slots__ = ("_drain", "_request")

    def __init__(self, drain: Drain, request: Stoppable) -> None:
        self._drain = drain
        self._request = request

    def __enter__(self) -> None:
        self._drain.enter(self._request)

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._drain.leave(self._request)
