"""Awaitables that are run as far as they go without a task, because most of them needn't wait at all.

Sending a piece to a client, or receiving a body that is here already, ends at its first step nearly always. A task, or
even one turn of the event loop, would cost several times that step.
"""

import asyncio
from collections.abc import Awaitable, Callable, Generator
from typing import Any, Generic, TypeVar

T = TypeVar("T")


def begin(awaitable: Awaitable[T]) -> "T | Pending[T]":
    """Run up to where it has to wait: its result, or what is left of it. Raises what it raises."""
    steps = awaitable.__await__()
    try:
        waits_for = steps.send(None)
    except StopIteration as end:
        result: T = end.value
        return result
    return Pending(steps, waits_for)


class Pending(Generic[T]):
    """The rest of an awaitable, which waits for something. Await it in a task, or watch it without one; once."""

    __slots__ = ("_loop", "_on_end", "_steps", "_waits_for")

    def __init__(self, steps: Generator[Any, Any, T], waits_for: "asyncio.Future[Any] | None") -> None:
        self._steps = steps
        self._waits_for = waits_for  # None: it only lets the loop turn once
        self._loop: asyncio.AbstractEventLoop | None = None
        self._on_end: Callable[[T | Exception], None] | None = None

    def __await__(self) -> Generator[Any, Any, T]:
        while True:
            thrown: BaseException | None = None
            try:
                yield self._waits_for
            except BaseException as error:  # a cancellation, for whatever is waited for inside
                thrown = error
            try:
                self._waits_for = self._steps.send(None) if thrown is None else self._steps.throw(thrown)
            except StopIteration as end:
                result: T = end.value
                return result
            finally:
                thrown = None  # it refers to this frame, once it has been raised in it

    def watch(self, loop: asyncio.AbstractEventLoop, on_end: Callable[[T | Exception], None]) -> None:
        """Run the rest in callbacks of the loop, outside of any task. `on_end` gets what it returned or raised."""
        self._loop, self._on_end = loop, on_end
        self._wait()

    def give_up(self) -> None:
        """Stop watching; the awaitable is closed where it waits."""
        self._on_end = None
        if self._waits_for is not None:
            self._waits_for.remove_done_callback(self._step)
        self._steps.close()

    def _wait(self) -> None:
        if self._waits_for is not None:
            self._waits_for._asyncio_future_blocking = False  # as a task does with what it is going to wait for
            self._waits_for.add_done_callback(self._step)
        elif self._loop is not None:
            self._loop.call_soon(self._step)

    def _step(self, _: object = None) -> None:
        if self._on_end is None:
            return
        try:
            self._waits_for = self._steps.send(None)
        except StopIteration as end:
            self._on_end(end.value)
        except Exception as error:
            self._on_end(error)
        else:
            self._wait()
