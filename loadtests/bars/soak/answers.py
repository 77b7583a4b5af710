"""Answers as they come over a client's connection, and what a client makes of each."""

import asyncio
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import cast

import httptools

from .replica import MARK
from .visits import Request


class View(StrEnum):
    """What a client saw of its request."""

    OK = "ok"
    ERROR_EVENT = "error-event"
    """A stream that ended properly, with an error in it."""
    BAD_REQUEST = "bad-request"
    TURNED_AWAY = "turned-away"
    FAILED = "failed"
    BROKEN = "broken"
    """An answer that broke off."""
    LEFT = "left"
    """The client went before its answer was complete."""
    WRONG = "wrong"
    """An answer that isn't the one to this request, or has parts missing."""
    UNANSWERED = "unanswered"
    """The gateway closed the connection without a word."""
    STUCK = "stuck"


OUTCOMES: dict[View, frozenset[str]] = {
    View.OK: frozenset({"ok"}),
    View.ERROR_EVENT: frozenset({"failed"}),
    View.BAD_REQUEST: frozenset({"bad-request"}),
    View.TURNED_AWAY: frozenset({"rejected", "evicted"}),
    View.FAILED: frozenset({"failed"}),
    View.BROKEN: frozenset({"failed"}),
    # While it left, anything may have happened on the other side.
    View.LEFT: frozenset({"client-left", "ok", "failed", "bad-request", "rejected", "evicted"}),
}
"""How the gateway counts what a client saw so. The others are faults of the gateway, however it counts them."""


@dataclass(slots=True)
class Answer:
    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    body: bytearray = field(default_factory=bytearray)
    is_complete: bool = False

    @property
    def closes(self) -> bool:
        """Whether it is the last one on its connection."""
        return "close" in self.headers.get("connection", "")


class Line(asyncio.Protocol):
    """A client's connection. `answers` grow as they come; interim ones are left out."""

    def __init__(self) -> None:
        self.answers: list[Answer] = []
        self.is_lost = False
        self.was_reset = False
        self._parser = httptools.HttpResponseParser(self)
        self._waiter: asyncio.Future[None] | None = None

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait for the condition, or the connection's end."""
        while not (condition() or self.is_lost):
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter

    def num_complete(self) -> int:
        return sum(answer.is_complete for answer in self.answers)

    def num_body_bytes(self) -> int:
        return sum(len(answer.body) for answer in self.answers)

    def pause(self) -> None:
        """Take nothing more."""
        if not self.transport.is_closing():
            self.transport.pause_reading()

    def go_on(self) -> None:
        """Take again."""
        if not self.transport.is_closing():
            self.transport.resume_reading()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            self.transport.abort()  # what came is broken: the answer stays incomplete
        self._wake()

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_lost = True
        self.was_reset = exc is not None
        last = self.answers[-1] if self.answers else None
        if last is not None and not last.is_complete and not self.was_reset and not _is_framed(last):
            last.is_complete = True
        self._wake()

    # httptools

    def on_message_begin(self) -> None:
        if not self.answers or self.answers[-1].status >= 200:
            self.answers.append(Answer())
        else:
            self.answers[-1] = Answer()

    def on_header(self, name: bytes, value: bytes) -> None:
        self.answers[-1].headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        self.answers[-1].status = self._parser.get_status_code()

    def on_body(self, body: bytes) -> None:
        self.answers[-1].body += body

    def on_message_complete(self) -> None:
        if self.answers[-1].status >= 200:
            self.answers[-1].is_complete = True


def _is_framed(answer: Answer) -> bool:
    return not answer.status or "content-length" in answer.headers or "transfer-encoding" in answer.headers


def view_of(request: Request, answer: Answer) -> View:
    """What a client that stayed makes of the answer to its request."""
    if not answer.status:
        return View.UNANSWERED
    if "x-tailgate-request-id" not in answer.headers:
        return View.WRONG
    if not answer.is_complete:
        return View.BROKEN
    if answer.status < 400:
        return _view_of_success(request, bytes(answer.body))
    is_the_replicas = MARK.encode() in answer.body
    if answer.status in (429, 503):
        return View.FAILED if is_the_replicas else View.TURNED_AWAY
    if answer.status == 500 and not is_the_replicas:
        return View.WRONG  # a fault inside the gateway
    return View.FAILED if answer.status >= 500 else View.BAD_REQUEST


def _view_of_success(request: Request, body: bytes) -> View:
    try:
        if not request.streams:
            whole = json.loads(body)
            words = "".join(f"w{index} " for index in range(whole["num"]))
            is_right = whole["id"] == f"soak-{request.number}" and whole["text"].rstrip("x") == words
            return View.OK if is_right else View.WRONG
        num_words = 0
        for event in body.decode().split("\n\n"):
            data = event.removeprefix("data: ")
            if data in ("", "[DONE]"):
                continue
            chunk = json.loads(data)
            if "error" in chunk:
                return View.ERROR_EVENT
            if chunk["id"] != f"soak-{request.number}":
                return View.WRONG
            if "num" in chunk:
                return View.OK if chunk["num"] == num_words else View.WRONG
            if chunk["choices"][0]["delta"]["content"].split()[0] != f"w{num_words}":
                return View.WRONG
            num_words += 1
    except (ValueError, KeyError, IndexError, TypeError):
        return View.WRONG
    return View.WRONG  # it ended without its last event
