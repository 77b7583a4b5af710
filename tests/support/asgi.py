"""An ASGI server driven by hand: the test says when a message is received and when a send returns."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from typing import Any

Message = MutableMapping[str, Any]
App = Callable[[Message, Callable[[], Awaitable[Message]], Callable[[Message], Awaitable[None]]], Awaitable[None]]

DEADLINE_S = 10.0


class HandDriven:
    """One request to an ASGI application.

    `sent` lists the messages the application sent. While `may_send` is clear, its sends do not return, as with a
    client that doesn't read; with `num_free_sends` that is so from the beginning, but for so many sends.
    """

    def __init__(
        self,
        app: App,
        path: str,
        *,
        method: str = "POST",
        headers: Iterable[tuple[bytes, bytes]] = (),
        num_free_sends: int | None = None,
    ) -> None:
        self._app = app
        self._inbox: asyncio.Queue[Message] = asyncio.Queue()
        self._changed = asyncio.Event()
        self.scope: Message = {
            "type": "http",
            "method": method,
            "path": path,
            "raw_path": path.encode(),
            "query_string": b"",
            "http_version": "1.1",
            "headers": list(headers),
            "client": ("127.0.0.1", 1),
            "server": ("127.0.0.1", 80),
        }
        self.sent: list[Message] = []
        self.may_send = asyncio.Event()
        self._num_free_sends = num_free_sends or 0
        if num_free_sends is None:
            self.may_send.set()
        self.task: asyncio.Task[None] | None = None

    def start(self, body: bytes | None = None) -> "HandDriven":
        """Call the application, with a whole body if one is given."""

        async def call() -> None:
            await self._app(self.scope, self._inbox.get, self._send)

        if body is not None:
            self.receive(body)
        self.task = asyncio.create_task(call())
        return self

    def receive(self, body: bytes, *, more: bool = False) -> None:
        """A piece of the request's body arrives."""
        self._inbox.put_nowait({"type": "http.request", "body": body, "more_body": more})

    def disconnect(self) -> None:
        """The client leaves."""
        self._inbox.put_nowait({"type": "http.disconnect"})

    async def _send(self, message: Message) -> None:
        self.sent.append(message)
        self._changed.set()
        if len(self.sent) > self._num_free_sends:
            await self.may_send.wait()

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait until something that was sent makes the condition true."""
        async with asyncio.timeout(DEADLINE_S):
            while not condition():
                self._changed.clear()
                await self._changed.wait()

    async def ended(self) -> None:
        """Wait for the application to return; raises what it raised."""
        assert self.task is not None
        async with asyncio.timeout(DEADLINE_S):
            await self.task

    @property
    def status(self) -> int:
        """The status that was sent."""
        status: int = self.sent[0]["status"]
        return status

    @property
    def headers(self) -> list[tuple[bytes, bytes]]:
        """The headers that were sent."""
        headers: list[tuple[bytes, bytes]] = self.sent[0]["headers"]
        return headers

    @property
    def body(self) -> bytes:
        """The body bytes that were sent so far."""
        return b"".join(message["body"] for message in self.sent[1:])

    @property
    def is_complete(self) -> bool:
        """Whether the answer was ended properly."""
        return len(self.sent) > 1 and not self.sent[-1]["more_body"]
