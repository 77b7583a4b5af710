"""The client's side of a request: the single owner of ASGI's `receive()`.

First the body is read, bounded in size and time. From then on one watcher waits for `http.disconnect`, whatever the
request is doing (counted, queued, connecting, streaming), and cancels the task that serves it. Two readers of
`receive()` would race for that message, so nobody else calls it. The watcher is a callback, not a task: nearly every
request would start and cancel one in vain. Our own server (see `Direct`) hands over a body that is here without being
awaited, and calls back when its client leaves: the steps of a coroutine for each cost a tenth of a request.

`asyncio.timeout`, never `asyncio.wait_for`: the latter can swallow a cancellation in Python 3.11 when the inner future
finishes in the same iteration of the loop.
"""

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from types import TracebackType
from typing import Any, Protocol, Self

from .eager import Pending, begin
from .errors import BodyTooLarge, ClientLeft, GatewayError, ReceiveTimeout

FOLLOWS = "tailgate.body_follows"
"""In a message that starts an answer: its body comes at once, so a server may put both into one write."""
LINES = "tailgate.head_lines"
"""In such a message: further headers, as lines of a head that are known to be whole."""
DIRECT = "tailgate.direct"
"""An extension of the scope: a `Direct`."""
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Write = Callable[[bytes], bool]
OnLeft = Callable[[str | None], None]


class Direct(Protocol):
    """A request as our own server has it: what can be done at once, without a coroutine."""

    def write(self, piece: bytes) -> bool:
        """Send a non-empty piece of a begun answer; False, and nothing done, where that has to be awaited."""
        ...

    def take_body(self, max_bytes: int) -> bytes | None:
        """The whole body, if all of it has come and it isn't larger; None, and nothing taken, otherwise."""
        ...

    def watch(self, on_left: OnLeft | None) -> None:
        """Calls this once when the client leaves, or has left, with the `reason` of the disconnect. None: no more."""
        ...


class Client:
    """One request's client. As a context manager it watches for the client's leaving.

    Inside `with client:` the current task is cancelled when the client leaves, and the block then raises
    `ClientLeft` in place of `CancelledError`; a cancellation that came from elsewhere stays one. After
    `response_complete()` a disconnect means nothing any more (servers report one when an answer is finished).
    `left_because` is what the server says of it, where it was not simply the client's doing.
    """

    __slots__ = (
        "_cancelling",
        "_direct",
        "_is_over",
        "_owner",
        "_receive",
        "_stopped_by",
        "_watched",
        "has_left",
        "left_because",
    )

    def __init__(
        self, receive: Receive, direct: Direct | None = None, *, loop: asyncio.AbstractEventLoop | None = None
    ) -> None:
        """`loop`: the running one; without it it is looked for, which takes a system call."""
        self._receive = receive
        self._direct = direct
        self._owner = asyncio.current_task(loop)
        self._watched: Pending[str | None] | None = None
        self._cancelling = 0
        self._is_over = False
        self._stopped_by: GatewayError | None = None
        self.has_left = False
        self.left_because: str | None = None

    async def read_body(self, *, content_length: int | None, max_bytes: int, timeout_s: float) -> bytes:
        """The whole body. Raises BodyTooLarge (also for a chunked one), ReceiveTimeout or ClientLeft."""
        if content_length is not None and content_length > max_bytes:
            raise BodyTooLarge(max_bytes)
        if self._direct is not None and (whole := self._direct.take_body(max_bytes)) is not None:
            return whole
        collected = begin(self._collect(max_bytes))
        if not isinstance(collected, Pending):
            return collected
        try:
            async with asyncio.timeout(timeout_s):
                return await collected
        except TimeoutError:
            raise ReceiveTimeout(timeout_s) from None

    async def _collect(self, max_bytes: int) -> bytes:
        pieces: list[bytes] = []
        num_bytes = 0
        while True:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                self.has_left = True
                raise ClientLeft
            piece = message.get("body", b"")
            num_bytes += len(piece)
            if num_bytes > max_bytes:
                raise BodyTooLarge(max_bytes)
            pieces.append(piece)
            if not message.get("more_body", False):
                return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def stop(self, error: GatewayError) -> None:
        """Cancel the serving task, unless its answer is complete; `stopped_by` then has the error for the client."""
        if not (self._is_over or self.has_left) and self._owner is not None:
            self._stopped_by = error
            self._owner.cancel()

    def stopped_by(self) -> GatewayError | None:
        """Asked when a cancellation arrives: what `stop` was called with, if that is where it came from. Once."""
        error, self._stopped_by = self._stopped_by, None
        if error is not None and self._owner is not None:
            self._owner.uncancel()
        return error

    def response_complete(self) -> None:
        """From here on the client may close: call it right before the last piece of the answer is sent."""
        self._is_over = True
        self._stop_watching()

    def __enter__(self) -> Self:
        owner = self._owner
        assert owner is not None, "a client is served by a task"
        self._cancelling = owner.cancelling()
        if self._direct is not None:
            self._direct.watch(self._left)
            return self
        try:
            leaving = begin(self._leaving())
        except Exception:
            leaving = None
        if isinstance(leaving, Pending):
            self._watched = leaving
            leaving.watch(owner.get_loop(), self._left)
        else:
            self._left(leaving)
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._is_over = True
        self._stop_watching()
        if (
            self.has_left
            and self._owner is not None
            and self._owner.uncancel() <= self._cancelling
            and exc_type is not None
            and issubclass(exc_type, asyncio.CancelledError)
        ):
            raise ClientLeft from None

    def _stop_watching(self) -> None:
        if self._direct is not None:
            self._direct.watch(None)
        elif self._watched is not None:
            self._watched.give_up()
            self._watched = None

    async def _leaving(self) -> str | None:
        while True:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                return message.get("reason")

    def _left(self, reason: str | Exception | None) -> None:
        # A server that fails to say what its client does has no client to offer any more.
        if not self._is_over and self._owner is not None:
            self.has_left = True
            self.left_because = reason if isinstance(reason, str) else None
            self._owner.cancel()
