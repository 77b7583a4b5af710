"""Requests to one replica: a pool of connections, and the exchange of one request and its response.

A kept connection may have been closed by the replica just as it was taken: if nothing of the response has come, the
request goes once more over a fresh one, invisibly. Nothing else is ever sent twice from here.
"""

import asyncio
import errno
import ssl
from collections import deque
from collections.abc import Awaitable, Callable
from urllib.parse import urlsplit

from .connection import Connection
from .dead_peers import UNACKNOWLEDGED_S, notice
from .errors import Headers
from .upstream_errors import ConnectFailed, UpstreamClosed

# Below the 5 s after which uvicorn, and so vLLM, closes an idle connection.
KEEP_IDLE_S = 4.0
MAX_IDLE = 512
# Failures to connect that say nothing of the replica.
_OWN_SHORTAGES = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM, errno.EADDRNOTAVAIL})


class Upstream:
    """Connections to one origin.

    `connect_s` bounds connecting, `first_byte_s` the wait from the request to the response's head, `gap_s` the
    silence between two pieces of a body; all in seconds. Nothing bounds a whole answer.
    """

    def __init__(
        self,
        url: str,
        *,
        connect_s: float,
        first_byte_s: float,
        gap_s: float,
        tls: ssl.SSLContext | None = None,
        keep_idle_s: float = KEEP_IDLE_S,
    ) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or parts.hostname is None:
            raise ValueError(f"not an http:// or https:// URL: {url}")
        self.host = parts.hostname
        self.port = parts.port or (443 if parts.scheme == "https" else 80)
        self.authority = parts.netloc.rpartition("@")[2]
        self._tls = (tls or ssl.create_default_context()) if parts.scheme == "https" else None
        self._connect_s = connect_s
        self.first_byte_s = first_byte_s
        self.gap_s = gap_s
        self._keep_idle_s = keep_idle_s
        self._idle: deque[Connection] = deque()
        self._open: set[Connection] = set()
        self._expiry: asyncio.TimerHandle | None = None
        self._loop: asyncio.AbstractEventLoop  # of whoever connects: asking for the running one takes a system call
        self._is_closed = self._is_retired = False

    @property
    def num_open(self) -> int:
        """Connections that exist, idle ones included."""
        return len(self._open)

    @property
    def num_idle(self) -> int:
        """Connections that wait for an exchange."""
        return len(self._idle)

    @property
    def heard_s(self) -> float:
        """Instant of the loop's clock at which something of an answer came last, as far as its connection is open."""
        return max((connection.heard_s for connection in self._open), default=0.0)

    def exchange(self, head: bytes, body: bytes, *, is_for_head: bool = False) -> "Exchange":
        """One request, given as its head (blank line included) and body. Nothing happens before `send`."""
        return Exchange(self, head + body, is_for_head=is_for_head)

    def close(self) -> None:
        """Close every connection, those in use too."""
        self._is_closed = True
        self._stop_expiry()
        for connection in tuple(self._open):
            connection.abort()

    def retire(self) -> None:
        """No further exchange comes: those that run go on, and no connection is kept."""
        self._is_retired = True
        while self._idle:
            self._idle.pop().abort()

    def take_idle(self) -> Connection | None:
        """The connection used last, None if none is idle."""
        return self._idle.pop() if self._idle else None

    async def connect(self) -> Connection:
        """A new connection. Raises ConnectFailed."""
        loop = self._loop = asyncio.get_running_loop()
        connection = Connection(loop, self._on_lost)
        try:
            async with asyncio.timeout(self._connect_s):
                transport, _ = await loop.create_connection(
                    lambda: connection,
                    self.host,
                    self.port,
                    ssl=self._tls,
                    server_hostname=self.host if self._tls is not None else None,
                )
        except (OSError, TimeoutError) as error:
            connection.let_go()
            is_refused = not isinstance(error, TimeoutError) and error.errno not in _OWN_SHORTAGES
            raise ConnectFailed(is_refused=is_refused) from error
        except asyncio.CancelledError:
            connection.let_go()  # uvloop closes one that was made by then, and doesn't say so
            raise
        if not connection.is_closed:
            notice(transport.get_extra_info("socket"), unacknowledged_s=UNACKNOWLEDGED_S)
        if connection.is_closed or self._is_closed:
            connection.abort()
            raise ConnectFailed
        self._open.add(connection)
        return connection

    def give_back(self, connection: Connection) -> None:
        """The exchange is over: keep the connection if it can carry another one."""
        is_kept = not (self._is_closed or self._is_retired) and len(self._idle) < MAX_IDLE
        if not connection.finish() or not is_kept:
            connection.abort()
            self._open.discard(connection)
            return
        connection.idle_since_s = self._loop.time()
        self._idle.append(connection)
        if self._expiry is None:
            self._expiry = self._loop.call_later(self._keep_idle_s, self._expire)

    def _on_lost(self, connection: Connection) -> None:
        self._open.discard(connection)
        if connection in self._idle:
            self._idle.remove(connection)

    def _expire(self) -> None:
        self._expiry = None
        kept_since_s = self._loop.time() - self._keep_idle_s
        while self._idle and self._idle[0].idle_since_s <= kept_since_s + 0.001:
            self._idle.popleft().abort()
        if self._idle:
            delay_s = self._idle[0].idle_since_s - kept_since_s
            self._expiry = self._loop.call_later(delay_s, self._expire)

    def _stop_expiry(self) -> None:
        if self._expiry is not None:
            self._expiry.cancel()
            self._expiry = None


