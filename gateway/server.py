"""The listening side: uvicorn, with a stop that drops nothing.

Stock uvicorn closes its listener at once on SIGTERM, so nobody can see readiness go. Here a signal begins the drain
while the listener stays open; the server ends when nothing is being served any more, or when the grace is over. A
second signal ends it at once.
"""

import asyncio
import errno
import logging
import socket
from collections.abc import Callable, Coroutine
from functools import partial
from types import FrameType
from typing import Any

import uvicorn

from . import garbage
from .drain import Drain
from .front import Front
from .protocol import ClientConnection

logger = logging.getLogger(__name__)

BACKLOG = 2048
CUT_GRACE_S = 1
"""What running requests get after the drain's deadline, to be told."""


class ListenError(Exception):
    """The address can't be listened on; says why and what helps."""


def bind(host: str, port: int) -> socket.socket:
    """A bound socket, not yet listening. Port 0 picks a free one. Raises ListenError."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except OSError as error:
        raise ListenError(f"{host} is no address to listen on: {error.strerror}") from error
    sock = socket.socket(family, kind, protocol)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(address)
        # At once, so that a port in use is told before anything is started; uvicorn listens again, with its backlog.
        sock.listen(BACKLOG)
    except OSError as error:
        sock.close()
        hint = (
            "another process listens there; choose another with --port"
            if error.errno == errno.EADDRINUSE
            else error.strerror
        )
        raise ListenError(f"can't listen on {host} port {port}: {hint}") from error
    return sock


def url_of(sock: socket.socket) -> str:
    """Where the gateway is reached from this machine."""
    host, port = sock.getsockname()[:2]
    shown = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(host, f"[{host}]" if ":" in host else host)
    return f"http://{shown}:{port}"


def serve(
    app: Callable[..., Any],
    front: Front,
    *socks: socket.socket,
    on_listening: Callable[[], Coroutine[Any, Any, None]],
) -> bool:
    """Serves until a signal has been handled; `on_listening` runs beside it once connections are taken.

    True when it ended well; False when it couldn't start.
    """
    server = _Server(uvicorn_config(app, front), front.drain, on_listening)
    try:
        server.run(sockets=list(socks))
    except SystemExit:  # how uvicorn says that the application's start failed, after logging why
        return False
    return server.started


def uvicorn_config(app: Callable[..., Any], front: Front) -> uvicorn.Config:
    """uvicorn with the gateway's own connections; headers of answers, framing and timeouts are theirs."""
    return uvicorn.Config(
        app,
        loop="uvloop",
        http=partial(ClientConnection, front=front),  # type: ignore[arg-type]
        ws="none",
        interface="asgi3",
        lifespan="on",
        log_config=None,
        access_log=False,
        server_header=False,
        date_header=False,
        proxy_headers=False,
        backlog=BACKLOG,
        timeout_graceful_shutdown=CUT_GRACE_S,
    )


class _Server(uvicorn.Server):
    def __init__(
        self, config: uvicorn.Config, drain: Drain, on_listening: Callable[[], Coroutine[Any, Any, None]]
    ) -> None:
        super().__init__(config)
        self._drain = drain
        self._on_listening = on_listening
        self._loop: asyncio.AbstractEventLoop | None = None
        self._telling: asyncio.Task[None] | None = None
        self._stopping: asyncio.Task[None] | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        self._loop = asyncio.get_running_loop()
        await super().startup(sockets)
        garbage.settle()
        if self.started and not self._drain.is_draining:
            self._telling = asyncio.create_task(self._on_listening(), name="on-listening")

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        # Not handed on to uvicorn: it would end the process by the same signal after a clean stop.
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._stop)
        else:
            self.should_exit = True

    def _stop(self) -> None:
        if self._drain.is_draining:
            logger.warning("asked again: stopping at once")
            self._drain.cut()
            self.should_exit = self.force_exit = True
            return
        self._drain.begin()
        self._stopping = asyncio.create_task(self._end_when_idle(), name="drain")

    async def _end_when_idle(self) -> None:
        drain = self._drain
        await asyncio.sleep(drain.unready_s)
        drain.refuse()
        if drain.num_active:
            left_s = drain.grace_s - drain.unready_s
            logger.info("draining: %d requests may go on for %g s", drain.num_active, left_s)
            if not await drain.wait_idle(left_s):
                logger.warning("drain deadline: %d requests are cut off", drain.num_active)
                drain.cut()
                await drain.wait_idle(CUT_GRACE_S)
        self.should_exit = True
