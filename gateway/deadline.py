"""A deadline that moves often and seldom comes: one timer, looked at only when it fires."""

import asyncio
from collections.abc import Callable

GRAIN_S = 0.001
"""The loop's clock may be coarser than its timers (uvloop: milliseconds)."""


class Deadline:
    """`on_due` is called when it comes. Belongs to the loop; `close` ends it."""

    __slots__ = ("_due_s", "_loop", "_on_due", "_timer")

    def __init__(self, loop: asyncio.AbstractEventLoop, on_due: Callable[[], None]) -> None:
        self._loop = loop
        self._on_due = on_due
        self._due_s: float | None = None
        self._timer: asyncio.TimerHandle | None = None

    def set(self, delay_s: float) -> None:
        """It comes in so long, whatever was set before."""
        due_s = self._due_s = self._loop.time() + delay_s
        if self._timer is not None and self._timer.when() > due_s:
            self._timer.cancel()
            self._timer = None
        if self._timer is None:
            self._timer = self._loop.call_at(due_s, self._fire)

    def clear(self) -> None:
        """There is none. The timer stays: firing in vain costs less than being set anew each time."""
        self._due_s = None

    def close(self) -> None:
        """There will be none."""
        self._due_s = None
        self._on_due = _nothing  # whoever made this is freed at once, and not when cycles are looked for
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _fire(self) -> None:
        self._timer = None
        if self._due_s is None:
            return
        if self._due_s - self._loop.time() > GRAIN_S:
            self._timer = self._loop.call_at(self._due_s, self._fire)
        else:
            self._on_due()


def _nothing() -> None:
    pass
