"""A scripted replica on a raw socket: it says exactly the bytes a test wants, and writes down what it saw.

A behaviour is a coroutine function of a `Call`, run for each POST. Probes (`/health`, `/v1/models`) are answered by
themselves.
"""

import asyncio
import json
import socket
import ssl
import struct
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

Headers = Iterable[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class Received:
    """A request as it came: header names in lower case, in order; `connection` numbers the connections from 1."""

    method: str
    path: str
    headers: list[tuple[str, str]]
    body: bytes
    connection: int

    def header(self, name: str) -> list[str]:
        """All values of a header."""
        return [value for key, value in self.headers if key == name]


@dataclass
class Call:
    """One request and the means to answer it. `gone` is set when the peer has closed its connection."""

    received: Received
    writer: asyncio.StreamWriter
    gone: asyncio.Event = field(default_factory=asyncio.Event)
    keeps_alive: bool = True

    async def send(self, data: bytes) -> None:
        """Bytes as they are."""
        if self.writer.transport.is_closing():  # uvloop would raise a RuntimeError
            raise ConnectionResetError
        self.writer.write(data)
        await self.writer.drain()

    async def head(self, status: int = 200, headers: Headers = (), *, length: int | None = None) -> None:
        """Status line and headers; chunked unless a length is given."""
        framing = ("transfer-encoding", "chunked") if length is None else ("content-length", str(length))
        lines = [f"HTTP/1.1 {status} X", *(f"{name}: {value}" for name, value in (*headers, framing)), "", ""]
        await self.send("\r\n".join(lines).encode("latin-1"))

    async def chunk(self, data: bytes) -> None:
        """One HTTP chunk."""
        await self.send(b"%x\r\n%b\r\n" % (len(data), data))

    async def end(self) -> None:
        """The proper end of a chunked body."""
        await self.send(b"0\r\n\r\n")

    async def whole(self, body: bytes, *, status: int = 200, headers: Headers = ()) -> None:
        """A whole answer with its length."""
        await self.head(status, [("content-type", "application/json"), *headers], length=len(body))
        await self.send(body)

    def close(self) -> None:
        """FIN."""
        self.keeps_alive = False
        self.writer.close()

    def reset(self) -> None:
        """RST."""
        self.keeps_alive = False
        sock = self.writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.writer.transport.abort()


Behaviour = Callable[[Call], Awaitable[None]]


class FakeReplica:
    """A running one, as an async context manager. `owned_by` is how it names its kind, `pages` has more GET answers:
    bytes as they are, anything else as JSON.

    `received` lists the POSTs; `num_open` counts the connections that are open now; `num_aborted` the calls whose peer
    closed before the behaviour was done; `num_running` the behaviours that run. While `is_answering_health` is
    False, health checks hang.
    """

    def __init__(
        self,
        behaviour: Behaviour,
        *,
        models: tuple[str, ...] = ("m1",),
        owned_by: str = "test",
        pages: Mapping[str, object] | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._tls = tls
        self.owned_by = owned_by
        self.pages = dict(pages or {})
        self.behaviour = behaviour
        self.models = models
        self.received: list[Received] = []
        self.num_open = 0
        self.num_aborted = 0
        self.num_running = 0
        self.num_connections = 0
        self.url = ""
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self.is_healthy = True
        self.is_answering_health = True
        self.num_health_checks = 0

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._connected, "127.0.0.1", 0, limit=1 << 24, ssl=self._tls)
        self.url = f"{'http' if self._tls is None else 'https'}://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        assert self._server is not None
        self._server.close()
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self.num_connections += 1
        self.num_open += 1
        try:
            await self._serve(reader, writer, self.num_connections)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        except asyncio.CancelledError:
            # start_server logs a cancelled handler as an error; this one was ended by the test.
            pass
        finally:
            self._tasks.discard(task)
            self.num_open -= 1
            writer.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, connection: int) -> None:
        keeps_alive = True
        while keeps_alive:
            lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
            method, path, _ = lines[0].split(" ")
            pairs = (line.partition(":") for line in lines[1:] if line)
            headers = [(name.lower(), value.strip()) for name, _, value in pairs]
            length = next((int(value) for name, value in headers if name == "content-length"), 0)
            received = Received(method, path, headers, await reader.readexactly(length), connection)
            call = Call(received, writer)
            if method == "POST":
                self.received.append(received)
                await self._run(call, reader)
            else:
                await self._probe(call)
            keeps_alive = call.keeps_alive

    async def _probe(self, call: Call) -> None:
        if call.received.path == "/health":
            self.num_health_checks += 1
            if not self.is_answering_health:
                await asyncio.Event().wait()
            await call.whole(b"{}", status=200 if self.is_healthy else 503)
        elif call.received.path == "/v1/models":
            data = [{"id": name, "object": "model", "owned_by": self.owned_by} for name in self.models]
            await call.whole(json.dumps({"object": "list", "data": data}).encode())
        elif (page := self.pages.get(call.received.path.partition("?")[0])) is not None:
            await call.whole(page if isinstance(page, bytes) else json.dumps(page).encode())
        else:
            await call.whole(b"{}", status=404)

    async def _run(self, call: Call, reader: asyncio.StreamReader) -> None:
        behaviour = self.behaviour  # that of the moment at which it came

        async def behave() -> None:
            await behaviour(call)

        self.num_running += 1
        work = asyncio.create_task(behave())
        peer = asyncio.create_task(reader.read(1))
        try:
            await asyncio.wait({work, peer}, return_when=asyncio.FIRST_COMPLETED)
            if peer.done() and not work.done():
                self.num_aborted += 1
                call.gone.set()
                call.keeps_alive = False
                # A behaviour may want to see the peer go; it gets the chance, but not for ever.
                await asyncio.wait({work}, timeout=0.01)
            if work.done() and not work.cancelled() and (error := work.exception()) is not None:
                call.keeps_alive = False
                if not isinstance(error, ConnectionError):
                    raise error
        finally:
            self.num_running -= 1
            for task in (work, peer):
                task.cancel()
            await asyncio.gather(work, peer, return_exceptions=True)


