"""A replica made of canned answers, on a real socket: for what the gateway asks replicas outside of requests."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

DEADLINE_S = 10.0


@dataclass
class TinyReplica:
    """`pages` maps a path to (status, body) or to a coroutine function of the request body that returns one."""

    pages: dict[str, Any] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)
    headers: list[str] = field(default_factory=list)
    url: str = ""
    extra_header: str = ""
    tasks: set[asyncio.Task[None]] = field(default_factory=set)

    def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(self.handle(reader, writer))
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
                length = next(
                    (int(line[15:]) for line in head.split("\r\n") if line.lower().startswith("content-length:")), 0
                )
                body = await reader.readexactly(length)
                path = head.split(" ")[1]
                self.asked.append(path)
                self.headers.append(head)
                page = self.pages.get(path, (404, "{}"))
                status, content = await page(body) if callable(page) else page
                data = content.encode() if isinstance(content, str) else json.dumps(content).encode()
                line = f"HTTP/1.1 {status} X\r\ncontent-length: {len(data)}\r\n{self.extra_header}\r\n"
                writer.write(line.encode() + data)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()


@asynccontextmanager
async def tiny_replica(**pages: Any) -> AsyncIterator[TinyReplica]:
    """A running one. Keyword names are paths: `health`, `v1_models` (underscores become slashes)."""
    replica = TinyReplica({"/" + name.replace("_", "/"): page for name, page in pages.items()})
    server = await asyncio.start_server(replica.accept, "127.0.0.1", 0)
    replica.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield replica
    finally:
        server.close()
        for task in list(replica.tasks):
            task.cancel()
        await asyncio.gather(*replica.tasks, return_exceptions=True)


def models_page(*names: str, owned_by: str = "someone", **fields: Any) -> tuple[int, Any]:
    """A /v1/models answer."""
    data = [{"id": name, "object": "model", "owned_by": owned_by, **fields} for name in names]
    return 200, {"object": "list", "data": data}


async def until(condition: Callable[[], bool]) -> None:
    """Waits for something that other tasks do; fails at a deadline."""
    async with asyncio.timeout(DEADLINE_S):
        while not condition():  # noqa: ASYNC110 - a poll with a deadline
            await asyncio.sleep(0.005)
