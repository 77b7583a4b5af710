"""Client connections: what is refused before it is a request, framing both ways, pipelining, time."""

import asyncio
import json
import logging
import random
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from importlib.metadata import version
from typing import Any

import pytest

from gateway import protocol
from gateway.disconnect import DIRECT, FOLLOWS, Message, Receive, Send
from gateway.drain import Drain
from gateway.errors import MalformedBody, ResponseBroken
from gateway.front import ConnectionBounds, Front
from tests.support.raw import RawSocket, answer_to, statuses
from tests.support.serve import serving, until

HOST = b"Host: a\r\n"
POST = b"POST /echo HTTP/1.1\r\n" + HOST
CHUNKED = POST + b"Transfer-Encoding: chunked\r\n\r\n"
CLOSE = b"Connection: close\r\n"


@dataclass
class App:
    """Answers with what it received; the path says how. `events` tells what happened, `gate` holds back /wait."""

    events: list[str] = field(default_factory=list)
    bodies: list[bytes] = field(default_factory=list)
    headers: list[list[tuple[bytes, bytes]]] = field(default_factory=list)
    gate: asyncio.Event = field(default_factory=asyncio.Event)

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await receive()
            await send({"type": "lifespan.startup.complete"})
            await receive()
            return await send({"type": "lifespan.shutdown.complete"})
        path = scope["path"]
        self.events.append(f"{scope['method']} {path}")
        if path == "/early":
            return await self._answer(send, b"early")
        body, more = b"", True
        while more:
            try:
                message = await receive()
            except MalformedBody as fault:
                return await self._answer(send, fault.body(), status=fault.status)
            if message["type"] == "http.disconnect":
                self.events.append(f"left {path}")
                return None
            body, more = body + message["body"], message["more_body"]
        self.bodies.append(body)
        self.headers.append(scope["headers"])
        if path.startswith("/wait"):
            waiting = asyncio.create_task(self.gate.wait())
            leaving = asyncio.ensure_future(receive())
            await asyncio.wait({waiting, leaving}, return_when=asyncio.FIRST_COMPLETED)
            waiting.cancel()
            if leaving.done():
                self.events.append(f"left {path}")
                return None
            leaving.cancel()
            await asyncio.wait({leaving})
        if path == "/flood":
            return await self._flood(receive, send)
        return await self._answer(send, path.encode() + b"|" + body, streams=path == "/stream", breaks=path == "/break")

    async def _answer(
        self, send: Send, body: bytes, *, status: int = 200, streams: bool = False, breaks: bool = False
    ) -> None:
        headers = [] if streams or breaks else [(b"content-length", b"%d" % len(body))]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        if breaks:
            await send({"type": "http.response.body", "body": b"half", "more_body": True})
            raise ResponseBroken("on purpose")
        await send({"type": "http.response.body", "body": body})

    async def _flood(self, receive: Receive, send: Send) -> None:
        async def watch() -> None:
            await receive()
            self.events.append("left /flood")

        watching = asyncio.create_task(watch())
        await send({"type": "http.response.start", "status": 200, "headers": []})
        while not watching.done():
            await send({"type": "http.response.body", "body": b"x" * 65536, "more_body": True})


@asynccontextmanager
async def served(**bounds: Any) -> AsyncIterator[tuple[int, App, Front]]:
    """The application behind connections with these bounds."""
    app, front = App(), Front(ConnectionBounds(**bounds), Drain())
    async with serving(app, front) as port:
        yield port, app, front


def get(path: str, more: bytes = b"") -> bytes:
    return b"GET %b HTTP/1.1\r\n%b%b\r\n" % (path.encode(), HOST, more)


