"""What all client connections share: their bounds, which of them are idle, and what was refused at the door."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from email.utils import formatdate
from typing import Protocol

from .drain import Drain
from .refusals import REASONS


@dataclass(frozen=True, slots=True)
class ConnectionBounds:
    """Limits of client connections: how many there are, bytes of a head (first line and headers), seconds."""

    max_connections: int = 10_000
    max_head_bytes: int = 32 * 1024
    max_headers: int = 128
    head_s: float = 15.0
    """From a head's first byte, or the connection's first moment, to the head's end."""
    send_s: float = 60.0
    """How long a client may take nothing of an answer that waits for it."""
    keep_alive_s: float = 75.0
    """Idle connections are closed after this: longer than the usual 60 s of load balancers, so that they close first
    and no request meets a closing connection."""


class Idle(Protocol):
    """A connection that waits for its next request."""

    def close_idle(self) -> None: ...


class Front:
    """One for the whole gateway; belongs to the event loop. `bounds` may be replaced at any time.

    `refused` counts refusals by reason. Connections tell of themselves with `opened`, `closed`, `rests`, `works`.
    `wall_clock` gives Unix seconds, for the Date header.
    """

    def __init__(self, bounds: ConnectionBounds, drain: Drain, *, wall_clock: Callable[[], float] = time.time) -> None:
        self.bounds = bounds
        self.drain = drain
        self.num_open = 0
        self.refused = dict.fromkeys(REASONS, 0)
        self._idle: dict[Idle, None] = {}  # the one that has been idle for longest comes first
        self._wall_clock = wall_clock
        self._date = (0, b"")

    def date(self) -> bytes:
        """The line of the Date header, made once a second."""
        now_s = int(self._wall_clock())
        if self._date[0] != now_s:
            self._date = (now_s, f"date: {formatdate(now_s, usegmt=True)}\r\n".encode())
        return self._date[1]

    def opened(self) -> bool:
        """A connection came; False where there are too many and none is idle that could be closed for it."""
        self.num_open += 1
        if self.num_open <= self.bounds.max_connections:
            return True
        if not self._idle:
            return False
        idle = next(iter(self._idle))
        del self._idle[idle]
        idle.close_idle()
        return True

    def closed(self, connection: Idle) -> None:
        """A connection is gone."""
        self.num_open -= 1
        self._idle.pop(connection, None)

    def rests(self, connection: Idle) -> None:
        """It waits for its next request."""
        self._idle[connection] = None

    def works(self, connection: Idle) -> None:
        """It has something of a request. May be repeated."""
        self._idle.pop(connection, None)
