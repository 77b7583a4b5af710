"""The gateway under a real uvicorn on a free port, in the test's own loop; and raw clients for it."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

import httptools
import uvicorn

from gateway.drain import Drain
from gateway.front import ConnectionBounds, Front
from gateway.server import uvicorn_config

DEADLINE_S = 10.0


class _Server(uvicorn.Server):
    """Leaves the signals of the test process alone."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


@asynccontextmanager
async def serving(app: Any, front: Front | None = None) -> AsyncIterator[int]:
    """Serve an ASGI application with its lifespan, behind the gateway's own connections; gives the port."""
    sock = socket.socket()
    sock.bind(("127.0.0.1", 0))
    server = _Server(uvicorn_config(app, front or getattr(app, "front", None) or Front(ConnectionBounds(), Drain())))
    task = asyncio.create_task(server.serve(sockets=[sock]))
    try:
        await until(lambda: server.started or task.done())
        if task.done():
            task.result()
            raise RuntimeError("the application did not start")
        yield sock.getsockname()[1]
    finally:
        server.should_exit = True
        await task
        sock.close()


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
        return port


async def until(condition: Callable[[], bool], *, deadline_s: float = DEADLINE_S) -> None:
    """Poll until the condition holds; fails at the deadline."""
    async with asyncio.timeout(deadline_s):
        while not condition():  # noqa: ASYNC110  (the conditions are of code that has no events)
            await asyncio.sleep(0.001)


@dataclass
class RawClient:
    """One request over a socket of its own, as an async context manager. Nothing is buffered or repaired.

    `is_complete` says whether the response was framed to its proper end.
    """

    port: int
    request: bytes
    status: int = 0
    headers: list[tuple[bytes, bytes]] = field(default_factory=list)
    body: bytes = b""
    has_head: bool = False
    is_complete: bool = False

    async def __aenter__(self) -> Self:
        self._parser = httptools.HttpResponseParser(self)
        self._reader, self._writer = await asyncio.open_connection("127.0.0.1", self.port)
        self._writer.write(self.request)
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._writer.close()

    def leave(self) -> None:
        """Close the connection at once."""
        self._writer.transport.abort()

    async def read_some(self) -> bool:
        """Read what comes next; False at the end of the connection or of the response."""
        if self.is_complete:
            return False
        try:
            async with asyncio.timeout(DEADLINE_S):
                data = await self._reader.read(1 << 16)
        except ConnectionError:
            return False
        if not data:
            return False
        self._parser.feed_data(data)
        return not self.is_complete

    async def read_all(self) -> Self:
        """Read to the end of the response, or of the connection."""
        while await self.read_some():
            pass
        return self

    async def read_until(self, condition: Callable[[], bool]) -> None:
        """Read until the condition holds."""
        while not condition():
            assert await self.read_some() or condition(), "the response ended before"

    def header(self, name: bytes) -> list[bytes]:
        """All values of a header."""
        return [value for key, value in self.headers if key == name]

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        self.status = self._parser.get_status_code()
        self.has_head = True

    def on_body(self, body: bytes) -> None:
        self.body += body

    def on_message_complete(self) -> None:
        self.is_complete = True


def post(path: str, body: bytes, *headers: tuple[str, str]) -> bytes:
    """The bytes of a POST."""
    lines = [f"POST {path} HTTP/1.1", "host: gateway", f"content-length: {len(body)}"]
    lines += [f"{name}: {value}" for name, value in headers]
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + body


async def ask(port: int, path: str, body: bytes, *headers: tuple[str, str]) -> RawClient:
    """A whole POST and its whole answer."""
    async with RawClient(port, post(path, body, *headers)) as client:
        return await client.read_all()
