"""A replica that costs next to nothing, for measuring what stands in front of it.

`python -m loadtests.cost.instant_replica PORT MODEL CONNECTIONS` answers chat completions at once, and streams in
steps, as an engine does: each step gives every stream a token, in a write of its own. To a gateway it looks like vLLM.
Runs until SIGTERM.
"""

import asyncio
import json
import signal
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import httptools
import orjson
import uvloop

from ..processes import free_port, running, wait_until_ready
from .answers import StreamEvents, whole_answer
from .open_files import OTHER_FILES, allow_files

ENGINE_STREAMS = 256
"""As many take their steps together; more are given to further engines, so that their tokens don't come all at once."""
BACKLOG = 4096
_DEFAULT_TOKENS = 16
_STREAM_HEAD = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n"
)
_STATUS = {200: b"200 OK", 400: b"400 Bad Request", 404: b"404 Not Found"}


def _response(body: bytes, status: int = 200, content_type: bytes = b"application/json") -> bytes:
    head = b"HTTP/1.1 %b\r\ncontent-type: %b\r\ncontent-length: %d\r\n\r\n" % (_STATUS[status], content_type, len(body))
    return head + body


class Replica:
    """What all connections share: the pace, and the engines."""

    def __init__(self, model: str) -> None:
        self.model = model
        self.pace_s = 0.0
        """Seconds between the tokens of a stream that begins from now on; 0: as fast as they are taken."""
        self.num_running = 0
        self._engines: list[_Engine] = []

    def begin(self, stream: "_Stream") -> None:
        """Its first token comes with the next step."""
        self.num_running += 1
        for engine in self._engines:
            if engine.pace_s == self.pace_s and engine.num_streams < ENGINE_STREAMS:
                break
        else:
            engine = _Engine(self, self.pace_s)
            self._engines.append(engine)
        engine.add(stream)

    def is_empty(self, engine: "_Engine") -> None:
        """It took its last step."""
        self._engines.remove(engine)

    def get(self, path: bytes) -> tuple[bytes, bytes] | None:
        """Body and content type of a page; None where there is none."""
        if path == b"/v1/models":
            card = {"id": self.model, "object": "model", "owned_by": "vllm", "root": self.model}
            return json.dumps({"object": "list", "data": [card]}).encode(), b"application/json"
        if path == b"/metrics":
            page = f'vllm:num_requests_running{{model_name="{self.model}"}} {self.num_running}.0\n'
            page += 'vllm:cache_config_info{block_size="16",num_gpu_blocks="100000000"} 1.0\n'
            return page.encode(), b"text/plain; version=0.0.4"
        if path in (b"/health", b"/health_generate"):
            return b"", b"text/plain"
        if path in (b"/version", b"/get_server_info", b"/server_info", b"/get_model_info", b"/model_info"):
            about = {"version": "0", "model_path": self.model, "served_model_name": self.model, "is_generation": True}
            return json.dumps(about).encode(), b"application/json"
        return None


class _Engine:
    """Steps at a pace, while it has streams."""

    def __init__(self, replica: Replica, pace_s: float) -> None:
        self.pace_s = pace_s
        self._replica = replica
        self._loop = asyncio.get_running_loop()
        self._streams: set[_Stream] = set()
        self._next_s = self._loop.time()
        self._arm()

    @property
    def num_streams(self) -> int:
        return len(self._streams)

    def add(self, stream: "_Stream") -> None:
        self._streams.add(stream)

    def _arm(self) -> None:
        self._next_s = max(self._next_s + self.pace_s, self._loop.time())
        if self.pace_s:
            self._loop.call_at(self._next_s, self._step)
        else:
            self._loop.call_soon(self._step)

    def _step(self) -> None:
        for stream in tuple(self._streams):
            if not stream.step():
                self._streams.discard(stream)
                self._replica.num_running -= 1
        if self._streams:
            self._arm()
        else:
            self._replica.is_empty(self)


