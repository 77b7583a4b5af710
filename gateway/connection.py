"""One HTTP/1.1 connection to a replica: an asyncio.Protocol that reads responses.

It carries one exchange at a time: `begin`, `write`, `wait_head`, the body, and then it is reusable or not. The body is
poured into a sink straight from the socket's callback, without waking a task for each piece, or read piece by piece.
Reading pauses while the sink wants no more, or more than `HIGH_WATER_BYTES` wait to be fetched, so a slow reader slows
the replica and memory stays bounded. Closing it is how a generation is aborted at the replica.
"""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import cast

import httptools

from .deadline import GRAIN_S
from .response_reader import ResponseReader
from .upstream_errors import UpstreamClosed, UpstreamError, UpstreamGarbled, UpstreamTimeout

HIGH_WATER_BYTES = 1 << 16
MAX_HEAD_BYTES = 1 << 16

_Error = Callable[[], UpstreamError]
"""Makes the error that ended an exchange. One that was raised refers to the frames it went through, and so back to the
connection that would hold it."""


class Connection(ResponseReader, asyncio.Protocol):
    """A connection that belongs to one exchange, or to none while it idles in a pool.

    `on_lost` is called once, when the connection is gone. `has_answered` says whether any byte of the present
    response has come. Read-only outside: `status`, `headers` (names in lower case, in order), `is_complete`,
    `is_closed`.
    """

    __slots__ = (
        "_deadline_s",
        "_error",
        "_head_bytes",
        "_is_active",
        "_is_paused",
        "_limit_s",
        "_loop",
        "_on_lost",
        "_sink",
        "_timer",
        "_timer_s",
        "_transport",
        "_waiter",
        "_write_paused",
        "has_answered",
        "idle_since_s",
        "is_closed",
    )

    def __init__(self, loop: asyncio.AbstractEventLoop, on_lost: Callable[["Connection"], None]) -> None:
        super().__init__()
        self._loop = loop
        self._on_lost = on_lost
        self._transport: asyncio.Transport | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._timer_s = 0.0
        self._limit_s = 0.0
        self._deadline_s = 0.0
        self._sink: Callable[[bytes], bool] | None = None
        self._write_paused = False
        self._is_paused = False
        self._is_active = False
        self.is_closed = False
        self.idle_since_s = 0.0
        self._head_bytes = 0
        self.has_answered = False
        self._error: _Error | None = None

    # The exchange

    def begin(self, *, is_for_head: bool = False) -> None:
        """Start an exchange. `is_for_head`: the request is a HEAD, so its response has no body whatever it says."""
        self._expect_response(is_for_head=is_for_head)
        self._head_bytes = 0
        self.has_answered = False
        self._error = None
        self._is_active = True

    def write(self, data: bytes) -> bool:
        """Write the request; True where that takes a while: see `written`."""
        if self._transport is not None and not self.is_closed:
            self._transport.write(data)
        return self._write_paused

    async def written(self) -> None:
        """Wait until the request is out, or the replica has answered without reading all of it.

        A connection that is lost meanwhile shows in `wait_head`, since an answer may have come before the loss.
        """
        while self._write_paused and not self.has_head and not self.is_closed and self._error is None:
            await self._wait()

    async def wait_head(self) -> None:
        """Wait for `status` and `headers`. Raises UpstreamError."""
        while not self.has_head:
            if self._error is not None:
                raise self._error()
            await self._wait()

    async def pour(self, sink: Callable[[bytes], bool]) -> bytes:
        """Give the body to `sink` as it comes, all but its end: what came last is returned, perhaps b"".

        The sink is called from the socket's callback, and must not raise. When it returns False, nothing more is read
        from the replica and b"" is returned, not `is_at_end`: the next `pour` goes on. Raises UpstreamError when the
        body can't be completed, after everything that came was given.
        """
        while not self.is_complete:
            if self._pieces:
                if not sink(self._take()):
                    return b""
            elif self._error is not None:
                raise self._error()
            else:
                self._resume_reading()
                self._sink = sink
                try:
                    await self._wait()
                    if self._sink is not sink:  # it refused
                        return b""
                finally:
                    self._sink = None
        return self._take()

    async def read(self) -> bytes:
        """The body bytes that came since the last call, waiting for some; b"" at the proper end of the body.

        Raises UpstreamError when the body can't be completed, after everything that came was returned.
        """
        while not self._pieces:
            if self.is_complete:
                return b""
            if self._error is not None:
                raise self._error()
            await self._wait()
        data = self._take()
        self._resume_reading()
        return data

    async def peek(self) -> bytes:
        """What `read` would return, left for it. Raises UpstreamError."""
        while not self._pieces and not self.is_complete:
            if self._error is not None:
                raise self._error()
            await self._wait()
        return b"".join(self._pieces)

    def _pause_reading(self) -> None:
        if not self._is_paused and self._transport is not None and not self._transport.is_closing():
            self._is_paused = True
            self._transport.pause_reading()

    def _resume_reading(self) -> None:
        if self._is_paused:
            self._is_paused = False
            if self._transport is not None and not self._transport.is_closing():
                self._transport.resume_reading()

    @property
    def heard_s(self) -> float:
        """Instant of the loop's clock at which it last had something of the present answer; 0 before its head."""
        return self._deadline_s - self._limit_s if self.has_head else 0.0

    @property
    def has_body(self) -> bool:
        """Whether some of the body, or its end, is here to be read."""
        return self.is_complete or bool(self._pieces)

    @property
    def is_at_end(self) -> bool:
        """Whether the body is complete and all of it was read."""
        return self.is_complete and not self._pieces

    def finish(self) -> bool:
        """End the exchange. True if the connection can carry another one; it is closed otherwise."""
        self._is_active = False
        transport = self._transport
        if (
            transport is not None
            and self.is_at_end
            and self._keeps_alive
            and not self.is_closed
            and self._error is None
            and not transport.is_closing()
            and not transport.get_write_buffer_size()
        ):
            self._renew_parser()
            return True
        self.abort()
        return False

    def abort(self) -> None:
        """Close at once, dropping what wasn't sent: the replica sees it and stops generating."""
        self._stop_timer()
        if self._transport is not None:
            self._transport.abort()

    # Waiting, with one timer a connection, looked at only when it fires. It outlives the exchange: firing too early now
    # and then costs less than being set anew each time

    def set_limit(self, limit_s: float) -> None:
        """From now on no wait of this exchange lasts longer than this; one that does fails with UpstreamTimeout."""
        self._limit_s = limit_s
        self._deadline_s = self._loop.time() + limit_s
        if self._timer is None or self._timer_s > self._deadline_s:
            self._start_timer(limit_s)

    def _start_timer(self, delay_s: float) -> None:
        self._stop_timer()
        self._timer_s = self._loop.time() + delay_s
        self._timer = self._loop.call_later(delay_s, self._on_timer)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _on_timer(self) -> None:
        self._timer = None
        if not self._is_active:
            return
        left_s = self._deadline_s - self._loop.time()
        if left_s >= GRAIN_S:
            self._start_timer(left_s)
        elif self._waiter is not None:
            self._fail(partial(UpstreamTimeout, self._limit_s))
        else:
            self._start_timer(self._limit_s)

    async def _wait(self) -> None:
        # A wait for the head is one with the writing before it; a wait for body bytes begins anew after each piece.
        if self.has_head:
            self._deadline_s = self._loop.time() + self._limit_s
        waiter = self._waiter = self._loop.create_future()
        try:
            await waiter
        finally:
            self._waiter = None

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _fail(self, error: _Error) -> None:
        if self._error is None:
            self._error = error
        self.abort()
        self._wake()

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        if not self._is_active or self.is_complete:
            # Nobody asked: a server's "408 Request Timeout" to an idle connection, or bytes behind an answer.
            self._keeps_alive = False
            self.abort()
            return
        self.has_answered = True
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            self._garbled()
        if not self.has_head:
            self._head_bytes += len(data)
            if self._head_bytes > MAX_HEAD_BYTES:
                self._fail(UpstreamGarbled)
            return
        if self._sink is not None and not self.is_complete and self._pieces:
            self._deadline_s = self._loop.time() + self._limit_s
            if self._sink(self._take()):
                if self._error is None:
                    return
            else:
                self._sink = None
                self._pause_reading()
        elif self._buffered_bytes > HIGH_WATER_BYTES and not self.is_complete:
            self._pause_reading()
        self._wake()

    def _garbled(self) -> None:
        if self.is_complete:  # rubbish behind a good answer spoils the connection only
            self._keeps_alive = False
        else:
            self._fail(UpstreamGarbled)

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_closed = True
        self._stop_timer()
        if self._is_active and not self.is_complete:
            if exc is None and self.has_head and self._error is None and self._ends_with_connection():
                self.is_complete = True
            elif self._error is None:
                self._error = UpstreamClosed
        self._wake()
        self._on_lost(self)
        self.let_go()

    def let_go(self) -> None:
        """The connection is over, or never came to be: what refers back to this is dropped.

        So it is gone at once, and needn't wait for a search for cycles.
        """
        self._parser = None  # type: ignore[assignment]
        self._transport = None

    def pause_writing(self) -> None:
        self._write_paused = True

    def resume_writing(self) -> None:
        self._write_paused = False
        self._wake()
