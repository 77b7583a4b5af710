"""A client's connection: uvicorn's httptools protocol, with what it leaves open closed.

Slow heads, endless ones and too many connections are refused; so is every request whose end two servers could see
differently. One request is served at a time: what a client sends ahead is kept, bounded, while reading goes on, so
that its leaving is noticed whatever is being done for it. A request that would rather be upgraded is served without.

Written against uvicorn 0.54 and httptools 0.9, which pyproject.toml holds it to.
"""

import asyncio
import logging
import socket
import struct
from collections import deque
from typing import Any

import httptools
import uvicorn
from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from . import refusals
from .cycle import Cycle
from .deadline import Deadline
from .errors import MalformedBody
from .front import Front
from .refusals import Refusal
from .request_head import RefusedError, RequestHead

logger = logging.getLogger(__name__)

LINGER_S = 3.0
"""A client that may still be sending when its connection ends gets so long to read the answer before a reset."""
MAX_AHEAD_REQUESTS = 16
MAX_AHEAD_BYTES = 1 << 16
"""What a client may send before the answers to its earlier requests are over."""
MAX_FRAMING_BYTES = 1 << 16
"""Of a chunked body that aren't body, beside eight for each of its bytes: chunk sizes, extensions, trailers."""
_RESET_ON_CLOSE = struct.pack("ii", 1, 0)  # SO_LINGER: on, for no time