def event(data: object) -> bytes:
    """An SSE event of compact JSON, as replicas write it."""
    return b"data: " + json.dumps(data, separators=(",", ":")).encode() + b"\n\n"


def delta(text: str, **more: object) -> bytes:
    """A chat chunk with one piece of text."""
    choice = {"index": 0, "delta": {"content": text}, "finish_reason": None}
    return event({"id": "c", "object": "chat.completion.chunk", "choices": [choice], **more})


def finish(reason: str = "stop") -> bytes:
    """The last chunk of a choice."""
    return event({"id": "c", "choices": [{"index": 0, "delta": {}, "finish_reason": reason}]})


def usage_event(prompt_tokens: int, completion_tokens: int, **more: object) -> bytes:
    """The usage chunk of a stream."""
    usage = {"prompt_tokens": prompt_tokens, "completion_tokens": completion_tokens}
    return event({"id": "c", "choices": [], "usage": usage, **more})


DONE = b"data: [DONE]\n\n"


def answers(body: bytes = b'{"id":"c","choices":[],"usage":{"prompt_tokens":5,"completion_tokens":2}}') -> Behaviour:
    """A whole answer at once."""

    async def behave(call: Call) -> None:
        await call.whole(body)

    return behave


def streams(*events: bytes, headers: Headers = ()) -> Behaviour:
    """A stream of these pieces, an HTTP chunk each, and its end."""

    async def behave(call: Call) -> None:
        await call.head(headers=[("content-type", "text/event-stream"), *headers])
        for piece in events:
            await call.chunk(piece)
        await call.end()

    return behave


def hangs(*events: bytes) -> Behaviour:
    """These pieces of a stream (none: not even a head), then silence until the peer goes."""

    async def behave(call: Call) -> None:
        if events:
            await call.head(headers=[("content-type", "text/event-stream")])
        for piece in events:
            await call.chunk(piece)
        await call.gone.wait()

    return behave
