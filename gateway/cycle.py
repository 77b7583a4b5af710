"""One request on a client's connection and its answer: what the ASGI application sees of them.

Framing is decided here and nowhere else: chunked where the length isn't known, the end of the connection for HTTP/1.0
clients, no body for HEAD. An answer that the application breaks off is cut, never ended.
"""

import asyncio
import http
import logging
from collections.abc import Awaitable, Callable
from typing import Protocol

from uvicorn.protocols.http.flow_control import FlowControl

from .disconnect import DIRECT, FOLLOWS, LINES, Message, OnLeft, Receive, Send
from .errors import GatewayError, Headers, InternalError, ResponseBroken

logger = logging.getLogger(__name__)

App = Callable[[Message, Receive, Send], Awaitable[None]]

CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
_BODYLESS = frozenset({204, 304})
_LOOKED_AT = frozenset({b"content-length", b"date", b"server", b"connection", b"transfer-encoding"})


def _status_line(status: int) -> bytes:
    try:
        phrase = http.HTTPStatus(status).phrase
    except ValueError:
        phrase = ""
    return f"HTTP/1.1 {status} {phrase}\r\n".encode()


STATUS_LINES = {status: _status_line(status) for status in range(100, 1000)}


class Owner(Protocol):
    """The connection, as its cycles see it."""

    transport: asyncio.Transport
    loop: asyncio.AbstractEventLoop

    @property
    def is_last(self) -> bool:
        """Whether the connection is to end with the answer that begins now."""
        ...

    def date(self) -> bytes:
        """The Date header's line."""
        ...

    def answered(self, cycle: "Cycle") -> None:
        """The answer is complete."""
        ...

    def cut(self, *, is_visible: bool) -> None:
        """End the connection in the middle of an answer; `is_visible` if what was sent shows that it isn't whole."""
        ...