class _Stream:
    __slots__ = ("_connection", "_events", "_num_sent", "_num_tokens")

    def __init__(self, connection: "_Connection", events: StreamEvents, num_tokens: int) -> None:
        self._connection = connection
        self._events = events
        self._num_tokens = num_tokens
        self._num_sent = 0

    def step(self) -> bool:
        """Sends a token; False when none is left, or nobody is there to take it."""
        transport = self._connection.transport
        if transport is None:
            return False
        event = self._events.event(self._num_sent)
        self._num_sent += 1
        is_last = self._num_sent == self._num_tokens
        transport.write(b"%x\r\n%b\r\n%b" % (len(event), event, b"0\r\n\r\n" if is_last else b""))
        if is_last:
            self._connection.end()
        return not is_last


class _Connection(asyncio.Protocol):
    """A client's; one request at a time, no pipelining."""

    def __init__(self, replica: Replica) -> None:
        self.transport: asyncio.Transport | None = None
        self._replica = replica
        self._parser: Any = httptools.HttpRequestParser(self)
        self._path = b""
        self._body: list[bytes] = []
        self._is_kept = True

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # uvloop's is none of asyncio's by class

    def connection_lost(self, error: Exception | None) -> None:
        self.transport = None

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            if self.transport is not None:
                self.transport.write(_response(b"", 400))
                self.transport.close()

    def on_message_begin(self) -> None:
        self._path = b""
        self._body = []

    def on_url(self, url: bytes) -> None:
        self._path += url

    def on_header(self, name: bytes, value: bytes) -> None:
        if self.transport is not None and name.lower() == b"expect":
            self.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def on_body(self, body: bytes) -> None:
        self._body.append(body)

    def on_message_complete(self) -> None:
        self._is_kept = self._parser.should_keep_alive()
        if self._parser.get_method() == b"POST" and self._path in (b"/v1/chat/completions", b"/pace"):
            try:
                asked = orjson.loads(b"".join(self._body))
                self._chat(asked) if self._path != b"/pace" else self._set_pace(float(asked["pace_s"]))
            except (orjson.JSONDecodeError, KeyError, TypeError, ValueError, AttributeError):
                self._answer(_response(b'{"error": {"message": "bad request", "code": 400}}', 400))
        elif (page := self._replica.get(self._path.partition(b"?")[0])) is not None:
            self._answer(_response(page[0], 200, page[1]))
        else:
            self._answer(_response(b'{"error": {"message": "not found", "code": 404}}', 404))

    def _set_pace(self, pace_s: float) -> None:
        self._replica.pace_s = pace_s
        self._answer(_response(b"{}"))

    def _chat(self, asked: dict[str, Any]) -> None:
        name = str(asked.get("user", "1"))
        num_tokens = max(1, int(asked.get("max_completion_tokens") or asked.get("max_tokens") or _DEFAULT_TOKENS))
        if not asked.get("stream"):
            self._answer(_response(whole_answer(self._replica.model, name, num_tokens)))
        elif self.transport is not None:
            self.transport.write(_STREAM_HEAD)
            self._replica.begin(_Stream(self, StreamEvents(self._replica.model, name, num_tokens), num_tokens))

    def _answer(self, response: bytes) -> None:
        if self.transport is not None:
            self.transport.write(response)
            self.end()

    def end(self) -> None:
        """The answer is complete."""
        if self.transport is not None and not self._is_kept:
            self.transport.close()


async def serve(port: int, model: str) -> None:
    """Until SIGTERM or SIGINT."""
    loop = asyncio.get_running_loop()
    replica = Replica(model)
    server = await loop.create_server(lambda: _Connection(replica), "127.0.0.1", port, backlog=BACKLOG)
    stopped = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopped.set)
    await stopped.wait()
    server.close()


@asynccontextmanager
async def instant_replica(
    folder: Path, model: str, *, prefix: Sequence[str] = (), num_connections: int = 1024
) -> AsyncIterator[str]:
    """One in a process of its own; its URL. Its output goes to a file in `folder`, `prefix` before the command.

    Raises `TargetError`, also where the system doesn't allow so many connections.
    """
    url = f"http://127.0.0.1:{(port := free_port())}"
    log_path = folder / f"replica-{model}.log"
    command = [*prefix, sys.executable, "-m", __name__, str(port), model, str(num_connections)]
    async with running(command, log_path) as process:
        await wait_until_ready(f"{url}/health", process, log_path, 30.0)
        yield url


if __name__ == "__main__":
    allow_files(int(sys.argv[3]) + OTHER_FILES)
    uvloop.run(serve(int(sys.argv[1]), sys.argv[2]))