class ClientConnection(HttpToolsProtocol):
    """Made by uvicorn for each connection. `front` is shared by all of them."""

    def __init__(
        self,
        config: uvicorn.Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
        *,
        front: Front,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self._front = front
        self._running: Cycle | None = None
        self._incoming: Cycle | None = None  # whose body isn't complete
        self._ahead: deque[Cycle] = deque()  # requests that wait for their turn
        self._unparsed = bytearray()  # what came after those
        self._in_head = False
        self._num_head_bytes = 0  # of the head that is being received, in earlier pieces
        self._num_piece_bytes = 0
        self._num_begun = 0  # messages, in the present piece
        self._num_framing_bytes = 0
        self._is_deaf = False  # nothing more is taken from this client
        self._is_ending = False
        self._last_words = b""  # a refusal that waits for the answers before it
        self._deadline = Deadline(self.loop, self._too_late)

    # The connection's beginning and end

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if self._front.opened():
            self._deadline.set(self._front.bounds.head_s)
        else:
            self._refuse(refusals.TOO_MANY_CONNECTIONS)

    def connection_lost(self, exc: Exception | None) -> None:
        self._is_deaf = True
        self.connections.discard(self)
        self._front.closed(self)
        self._deadline.close()
        for cycle in (self._running, *self._ahead):
            if cycle is not None:
                cycle.disconnected = True
                cycle.wake()
        self._ahead.clear()
        self._running = self._incoming = None  # a cycle refers back to this, as the parser does
        self.flow.resume_writing()
        self.parser = None  # type: ignore[assignment]  # it refers back to this

    def shutdown(self) -> None:
        """The server ends: what is being answered may be finished."""
        self._is_deaf = True
        self._ahead.clear()
        if self._running is None:
            self.transport.close()
        else:
            self._running.keep_alive = False

    def close_idle(self) -> None:
        """Make room for another connection."""
        self.transport.close()

    def cut(self, *, is_visible: bool) -> None:
        """End the connection in the middle of an answer; by a reset where its end could be taken for the answer's."""
        self._ahead.clear()
        if self.transport.is_closing():
            return
        if is_visible:
            self._end(lingers=False)
            return
        self.transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
        self.transport.abort()

    def _end(self, *, lingers: bool) -> None:
        """Close once everything is sent.

        `lingers`: the client may still be sending, and a reset would cost it the answer; so what comes is dropped for
        a while.
        """
        self._is_deaf = self._is_ending = True
        self.flow.resume_reading()
        if lingers and self.transport.can_write_eof():
            self.transport.write_eof()
            self._deadline.set(LINGER_S)
        else:
            self.transport.close()
            self._deadline.set(self._front.bounds.send_s)

    # Time

    def _too_late(self) -> None:
        if self._is_ending or self._running is not None:  # it takes nothing of what is sent
            if self._running is not None:
                self._running.left_because = "client-stalled"
            self.transport.abort()
        elif self._in_head:
            self._refuse(refusals.HEAD_TIMEOUT)
        else:
            self._end(lingers=False)

    def pause_writing(self) -> None:
        super().pause_writing()
        if self._running is not None and not self._is_ending:
            self._deadline.set(self._front.bounds.send_s)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._running is not None and not self._is_ending:
            self._deadline.clear()

    # What comes in

    def data_received(self, data: bytes) -> None:
        if self._is_deaf:
            return
        if not self._ahead:
            self._feed(data)
            return
        self._unparsed += data
        if len(self._unparsed) > MAX_AHEAD_BYTES:
            if self._ahead[-1].more_body:
                self._ahead.pop()
            self._refuse(refusals.TOO_MUCH_AHEAD)

    def _feed(self, data: bytes) -> None:
        was_in_body = self._incoming is not None
        self._num_begun = 0
        self._num_piece_bytes = len(data)
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            # A server may ignore that a client would rather speak something else; the parser can't. So the request is
            # parsed again without: Java's client asks for h2c with its first request, a body and all.
            head = RequestHead(
                self.parser.get_method(), self.url, self.parser.get_http_version(), self.headers
            ).without_upgrade()
            self.parser = httptools.HttpRequestParser(self)
            self._feed(head + data[upgrade.args[0] :])
        except httptools.HttpParserError as error:
            self._not_understood(error)
        else:
            if self._in_head:
                self._still_in_head(is_whole_piece=self._num_begun <= 1 and not was_in_body)
            elif self._incoming is not None:
                self._num_framing_bytes += len(data) if was_in_body else 0
                if self._num_framing_bytes > MAX_FRAMING_BYTES:
                    self._spoil(self._incoming)

    def _still_in_head(self, *, is_whole_piece: bool) -> None:
        if is_whole_piece:
            self._num_head_bytes += self._num_piece_bytes
        if self._num_head_bytes > self._front.bounds.max_head_bytes:
            self._refuse(refusals.HEAD_TOO_LARGE if self.headers else refusals.URL_TOO_LONG)
        elif self._num_begun and self._running is None:
            self._front.works(self)
            self._deadline.set(self._front.bounds.head_s)

    def _not_understood(self, error: httptools.HttpParserError) -> None:
        cause = error.__context__ if isinstance(error, httptools.HttpParserCallbackError) else None
        if isinstance(cause, RefusedError):
            self._refuse(cause.refusal)
        elif self._incoming is not None:
            self._spoil(self._incoming)
        else:
            if cause is not None and not isinstance(cause, httptools.HttpParserError):
                logger.error("reading a request failed", exc_info=cause)
            self._refuse(refusals.BAD_HTTP)

    def _spoil(self, cycle: Cycle) -> None:
        """Where this request's body ends can't be known, and so not where the next request begins."""
        self._is_deaf = True
        cycle.fault = MalformedBody
        cycle.wake()

    def _refuse(self, refusal: Refusal) -> None:
        logger.debug("refused a request of %s: %s", self.client, refusal.message)
        self._front.refused[refusal.reason] += 1
        self._is_deaf = True
        self._last_words = refusal.response(self._front.date())
        if self._running is None:
            self._say_last_words()

    def _say_last_words(self) -> None:
        self.transport.write(self._last_words)
        self._end(lingers=True)

    # The parser's callbacks

    def on_message_begin(self) -> None:
        self._in_head = True
        self._num_begun += 1
        self._num_head_bytes = 0
        self.url = b""
        self.headers = []

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._in_head:  # trailers mean nothing here
            self.headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        self._in_head = False
        parser = self.parser
        head = RequestHead(parser.get_method(), self.url, parser.get_http_version(), self.headers)
        if parser.should_upgrade():
            if head.method == b"CONNECT":
                raise RefusedError(refusals.NO_TUNNEL)
            return  # it comes again, without
        waits_for_continue = head.check(self._front.bounds, self._num_head_bytes + self._num_piece_bytes)
        if len(self._ahead) >= MAX_AHEAD_REQUESTS:
            raise RefusedError(refusals.TOO_MUCH_AHEAD)
        cycle = Cycle(
            self,
            self.flow,
            head.scope(scheme=self.scheme, server=self.server, client=self.client),
            keep_alive=head.version == "1.1" and parser.should_keep_alive(),
            waits_for_continue=waits_for_continue,
        )
        self._incoming = cycle
        self._num_framing_bytes = 0
        if self._running is None:
            self._begin(cycle)
        else:
            self._ahead.append(cycle)

    def on_body(self, body: bytes) -> None:
        cycle = self._incoming
        if cycle is None or cycle.response_complete:
            return
        cycle.body += body
        self._num_framing_bytes -= 9 * len(body)
        # For a request that waits reading goes on, or the client's leaving wouldn't be seen.
        if cycle is self._running and len(cycle.body) > HIGH_WATER_LIMIT:
            self.flow.pause_reading()
        cycle.wake()

    def on_message_complete(self) -> None:
        cycle, self._incoming = self._incoming, None
        if cycle is not None:
            cycle.more_body = False
            cycle.wake()

    # What goes out

    @property
    def is_last(self) -> bool:
        """Whether the connection is to end with the answer that begins now."""
        return (self._is_deaf and not self._ahead and not self._last_words) or self._front.drain.is_draining

    def date(self) -> bytes:
        """The line of the Date header."""
        return self._front.date()

    def _begin(self, cycle: Cycle) -> None:
        self._running = cycle
        self._front.works(self)
        self._deadline.clear()
        if self.flow.write_paused:
            self._deadline.set(self._front.bounds.send_s)
        task = self.loop.create_task(cycle.run(self.app))
        task.add_done_callback(self.tasks.discard)
        self.tasks.add(task)

    def answered(self, cycle: Cycle) -> None:
        """The answer is complete: the next request, or rest."""
        self.server_state.total_requests += 1
        self._running = None
        if self.transport.is_closing():
            return
        if not cycle.keep_alive:
            self._end(lingers=cycle.more_body or self._is_deaf)
            return
        self.flow.resume_reading()
        if self._ahead:
            self._begin(self._ahead.popleft())
        if self._unparsed and not self._ahead:
            unparsed, self._unparsed = bytes(self._unparsed), bytearray()
            self._feed(unparsed)
        if self._running is not None or self._is_ending:
            return
        if self._last_words:
            self._say_last_words()
        elif self._is_deaf:
            self._end(lingers=True)
        elif self._in_head:
            self._deadline.set(self._front.bounds.head_s)
        else:
            self._front.rests(self)
            self._deadline.set(self._front.bounds.keep_alive_s)