class Exchange:
    """One request and its response. Whoever makes one calls `close`, which is synchronous and may be repeated."""

    __slots__ = ("_connection", "_is_closed", "_is_for_head", "_is_reused", "_request", "_upstream")

    def __init__(self, upstream: Upstream, request: bytes, *, is_for_head: bool) -> None:
        self._upstream = upstream
        self._request = request
        self._is_for_head = is_for_head
        self._connection: Connection | None = None
        self._is_reused = False
        self._is_closed = False

    async def send(self) -> None:
        """Connect if need be and write the request. Raises ConnectFailed."""
        connection = self._upstream.take_idle()
        if connection is None:
            await self._send_anew()
            return
        self._is_reused = True
        if self._put(connection):
            await connection.written()

    async def _send_anew(self) -> None:
        """Over a new connection."""
        connection = await self._upstream.connect()
        if self._is_closed:  # stopped while connecting
            connection.abort()
            raise UpstreamClosed
        if self._put(connection):
            await connection.written()

    def _put(self, connection: Connection) -> bool:
        """Begin; True where writing takes a while."""
        self._connection = connection
        connection.begin(is_for_head=self._is_for_head)
        connection.set_limit(self._upstream.first_byte_s)
        return connection.write(self._request)

    async def head(self) -> tuple[int, Headers]:
        """Status and headers of the final response (1xx are skipped). Raises UpstreamError."""
        connection = self._taken()
        try:
            await connection.wait_head()
        except UpstreamClosed:
            if not self._is_reused or connection.has_answered or self._is_closed:
                raise
            self._is_reused = False
            await self._send_anew()
            connection = self._taken()
            await connection.wait_head()
        connection.set_limit(self._upstream.gap_s)
        self._request = b""
        return connection.status, connection.headers

    def pour(self, sink: Callable[[bytes], bool]) -> Awaitable[bytes]:
        """Give the body to `sink` as it comes, all but its end, which is returned; see `Connection.pour`."""
        return self._taken().pour(sink)

    def read(self) -> Awaitable[bytes]:
        """The next bytes of the body, b"" at its proper end. Raises UpstreamError when it can't be completed."""
        return self._taken().read()

    def peek(self) -> Awaitable[bytes]:
        """What `read` will begin with, left for it."""
        return self._taken().peek()

    @property
    def has_answered(self) -> bool:
        """Whether any byte of the response has come."""
        return self._connection is not None and self._connection.has_answered

    @property
    def has_body(self) -> bool:
        """Whether some of the body, or its end, is here to be read."""
        return self._connection is not None and self._connection.has_body

    @property
    def is_at_end(self) -> bool:
        """Whether the whole body was read."""
        return self._connection is not None and self._connection.is_at_end

    def _taken(self) -> Connection:
        if self._connection is None:
            raise UpstreamClosed
        return self._connection

    def stop(self) -> None:
        """Close the connection under whoever is waiting on it: they see UpstreamClosed."""
        self._is_closed = True
        if self._connection is not None:
            self._connection.abort()

    def close(self) -> None:
        """Give the connection back; one whose response wasn't read to its end is closed, which aborts the work."""
        self._is_closed = True
        connection, self._connection = self._connection, None
        if connection is not None:
            self._upstream.give_back(connection)


class Upstreams:
    """The upstream of every replica, made when it is first needed. `make` gets the replica's URL."""

    def __init__(self, make: Callable[[str], Upstream]) -> None:
        self._make = make
        self._by_replica: dict[str, Upstream] = {}

    def of(self, replica_id: str, url: str) -> Upstream:
        """The upstream of this replica."""
        upstream = self._by_replica.get(replica_id)
        if upstream is None:
            upstream = self._by_replica[replica_id] = self._make(url)
        return upstream

    def heard_s(self, replica_id: str) -> float:
        """When something of an answer of this replica came last; see `Upstream`."""
        upstream = self._by_replica.get(replica_id)
        return 0.0 if upstream is None else upstream.heard_s

    def retire(self, replica_id: str) -> None:
        """The next exchange with this replica begins anew, with what `make` gives then."""
        if (upstream := self._by_replica.pop(replica_id, None)) is not None:
            upstream.retire()

    @property
    def num_open(self) -> int:
        """Connections that exist, over all replicas."""
        return sum(upstream.num_open for upstream in self._by_replica.values())

    @property
    def num_idle(self) -> int:
        """Connections that wait for an exchange, over all replicas."""
        return sum(upstream.num_idle for upstream in self._by_replica.values())

    def close(self) -> None:
        """Close every connection."""
        for upstream in self._by_replica.values():
            upstream.close()
