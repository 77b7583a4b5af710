"""A client's connection that costs little: one request at a time, kept alive, the answer held whole."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import httptools
import orjson

from .answers import DONE


@dataclass(frozen=True, slots=True)
class Ask:
    """A request as its bytes, and what a good answer to it is."""

    request: bytes
    streams: bool
    num_tokens: int
    body: bytes | None = None
    """What the answer's body must be, to the byte; None where a gateway may write it anew."""


def chat_request(host: str, model: str, prompt: str, *, name: str, streams: bool, num_tokens: int) -> bytes:
    """A chat completion. `name` is what the instant replica puts into its answer's id."""
    body: dict[str, Any] = {
        "model": model, "messages": [{"role": "user", "content": prompt}], "max_tokens": num_tokens, "user": name,
    }  # fmt: skip
    if streams:
        body["stream"] = True
    content = orjson.dumps(body)
    head = (
        f"POST /v1/chat/completions HTTP/1.1\r\nhost: {host}\r\ncontent-type: application/json\r\n"
        f"accept: */*\r\nauthorization: Bearer unused\r\ncontent-length: {len(content)}\r\n\r\n"
    )
    return head.encode() + content


def why_bad(ask: Ask, status: int, body: bytes) -> str | None:
    """None for a good answer; else what is wrong with it."""
    if status != 200:
        return f"status {status}: {body[:200].decode('utf-8', 'replace')}"
    if ask.body is not None:
        return None if body == ask.body else f"{len(body)} bytes that aren't the replica's {len(ask.body)}"
    if not ask.streams:
        return None if b'"choices"' in body else "no completion"
    if not body.endswith(DONE.strip(b"\n") + b"\n\n"):
        return "the stream has no end"
    num_events = body.count(b"data: ") - 1
    return None if num_events >= ask.num_tokens else f"{num_events} events for {ask.num_tokens} tokens"


class Wire(asyncio.Protocol):
    """Answers are told by the future that `send` returns: what was wrong with it, None for a good one."""

    def __init__(self, on_begin: Callable[[], None]) -> None:
        self._on_begin = on_begin
        """Called when the first piece of an answer's body came."""
        self._transport: asyncio.Transport | None = None
        self._parser: Any = None
        self._ask: Ask | None = None
        self._ended: asyncio.Future[str | None] | None = None
        self._body = bytearray()

    @property
    def is_open(self) -> bool:
        """Whether another request can be sent."""
        return self._transport is not None and not self._transport.is_closing()

    def send(self, ask: Ask) -> "asyncio.Future[str | None]":
        """The answer to the last request must have ended."""
        self._ended = asyncio.get_running_loop().create_future()
        if self._transport is None:
            self._ended.set_result("the connection ended before the request")
            return self._ended
        self._ask = ask
        self._parser = httptools.HttpResponseParser(self)
        self._body.clear()
        self._transport.write(ask.request)
        return self._ended

    def close(self) -> None:
        """An answer that has not ended ends as cut."""
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop\'s is none of asyncio\'s by class

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None
        self._end("the connection ended before the answer")

    def data_received(self, data: bytes) -> None:
        if self._ask is None:  # nobody asked: such as a server's word that it closes an idle connection
            return
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            self._end(f"no HTTP: {error!r}")
            self.close()

    def on_body(self, body: bytes) -> None:
        if not self._body:
            self._on_begin()
        self._body += body

    def on_message_complete(self) -> None:
        if self._ask is None:
            return
        if self._transport is not None and not self._parser.should_keep_alive():
            self._transport.close()
        self._end(why_bad(self._ask, self._parser.get_status_code(), bytes(self._body)))

    def _end(self, why: str | None) -> None:
        self._ask = None
        if self._ended is not None and not self._ended.done():
            self._ended.set_result(why)