class Cycle:
    """Made by the connection when a head is complete; `run` serves it.

    The connection writes `body`, `more_body`, `disconnected` and `fault`, and calls `wake` after each.
    """

    __slots__ = (
        "_can_chunk",
        "_flow",
        "_held",
        "_is_head",
        "_is_received",
        "_left",
        "_on_left",
        "_owner",
        "_scope",
        "_waiter",
        "_waits_for_continue",
        "body",
        "disconnected",
        "fault",
        "is_chunked",
        "keep_alive",
        "left_because",
        "more_body",
        "response_complete",
        "response_started",
    )

    def __init__(
        self, owner: Owner, flow: FlowControl, scope: Message, *, keep_alive: bool, waits_for_continue: bool
    ) -> None:
        self._owner = owner
        self._flow = flow
        self._scope = scope
        self._is_head = scope["method"] == "HEAD"
        self._can_chunk = scope["http_version"] == "1.1"
        self.keep_alive = keep_alive
        self._waits_for_continue = waits_for_continue
        self._waiter: asyncio.Future[None] | None = None
        self._on_left: OnLeft | None = None
        self.body = bytearray()
        self.more_body = True
        self._is_received = False
        self.disconnected = False
        self.left_because: str | None = None
        """Why the connection was ended from this side, if it was: the `reason` of the disconnect message."""
        self.fault: Callable[[], GatewayError] | None = None
        """Makes the error that says why the body can't be received; `receive` raises it."""
        self.response_started = False
        self.response_complete = False
        self.is_chunked = False
        self._left: int | None = None  # bytes that content-length still promises
        self._held = b""  # the head, where the body is about to follow

    async def run(self, app: App) -> None:
        """Serve the request; whatever the application does, nothing of it is raised."""
        try:
            scope, self._scope = self._scope, {}  # which refers back to this
            scope["extensions"] = {DIRECT: self}
            await app(scope, self.receive, self.send)
            if not self.response_complete and not self.disconnected:
                raise RuntimeError("the application left its answer unfinished")
        except ResponseBroken as broken:
            self._cut(is_visible=broken.is_told or self.is_chunked or self._left is not None)
        except asyncio.CancelledError:  # the server's shutdown is over
            self._cut(is_visible=self.is_chunked)
        except Exception:
            if self.disconnected:
                return
            logger.exception("the application failed")
            if self.response_started:
                self._cut(is_visible=self.is_chunked)
            else:
                await self._fail()

    def _cut(self, *, is_visible: bool) -> None:
        if self._held:
            self._write(b"")
        self._owner.cut(is_visible=is_visible)

    async def _fail(self) -> None:
        body = InternalError().body()
        headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
        headers.append((b"connection", b"close"))
        await self.send({"type": "http.response.start", "status": 500, "headers": headers})
        await self.send({"type": "http.response.body", "body": body})

    def wake(self) -> None:
        """Something changed that `receive` may be waiting for, or whoever watches."""
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
        if self.disconnected and self._on_left is not None:
            on_left, self._on_left = self._on_left, None
            on_left(self.left_because)

    def take_body(self, max_bytes: int) -> bytes | None:
        """See `Direct`."""
        if self.more_body or self._is_received or self.disconnected or self.fault or len(self.body) > max_bytes:
            return None
        self._waits_for_continue = False
        self._is_received = True
        body, self.body = bytes(self.body), bytearray()
        return body

    def watch(self, on_left: OnLeft | None) -> None:
        """See `Direct`."""
        self._on_left = on_left
        if on_left is not None:
            self._flow.resume_reading()
            if self.disconnected:
                self.wake()

    async def receive(self) -> Message:
        """ASGI. Raises `fault`, a GatewayError, where the body is malformed."""
        if self._waits_for_continue:
            self._waits_for_continue = False
            if not self._owner.transport.is_closing():
                self._owner.transport.write(CONTINUE)
        while not (self.disconnected or self.response_complete):
            if self.fault is not None:
                raise self.fault()
            if self.body or not (self.more_body or self._is_received):
                self._is_received = not self.more_body
                body, self.body = bytes(self.body), bytearray()
                return {"type": "http.request", "body": body, "more_body": self.more_body}
            self._flow.resume_reading()
            self._waiter = self._owner.loop.create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        return {"type": "http.disconnect", "reason": self.left_because}

    async def send(self, message: Message) -> None:
        """ASGI. Waits while the client takes nothing; what is sent to a client that left is dropped.

        `FOLLOWS` in a message that starts an answer: its head may wait for the body, to go out with it.
        """
        if self._flow.write_paused and not self.disconnected:
            await self._flow.drain()
        if self.disconnected:
            return
        if not self.response_started:
            head = self._start(message["status"], message.get("headers", ()), message.get(LINES, b""))
            if message.get(FOLLOWS):
                self._held = head
            else:
                self._owner.transport.write(head)
        elif not self.response_complete:
            self._send_body(message.get("body", b""), is_end=not message.get("more_body", False))
        else:
            raise RuntimeError("the answer is complete already")

    def write(self, body: bytes) -> bool:
        """See `Direct`. False also where `send` would object."""
        if (
            self._flow.write_paused
            or self.disconnected
            or self._held
            or self.response_complete
            or not self.response_started
        ):
            return False
        if self.is_chunked:
            self._owner.transport.write(b"%x\r\n%b\r\n" % (len(body), body))
        else:
            self._send_body(body, is_end=False)
        return True

    def _start(self, status: int, headers: Headers, lines: bytes) -> bytes:
        self.response_started = True
        self._waits_for_continue = False
        # A request whose end wasn't awaited: what comes next on the connection couldn't be told from it.
        if self.more_body or self._owner.is_last:
            self.keep_alive = False
        pieces = [STATUS_LINES[status]]
        num_lines = 1
        has_date = has_server = False
        for name, value in headers:
            if name not in _LOOKED_AT:
                pass
            elif name == b"content-length":
                if self._left is not None or status == 204:  # RFC 9110, 8.6
                    continue
                self._left = int(value)
            elif name == b"date":
                if has_date:
                    continue
                has_date = True
            elif name == b"server":
                if has_server:
                    continue
                has_server = True
            elif name == b"connection":
                if b"close" in value.lower():
                    self.keep_alive = False
                continue
            else:
                continue
            pieces += (name, b": ", value, b"\r\n")
            num_lines += 1
        if not has_date:
            pieces.append(self._owner.date())
            num_lines += 1
        if not self.keep_alive:
            pieces.append(b"connection: close\r\n")
            num_lines += 1
        if self._has_body(status) and self._left is None and self._can_chunk:
            self.is_chunked = True
            pieces.append(b"transfer-encoding: chunked\r\n")
            num_lines += 1
        head = b"".join(pieces)
        if len(head.splitlines()) != num_lines or b"\0" in head:
            self.response_started = False
            raise RuntimeError("a header of the answer holds a line break")
        return b"%b%b\r\n" % (head, lines)

    def _has_body(self, status: int) -> bool:
        has_body = not self._is_head and status not in _BODYLESS
        if not has_body:
            self._left = 0
        return has_body

    def _write(self, data: bytes) -> None:
        held, self._held = self._held, b""
        self._owner.transport.write(held + data)

    def _send_body(self, body: bytes, *, is_end: bool) -> None:
        write = self._write if self._held else self._owner.transport.write
        if self.is_chunked:
            if body:
                write(b"%x\r\n%b\r\n%b" % (len(body), body, b"0\r\n\r\n" if is_end else b""))
            elif is_end:
                write(b"0\r\n\r\n")
        elif self._left is None:
            write(body)
        elif not self._is_head:
            self._left -= len(body)
            if self._left < 0 or (is_end and self._left):
                raise RuntimeError("the answer's body isn't as long as its content-length")
            write(body)
        elif self._held:
            write(b"")
        if is_end:
            self.response_complete = True
            self.wake()
            self._owner.answered(self)
