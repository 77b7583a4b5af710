"""The HTTP server process: a socket, uvicorn, signals."""

import asyncio
import contextlib
import math
import signal
import socket
from collections.abc import Callable, Iterator
from types import FrameType

import uvicorn
from starlette.applications import Starlette
from uvicorn.protocols.http.h11_impl import H11Protocol

# What runs may finish for so long after a signal; then it is told that the engine ends, and has so long to pass it on.
GRACE_S = 3
_CUT_GRACE_S = 1


class _Connection(H11Protocol):
    """uvicorn's other implementation takes the body of a request that would rather be upgraded (`Upgrade: h2c`, as
    Java's client and `curl --http2` ask) for the next request. This one serves it without (RFC 9110, 7.8)."""

    def _unsupported_upgrade_warning(self) -> None:
        """Nothing that an operator could do about it."""


class _Server(uvicorn.Server):
    """Says when it is ready, and returns after a signal instead of raising it again: the exit status is 0 then."""

    def __init__(
        self, config: uvicorn.Config, on_ready: Callable[[], None], stop_answers: Callable[[], None], grace_s: float
    ) -> None:
        super().__init__(config)
        self._on_ready = on_ready
        self._stop_answers = stop_answers
        self._grace_s = grace_s

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            self._on_ready()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        cut = asyncio.get_running_loop().call_later(self._grace_s, self._stop_answers)
        try:
            await super().shutdown(sockets)
        finally:
            cut.cancel()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        def handle(signal_number: int, frame: FrameType | None) -> None:
            self.handle_exit(signal_number, frame)

        previous = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in previous.items():
                signal.signal(number, handler)


def bind(host: str, port: int) -> socket.socket:
    """A bound socket; port 0 takes a free one. Raises `OSError`."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind((host, port))
    except OSError:
        sock.close()
        raise
    return sock


def url_of(sock: socket.socket) -> str:
    """The URL under which a bound socket is reached."""
    host, port = sock.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def new_server(app: Starlette, on_ready: Callable[[], None], *, grace_s: float = GRACE_S) -> uvicorn.Server:
    """A server that was not started, for `build_app`'s application.

    `grace_s`: what running answers get after a signal, before they are told that the engine ends.
    """
    config = uvicorn.Config(
        app,
        loop="uvloop",
        http=_Connection,
        ws="none",
        lifespan="on",
        log_level="warning",
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=math.ceil(grace_s) + _CUT_GRACE_S,
    )
    return _Server(config, on_ready, app.state.stop_answers, grace_s)


def run(app: Starlette, sock: socket.socket, on_ready: Callable[[], None]) -> None:
    """Serve until SIGINT or SIGTERM. Raises `RuntimeError` when the application doesn't start."""
    server = new_server(app, on_ready)
    server.run(sockets=[sock])
    if not server.started:
        raise RuntimeError("the server did not start")