REFUSED: dict[str, tuple[int, bytes]] = {
    "both lengths": (400, POST + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"),
    "both lengths, the other way": (400, POST + b"Transfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n"),
    "two lengths": (400, POST + b"Content-Length: 5\r\nContent-Length: 6\r\n\r\nhello"),
    "one length twice": (400, POST + b"Content-Length: 5\r\nContent-Length: 5\r\n\r\nhello"),
    "a list of lengths": (400, POST + b"Content-Length: 5, 5\r\n\r\nhello"),
    "a signed length": (400, POST + b"Content-Length: +5\r\n\r\nhello"),
    "a negative length": (400, POST + b"Content-Length: -5\r\n\r\nhello"),
    "an overflowing length": (400, POST + b"Content-Length: 99999999999999999999999\r\n\r\nhello"),
    "an empty length": (400, POST + b"Content-Length: \r\n\r\nhello"),
    "a space before the colon": (400, POST + b"Content-Length : 5\r\n\r\nhello"),
    "a coding before chunked": (501, POST + b"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n"),
    "a coding after chunked": (400, POST + b"Transfer-Encoding: chunked, gzip\r\n\r\n0\r\n\r\n"),
    "an unknown coding": (501, POST + b"Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n"),
    "identity": (501, POST + b"Transfer-Encoding: identity\r\n\r\n"),
    "chunked with a parameter": (501, POST + b"Transfer-Encoding: chunked;q=1\r\n\r\n0\r\n\r\n"),
    "two codings": (400, POST + b"Transfer-Encoding: identity\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"),
    "chunks in HTTP/1.0": (400, b"POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"),
    "a folded line": (400, POST + b"X: a\r\n b\r\n\r\n"),
    "a folded first line": (400, b"GET / HTTP/1.1\r\n Host: a\r\n\r\n"),
    "a folded coding": (400, POST + b"Transfer-Encoding:\r\n chunked\r\n\r\n0\r\n\r\n"),
    "bare line feeds": (400, b"GET / HTTP/1.1\nHost: a\n\n"),
    "a bare carriage return": (400, POST + b"X: b\rc\r\n\r\n"),
    "a zero byte": (400, POST + b"X: b\0c\r\n\r\n"),
    "a name with a space": (400, POST + b"X y: 1\r\n\r\n"),
    "a name in another script": (400, POST + b"X\xc3\xa9: 1\r\n\r\n"),
    "no name": (400, POST + b": 1\r\n\r\n"),
    "no host": (400, b"GET / HTTP/1.1\r\n\r\n"),
    "two hosts": (400, get("/", b"Host: b\r\n")),
    "two kinds of content": (400, get("/", b"Content-Type: a/b\r\nContent-Type: c/d\r\n")),
    "an unknown method": (400, b"BREW /pot HTTP/1.1\r\n" + HOST + b"\r\n"),
    "a tunnel": (405, b"CONNECT a:1 HTTP/1.1\r\n" + HOST + b"\r\n"),
    "HTTP/2 at once": (400, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"),
    "HTTP/0.9": (505, b"GET /\r\n\r\n"),
    "another version": (400, b"GET / HTTP/1.2\r\n" + HOST + b"\r\n"),
    "an unknown expectation": (417, POST + b"Expect: tea\r\nContent-Length: 1\r\n\r\nx"),
    "TLS": (400, bytes.fromhex("16030100c8010000c40303")),
    "rubbish": (400, b"\x00\xff hello\r\n\r\n"),
    "a path in another script": (400, b"GET /\xc3\xa9 HTTP/1.1\r\n" + HOST + b"\r\n"),
    "a path that isn't absolute": (400, b"GET x HTTP/1.1\r\n" + HOST + b"\r\n"),
    "too many headers": (431, get("/", b"".join(b"X-%d: 1\r\n" % number for number in range(40)))),
    "a header that is too large": (431, get("/", b"X: " + b"x" * 5000 + b"\r\n")),
    "a path that is too long": (414, get("/" + "x" * 9000)),
}


@pytest.mark.parametrize("name", REFUSED)
async def test_refused_heads(name: str) -> None:
    """Each is told why in OpenAI's shape and closed, whole or byte by byte; nothing after it is looked at."""
    status, request = REFUSED[name]
    smuggled = get("/smuggled", CLOSE)
    async with served(max_headers=32, max_head_bytes=4096) as (port, app, front):
        for pieces in ([request + smuggled], [bytes([byte]) for byte in request + smuggled]):
            received = await answer_to(port, *pieces)
            assert statuses(received) == [status], received
            head, _, body = received.partition(b"\r\n\r\n")
            assert b"connection: close" in head
            assert head.count(b"\r\ndate: ") == 1
            error = json.loads(body)["error"]
            assert error.keys() == {"message", "type", "param", "code"}
            assert app.events == []
        assert sum(front.refused.values()) == 2
        await until(lambda: front.num_open == 0)


BAD_CHUNKS = {
    "a negative size": b"-5\r\nhello\r\n0\r\n\r\n",
    "a prefixed size": b"0x5\r\nhello\r\n0\r\n\r\n",
    "an overflowing size": b"FFFFFFFFFFFFFFFFF\r\nhello\r\n0\r\n\r\n",
    "a size that is too small": b"3\r\nhello\r\n0\r\n\r\n",
    "no size": b"\r\nhello\r\n0\r\n\r\n",
    "line feeds alone": b"5\nhello\n0\n\n",
    "a line feed in an extension": b"5;a\nb\r\nhello\r\n0\r\n\r\n",
    "a length as a trailer": b"5\r\nhello\r\n0\r\nContent-Length: 3\r\n\r\n",
    "an endless extension": b"5;" + b"x" * 200_000,
    "endless trailers": b"5\r\nhello\r\n0\r\n" + b"X: 1\r\n" * 40_000,
}


@pytest.mark.parametrize("name", BAD_CHUNKS)
async def test_malformed_chunks(name: str) -> None:
    """The application learns of it in place of a body, answers 400, and the connection ends with that."""
    async with served() as (port, app, _):
        received = await answer_to(port, CHUNKED, BAD_CHUNKS[name], get("/smuggled"))
        assert statuses(received) == [400], received
        assert b"connection: close" in received
        assert b"malformed_body" in received
        assert app.events == ["POST /echo"]


async def test_chunked_uploads() -> None:
    """Extensions and trailers are dropped; a body in the smallest chunks isn't taken for an attack."""
    async with served() as (port, app, _):
        chunks = b"5;a=b\r\nhello\r\n6;c\r\n world\r\n0\r\nX-Trailer: 1\r\nAuthorization: Bearer t\r\n\r\n"
        tiny = b"1\r\nx\r\n" * 100_000 + b"0\r\n\r\n"
        async with RawSocket(port) as sock:
            sock.send(CHUNKED + chunks)
            await sock.read_until(b"/echo|hello world")
            await sock.send_all(CHUNKED)
            await sock.send_all(tiny)
            await sock.read_until(b"x" * 1000)
        assert app.bodies == [b"hello world", b"x" * 100_000]
        assert app.headers[0] == [(b"host", b"a"), (b"transfer-encoding", b"chunked")]


async def test_every_way_to_cut_a_request_is_the_same() -> None:
    """A series of requests on one connection, cut anywhere, gives the same answers."""
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    series = (
        get("/a%20b?x=1")
        + POST
        + b"Content-Length: 11\r\n\r\nhello world\r\n"
        + CHUNKED
        + b"5\r\nhello\r\n0\r\nX-T: 1\r\n\r\n"
        + b"HEAD /stream HTTP/1.1\r\n"
        + HOST
        + b"\r\n"
        + get("http://elsewhere/absolute?q")
        + get("/stream", CLOSE)
    )
    wanted: bytes | None = None
    async with served() as (port, app, front):
        for _ in range(30):
            cuts = sorted(rng.sample(range(1, len(series)), rng.randint(0, 12)))
            pieces = [series[start:end] for start, end in zip([0, *cuts], [*cuts, len(series)], strict=True)]
            received = re.sub(rb"date: [^\r]*", b"", await answer_to(port, *pieces))
            wanted = wanted or received
            assert received == wanted
        assert len(statuses(wanted or b"")) == 6
        assert app.events[:5] == ["GET /a b", "POST /echo", "POST /echo", "HEAD /stream", "GET /absolute"]
        await until(lambda: front.num_open == 0)


async def test_answers_to_http_1_0_have_no_chunks() -> None:
    """A length where it is known, else the connection's end; never kept alive. No Host is needed."""
    async with served() as (port, _, _):
        for path, has_length in (("/x", True), ("/stream", False)):
            request = b"GET %b HTTP/1.0\r\nConnection: keep-alive\r\n\r\n" % path.encode()
            head, _, body = (await answer_to(port, request)).partition(b"\r\n\r\n")
            assert b"transfer-encoding" not in head
            assert (b"content-length" in head) is has_length
            assert b"connection: close" in head
            assert body == path.encode() + b"|"


async def test_a_broken_answer_can_be_told_from_a_whole_one(caplog: pytest.LogCaptureFixture) -> None:
    """Chunks without an end; for HTTP/1.0, where the end of the connection is the answer's, a reset. Nothing is logged:
    whoever broke it off has told why."""
    async with served() as (port, _, _):
        async with RawSocket(port) as sock:
            sock.send(get("/break"))
            assert (await sock.read_to_end()).endswith(b"4\r\nhalf\r\n")
            assert not sock.was_reset
        async with RawSocket(port) as sock:
            sock.send(b"GET /break HTTP/1.0\r\n\r\n")
            await sock.read_to_end()
            assert sock.was_reset
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []


async def test_head_gets_the_head() -> None:
    """With the length that a GET would have, and the connection goes on."""
    async with served() as (port, app, _), RawSocket(port) as sock:
        sock.send(b"HEAD /x HTTP/1.1\r\n" + HOST + b"\r\n")
        await sock.read_until(b"\r\n\r\n")
        sock.send(get("/y", CLOSE))
        received = await sock.read_to_end()
        assert statuses(received) == [200, 200]
        assert b"content-length: 3" in received
        assert received.count(b"|") == 1
        assert app.events == ["HEAD /x", "GET /y"]


async def test_expecting_to_be_told_to_continue() -> None:
    """100 comes when the body is wanted, and never when the answer doesn't need it."""
    expecting = b"Expect: 100-Continue\r\nContent-Length: 5\r\n"
    async with served() as (port, _, _):
        async with RawSocket(port) as sock:
            sock.send(POST + expecting + CLOSE + b"\r\n")
            await sock.read_until(b"100 Continue\r\n\r\n")
            sock.send(b"hello")
            assert statuses(await sock.read_to_end()) == [100, 200]
        assert statuses(await answer_to(port, b"POST /early HTTP/1.1\r\n" + HOST + expecting + b"\r\n")) == [200]


async def test_an_answer_before_the_body_is_read_by_a_client_that_still_sends() -> None:
    """The connection closes, but only after the client could read why."""
    async with served() as (port, _, _), RawSocket(port) as sock:
        sock.send(b"POST /early HTTP/1.1\r\n" + HOST + b"Content-Length: 100000000\r\n\r\n")
        for _ in range(40):
            await sock.send_all(b"x" * 65536)
        received = await sock.read_to_end()
        assert b"connection: close" in received
        assert received.endswith(b"early")
        assert not sock.was_reset


async def test_a_wish_to_upgrade_is_passed_over() -> None:
    """Java's client asks for h2c and sends a body; it is served as if it hadn't asked. So is a web socket."""
    java = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAE\r\n"
    async with served() as (port, app, _):
        request = POST + java + b"X-A: 1\r\nContent-Length: 5\r\n\r\nhello"
        for cut in (len(request), len(request) - 5, len(request) - 2):
            async with RawSocket(port) as sock:
                await sock.send_all(request[:cut])
                await sock.send_all(request[cut:] + get("/next", CLOSE))
                received = await sock.read_to_end()
                assert statuses(received) == [200, 200]
                assert b"/echo|hello" in received
        assert app.headers[0] == [(b"host", b"a"), (b"x-a", b"1"), (b"content-length", b"5")]
        assert statuses(await answer_to(port, get("/ws", b"Connection: upgrade, close\r\nUpgrade: websocket\r\n"))) == [
            200
        ]


async def test_a_client_that_leaves_while_more_of_its_requests_wait() -> None:
    """The one that is served learns of it; those that wait never begin."""
    for leaves in (RawSocket.close, RawSocket.reset):
        async with served() as (port, app, front), RawSocket(port) as sock:
            sock.send(get("/wait") + POST + b"Content-Length: 200000\r\n\r\n" + b"x" * 100_000)
            await until(lambda: app.events == ["GET /wait"])
            leaves(sock)
            await until(lambda: app.events == ["GET /wait", "left /wait"])
            await until(lambda: front.num_open == 0)
            assert app.events == ["GET /wait", "left /wait"]


async def test_pipelined_requests_are_answered_in_order() -> None:
    """One at a time, bodies included, whatever came how early."""
    async with served() as (port, app, _), RawSocket(port) as sock:
        sock.send(get("/wait/1") + POST + b"Content-Length: 11\r\n\r\nhello")
        await until(lambda: app.events == ["GET /wait/1"])
        await sock.send_all(b" world" + get("/wait/2"))
        await sock.send_all(get("/3", CLOSE) + get("/never"))
        app.gate.set()
        received = await sock.read_to_end()
        assert [part.split(b"\r\n")[0] for part in received.split(b"\r\n\r\n")[1:]] == [
            b"/wait/1|HTTP/1.1 200 OK",
            b"/echo|hello worldHTTP/1.1 200 OK",
            b"/wait/2|HTTP/1.1 200 OK",
            b"/3|",
        ]
        assert app.events == ["GET /wait/1", "POST /echo", "GET /wait/2", "GET /3"]


LARGE = POST + b"Content-Length: 300000\r\n\r\n" + b"y" * 300_000


@pytest.mark.parametrize(
    ("ahead", "answers"),
    [
        (get("/x") * 100, [200] * (1 + protocol.MAX_AHEAD_REQUESTS) + [429]),
        (LARGE, [200, 429]),
        (get("/x") + LARGE, [200, 200, 429]),
    ],
)
async def test_what_is_sent_ahead_is_bounded(ahead: bytes, answers: list[int]) -> None:
    """Too many requests, too many bytes: what is complete is answered, then the client is told, and it ends."""
    async with served() as (port, app, front), RawSocket(port) as sock:
        await sock.send_all(get("/wait"))
        await until(lambda: bool(app.events))
        await sock.send_all(ahead)
        await until(lambda: front.refused["too-much-ahead"] == 1)
        app.gate.set()
        received = await sock.read_to_end()
        assert statuses(received) == answers
        assert b"retry-after: 1" in received


async def test_a_malformed_request_behind_a_good_one() -> None:
    """The good one is answered in peace, the other refused after it."""
    async with served() as (port, app, _), RawSocket(port) as sock:
        sock.send(get("/wait") + b"rubbish\r\n\r\n")
        await until(lambda: bool(app.events))
        assert sock.received == b""
        app.gate.set()
        assert statuses(await sock.read_to_end()) == [200, 400]


async def test_slow_heads() -> None:
    """408 when a head takes too long, whichever request's it is; a connection that says nothing is just closed."""
    slow = b"GET /x HTTP/1.1\r\nHost: a\r\nX-Slow: "
    async with served(head_s=0.2) as (port, app, front):
        assert statuses(await answer_to(port, slow)) == [408]
        assert await answer_to(port) == b""
        assert statuses(await answer_to(port, get("/first"), slow)) == [200, 408]
        async with RawSocket(port) as sock:  # byte by byte is no excuse
            ended = asyncio.ensure_future(sock.read_to_end())
            while not ended.done():
                await sock.send_all(b"x" if sock.received else slow[:1])
                slow = slow[1:] or b"x"
                await asyncio.sleep(0.01)
            assert statuses(await ended) == [408]
        assert app.events == ["GET /first"]
        assert front.refused["head-timeout"] == 3


async def test_an_endless_head() -> None:
    """Refused once it is too large, and no more of it is kept, in one header or in many."""
    for endless in (b"x" * 65536, b"x: 1\r\nx" * 8192):
        async with served(head_s=5.0) as (port, app, front), RawSocket(port) as sock:
            await sock.send_all(b"GET /x HTTP/1.1\r\nHost: a\r\nX: ")
            num_sent = 0
            while front.num_open and not sock.was_reset and num_sent < 2000:
                await sock.send_all(endless)
                num_sent += 1
                await asyncio.sleep(0)
            assert front.refused["head-too-large"] == 1
            assert app.events == []


async def test_many_half_open_heads() -> None:
    """They hold up nobody, and each is over after its time."""
    async with served(head_s=0.5) as (port, app, front):
        socks = [RawSocket(port) for _ in range(200)]
        for sock in socks:
            await sock.__aenter__()
            sock.send(b"GET /slow HTTP/1.1\r\nHost: a\r\nX-Slow: ")
        assert statuses(await answer_to(port, get("/x", CLOSE))) == [200]
        for sock in socks:
            assert statuses(await sock.read_to_end()) == [408]
            sock.close()
        await until(lambda: front.num_open == 0)
        assert front.refused["head-timeout"] == 200
        assert app.events == ["GET /x"]


async def test_idle_connections_are_closed() -> None:
    """After their time, blank lines or not; a request in time is served."""
    async with served(keep_alive_s=0.2) as (port, _, _), RawSocket(port) as sock:
        sock.send(get("/x") + b"\r\n")
        await sock.read_until(b"/x|")
        sock.send(b"\r\n\r\n" + get("/y"))
        await sock.read_until(b"/y|")
        assert statuses(await sock.read_to_end()) == [200, 200]


async def test_idle_connections_make_room() -> None:
    """The one that has been idle for longest goes; when none is idle, the new one is told to come back."""
    async with served(max_connections=2) as (port, app, front), RawSocket(port) as first, RawSocket(port) as second:
        for sock in (first, second):
            sock.send(get("/x"))
            await sock.read_until(b"/x|")
        async with RawSocket(port) as third:
            third.send(get("/wait"))
            await first.read_to_end()
            second.send(get("/wait"))
            await until(lambda: app.events.count("GET /wait") == 2)
            received = await answer_to(port)
            assert statuses(received) == [503]
            assert b"retry-after: 1" in received
            app.gate.set()
            for sock in (second, third):
                await sock.read_until(b"/wait|")
        assert front.refused["too-many-connections"] == 1
    assert front.num_open == 0


async def test_a_client_that_takes_nothing() -> None:
    """Memory stays bounded, and after its time it is treated as one that left."""
    async with served(send_s=0.3) as (port, app, front), RawSocket(port) as sock:
        sock.send(get("/flood"))
        await sock.read_until(b"xxx")
        await until(lambda: "left /flood" in app.events)
        await until(lambda: front.num_open == 0)


async def test_dates_are_given_once() -> None:
    """Ours where the answer has none; a repeated one is dropped."""

    async def app(scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            return await App()(scope, receive, send)
        dates = [(b"date", b"then"), (b"server", b"s"), (b"server", b"t")] * (2 if scope["path"] == "/dated" else 0)
        headers = [*dates, (b"content-length", b"0"), (b"transfer-encoding", b"chunked")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        return await send({"type": "http.response.body"})

    async with serving(app) as port:
        received = await answer_to(port, get("/dated", CLOSE))
        assert re.findall(rb"(?:date|server): ([^\r]*)", received) == [b"then", b"s"]
        assert b"transfer-encoding" not in received
        (date,) = re.findall(rb"date: ([^\r]*)", await answer_to(port, get("/undated", CLOSE)))
        assert date.endswith(b"GMT")


@pytest.mark.parametrize(
    "wrong",
    [
        [(b"x", b"a\r\nb: 1")],
        [(b"content-length", b"3")],
        [(b"content-length", b"9")],
        "raises",
    ],
)
async def test_an_application_at_fault(wrong: Any, caplog: pytest.LogCaptureFixture) -> None:
    """What can't be sent is never sent: 500 before the head, a cut after it, and the log tells why."""

    async def app(scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            return await App()(scope, receive, send)
        if wrong == "raises":
            raise ValueError("CANARY")
        await send({"type": "http.response.start", "status": 200, "headers": wrong})
        return await send({"type": "http.response.body", "body": b"hello"})

    async with serving(app) as port:
        received = await answer_to(port, get("/"))
        assert b"CANARY" not in received
        assert b"hello" not in received
        if wrong == "raises" or wrong[0][0] == b"x":
            assert statuses(received) == [500]
            assert b'"internal_error"' in received
    assert [record.getMessage() for record in caplog.records] == ["the application failed"]


@pytest.mark.parametrize("breaks", [False, True])
async def test_a_head_may_wait_for_its_body(breaks: bool) -> None:
    """It goes out with the first piece, or before the end of an answer that breaks off; never later, never twice."""

    async def app(scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            return await App()(scope, receive, send)
        headers = [(b"content-length", b"4")]
        await send({"type": "http.response.start", "status": 200, "headers": headers, FOLLOWS: True})
        assert not scope["extensions"][DIRECT].write(b"ab"), "the head is to go first"
        if breaks:
            raise ResponseBroken("on purpose")
        return await send({"type": "http.response.body", "body": b"body"})

    async with serving(app) as port:
        received = await answer_to(port, get("/", CLOSE))
    assert statuses(received) == [200]
    assert received.endswith(b"\r\n\r\n" if breaks else b"\r\n\r\nbody")


@pytest.mark.parametrize("length", [None, 6])
async def test_pieces_are_written_without_waiting(length: int | None) -> None:
    """Between the head and the end of an answer only; in the framing that the head says."""
    told: list[bool] = []

    async def app(scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            return await App()(scope, receive, send)
        write = scope["extensions"][DIRECT].write
        told.append(write(b"early"))
        headers = [] if length is None else [(b"content-length", b"%d" % length)]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        told.append(write(b"one"))
        await send({"type": "http.response.body", "body": b"two"})
        told.append(write(b"late"))
        return None

    async with serving(app) as port:
        received = await answer_to(port, get("/", CLOSE))
    assert told == [False, True, False]
    body = received.partition(b"\r\n\r\n")[2]
    assert body == (b"3\r\none\r\n3\r\ntwo\r\n0\r\n\r\n" if length is None else b"onetwo")


async def test_rubbish_never_gets_through() -> None:
    """Valid requests with random bytes changed: an answer for each, or an end; never a fault of the server."""
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    whole = CHUNKED + b"5\r\nhello\r\n0\r\n\r\n" + POST + b"Content-Length: 5\r\n\r\nhello" + get("/x", CLOSE)
    async with served(head_s=0.3) as (port, _, front):

        async def one(data: bytes) -> list[int]:
            async with RawSocket(port) as sock:
                await sock.send_all(data)
                sock._writer.write_eof()
                return statuses(await sock.read_to_end())

        for _ in range(20):
            mutants = []
            for _ in range(20):
                data = bytearray(whole)
                for _ in range(rng.randint(1, 4)):
                    data[rng.randrange(len(data))] = (
                        rng.choice(b"\0\r\n :,;xX0\xff") if rng.random() < 0.7 else rng.randrange(256)
                    )
                mutants.append(bytes(data))
            for answers in await asyncio.gather(*map(one, mutants)):
                assert set(answers) <= {200, 400, 405, 408, 414, 417, 431, 501, 505}
        await until(lambda: front.num_open == 0)


def test_the_versions_it_is_written_against() -> None:
    """It leans on what uvicorn and httptools do inside: a new version is a new look at this file."""
    assert version("uvicorn").startswith("0.54.")
    assert version("httptools").startswith("0.9.")
