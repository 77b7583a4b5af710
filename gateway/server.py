"""The listening side: uvicorn, with a stop that drops nothing.

Stock uvicorn closes its listener at once on SIGTERM, so nobody can see readiness go. Here a signal begins the drain
while the listener stays open; the server ends when nothing is being served any more, or when the grace is over. A
second signal ends it at once.
"""

import asyncio
import errno
import logging
import resource
import signal
import socket
from collections.abc import Callable, Coroutine
from functools import partial
from types import FrameType
from typing import Any

import uvicorn

from . import garbage
from .dead_peers import notice
from .drain import Drain
from .front import Front
from .protocol import ClientConnection

logger = logging.getLogger(__name__)

BACKLOG = 2048
OTHER_FILES = 200
"""Open beside those of requests: logs, probes, threads, modules."""
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
        notice(sock)
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
    on_hangup: Callable[[], Coroutine[Any, Any, None]] | None = None,
) -> bool:
    """Serves until a signal has been handled; `on_listening` runs beside it once connections are taken.

    `on_hangup` is what SIGHUP asks for, never twice at the same time; None: to stop, as SIGTERM does. True when it
    ended well; False when it couldn't start.
    """
    _allow_files(front.bounds.max_connections)
    server = _Server(uvicorn_config(app, front), front.drain, on_listening, on_hangup)
    before = signal.signal(signal.SIGHUP, server.handle_exit if on_hangup is None else server.handle_hangup)
    try:
        server.run(sockets=list(socks))
    except SystemExit:  # how uvicorn says that the application's start failed, after logging why
        return False
    finally:
        signal.signal(signal.SIGHUP, before)
    return server.started


def _allow_files(max_connections: int) -> None:
    """A stream takes two: the client's connection and the replica's. Many systems allow 1,024 unless asked."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 2 * max_connections + OTHER_FILES
    allowed = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    if soft != resource.RLIM_INFINITY and soft < allowed:
        resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
    if allowed < wanted:
        logger.warning("%d open files are allowed, %d connections may take %d", allowed, max_connections, wanted)


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
        self,
        config: uvicorn.Config,
        drain: Drain,
        on_listening: Callable[[], Coroutine[Any, Any, None]],
        on_hangup: Callable[[], Coroutine[Any, Any, None]] | None,
    ) -> None:
        super().__init__(config)
        self._drain = drain
        self._on_listening = on_listening
        self._on_hangup = on_hangup
        self._num_hangups = 0  # that came while another one was handled, or too early
        self._loop: asyncio.AbstractEventLoop | None = None
        self._telling: asyncio.Task[None] | None = None
        self._stopping: asyncio.Task[None] | None = None
        self._hanging_up: asyncio.Task[None] | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        self._loop = asyncio.get_running_loop()
        await super().startup(sockets)
        garbage.settle()
        if self.started and not self._drain.is_draining:
            self._telling = asyncio.create_task(self._on_listening(), name="on-listening")
            self._hang_up()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        # Not handed on to uvicorn: it would end the process by the same signal after a clean stop.
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._stop)
        else:
            self.should_exit = True

    def handle_hangup(self, sig: int, frame: FrameType | None) -> None:
        self._num_hangups += 1
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._hang_up)

    def _hang_up(self) -> None:
        is_idle = self._hanging_up is None or self._hanging_up.done()
        if self._num_hangups and is_idle and self.started and not self._drain.is_draining:
            self._hanging_up = asyncio.create_task(self._handle_hangups(), name="hangup")

    async def _handle_hangups(self) -> None:
        assert self._on_hangup is not None
        while self._num_hangups:
            self._num_hangups = 0
            try:
                await self._on_hangup()
            except Exception:
                logger.exception("what SIGHUP asks for failed")

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
