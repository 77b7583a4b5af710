"""What replicas answer in unusual HTTP, and what becomes of it on the way to the client."""

import asyncio
import json
from typing import NamedTuple

import pytest

from tests.support.fake_replica import Behaviour, Call, FakeReplica, answers
from tests.support.gateways import BODY, CHAT, assert_nothing_held, gateway_for
from tests.support.serve import RawClient, ask, serving

JSON = b"content-type: application/json\r\n"


class Passed(NamedTuple):
    """An answer that reaches the client, framed once, whatever its form was."""

    raw: bytes
    status: int = 200
    body: bytes = b"{}"
    has_end: bool = True
    """Whether the replica keeps the connection open after it."""


def sends(raw: bytes, *, closes: bool = False) -> Behaviour:
    """These bytes, and nothing else."""

    async def behave(call: Call) -> None:
        await call.send(raw)
        if closes:
            call.close()

    return behave


PASSED = {
    "no reason": Passed(b"HTTP/1.1 200\r\n" + JSON + b"content-length: 2\r\n\r\n{}"),
    "empty reason": Passed(b"HTTP/1.1 200 \r\n" + JSON + b"content-length: 2\r\n\r\n{}"),
    "early hints, continue": Passed(
        b"HTTP/1.1 103 Early Hints\r\nlink: </x>\r\n\r\nHTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\n"
        + JSON
        + b"content-length: 2\r\n\r\n{}"
    ),
    "HTTP/1.0 without a length": Passed(b"HTTP/1.0 200 OK\r\n" + JSON + b"\r\n{}", has_end=False),
    "HTTP/1.0 with one": Passed(b"HTTP/1.0 200 OK\r\n" + JSON + b"content-length: 2\r\n\r\n{}", has_end=False),
    "extensions and trailers": Passed(
        b"HTTP/1.1 200 OK\r\n"
        + JSON
        + b'Transfer-Encoding: Chunked\r\ntrailer: x-t\r\n\r\n1;a="b;c"\r\n{\r\n1\r\n}\r\n0\r\nx-t: 1\r\n\r\n'
    ),
    "connection: close": Passed(b"HTTP/1.1 200 OK\r\n" + JSON + b"Connection: close\r\ncontent-length: 2\r\n\r\n{}"),
    "upper case": Passed(b"HTTP/1.1 200 OK\r\nCONTENT-TYPE: application/json\r\nCONTENT-LENGTH: 2\r\n\r\n{}"),
    "empty": Passed(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n", body=b""),
    "no content": Passed(b"HTTP/1.1 204 No Content\r\n\r\n", status=204, body=b""),
    "no content, and so much of it": Passed(
        b"HTTP/1.1 204 No Content\r\ncontent-length: 0\r\n\r\n", status=204, body=b""
    ),
    "not modified": Passed(b'HTTP/1.1 304 Not Modified\r\netag: "x"\r\n\r\n', status=304, body=b""),
    "a status of its own": Passed(b"HTTP/1.1 529 Overloaded\r\ncontent-length: 2\r\n\r\n{}", status=529),
    "a redirect": Passed(b"HTTP/1.1 307 X\r\nlocation: http://127.0.0.1:1/\r\ncontent-length: 0\r\n\r\n", 307, b""),
}


@pytest.mark.parametrize("name", PASSED)
async def test_unusual_answers_pass(name: str) -> None:
    """Framed for the client anew, exactly once, and the connection's own headers stay behind. Redirects are for it."""
    raw, status, body, has_end = PASSED[name]
    async with (
        FakeReplica(sends(raw, closes=not has_end)) as replica,
        gateway_for(replica) as gateway,
        serving(gateway) as port,
    ):
        for _ in range(2):
            reply = await ask(port, CHAT, BODY)
            assert (reply.status, reply.body, reply.is_complete) == (status, body, True)
            framing = [*reply.header(b"content-length"), *reply.header(b"transfer-encoding")]
            assert len(framing) == (status not in (204, 304))
            assert not reply.header(b"trailer")
        assert len(replica.received) == 2
        assert_nothing_held(gateway)


REFUSED = {
    "another protocol": b"SSH-2.0-OpenSSH_9\r\n",
    "two lengths": b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\ncontent-length: 3\r\n\r\n{}x",
    "a length and chunks": b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
    "a negative length": b"HTTP/1.1 200 OK\r\ncontent-length: -2\r\n\r\n{}",
    "no such status": b"HTTP/1.1 999 X\r\ncontent-length: 0\r\n\r\n",
    "an upgrade": b"HTTP/1.1 101 Switching Protocols\r\nupgrade: h2c\r\nconnection: upgrade\r\n\r\n",
    "endless headers": b"HTTP/1.1 200 OK\r\nx: " + b"h" * (1 << 17) + b"\r\ncontent-length: 2\r\n\r\n{}",
    "a header without a colon": b"HTTP/1.1 200 OK\r\nnonsense\r\ncontent-length: 2\r\n\r\n{}",
    "a null in a header": b"HTTP/1.1 200 OK\r\nx: a\0b\r\ncontent-length: 2\r\n\r\n{}",
    "nothing": b"",
    "half a head": b"HTTP/1.1 200 OK\r\ncontent-",
}


@pytest.mark.parametrize("name", REFUSED)
async def test_what_is_no_answer_is_a_bad_gateway(name: str) -> None:
    """Nothing of it reaches the client, the connection isn't used again, and the next request is served."""
    async with (
        FakeReplica(sends(REFUSED[name], closes=True)) as replica,
        gateway_for(replica) as gateway,
        serving(gateway) as port,
    ):
        reply = await ask(port, CHAT, BODY)
        error = json.loads(reply.body)["error"]
        assert reply.status == 502
        assert error["code"] in ("upstream_protocol_error", "upstream_closed")
        assert error["type"] == "upstream_error"
        assert "127.0.0.1" not in error["message"]
        replica.behaviour = answers()
        assert (await ask(port, CHAT, BODY)).status == 200
        assert_nothing_held(gateway)


CUT = {
    "short of its length": b"HTTP/1.1 200 OK\r\n" + JSON + b'content-length: 100\r\n\r\n{"id"',
    "before the last chunk": b"HTTP/1.1 200 OK\r\n" + JSON + b'transfer-encoding: chunked\r\n\r\n5\r\n{"id"\r\n',
    "in a chunk's size": b"HTTP/1.1 200 OK\r\n" + JSON + b'transfer-encoding: chunked\r\n\r\n5\r\n{"id"\r\nZZ\r\n',
    "in the trailers": b"HTTP/1.1 200 OK\r\n" + JSON + b'transfer-encoding: chunked\r\n\r\n5\r\n{"id"\r\n0\r\nx: 1\r\n',
}


@pytest.mark.parametrize("name", CUT)
async def test_a_cut_answer_never_looks_whole(name: str) -> None:
    """What came is passed on, the end isn't made up, and no second replica is asked for another half."""
    async with (
        FakeReplica(sends(CUT[name], closes=True)) as replica,
        FakeReplica(sends(CUT[name], closes=True)) as other,
        gateway_for(replica, other) as gateway,
        serving(gateway) as port,
    ):
        reply = await ask(port, CHAT, BODY)
        assert not (reply.is_complete and reply.status == 200)
        assert len(replica.received) + len(other.received) == 1
        assert_nothing_held(gateway)


@pytest.mark.parametrize("value", ["7", "Wed, 21 Oct 2026 07:28:00 GMT"])
@pytest.mark.parametrize("status", [429, 503])
async def test_a_busy_replica_without_another_is_quoted(status: int, value: str) -> None:
    """Its status, its words and both forms of its Retry-After."""

    async def busy(call: Call) -> None:
        await call.whole(b'{"error":"full"}', status=status, headers=[("retry-after", value)])

    async with FakeReplica(busy) as replica, gateway_for(replica) as gateway, serving(gateway) as port:
        reply = await ask(port, CHAT, BODY)
        assert (reply.status, reply.body) == (status, b'{"error":"full"}')
        assert reply.header(b"retry-after") == [value.encode()]


async def test_headers_that_may_repeat_do_and_others_do_not() -> None:
    """Cookies one by one; one Date, one Content-Type; what Connection names, in any case, goes no further."""

    async def behave(call: Call) -> None:
        repeated = [("Set-Cookie", "a=1"), ("set-cookie", "b=2"), ("Date", "x"), ("date", "y"), ("Server", "s")]
        scoped = [("Connection", "Keep-Alive, X-HOP"), ("connection", "x-other"), ("X-Hop", "1"), ("x-OTHER", "1")]
        await call.whole(b"{}", headers=[*repeated, *scoped, ("Keep-Alive", "timeout=5"), ("x-kept", "1")])

    async with FakeReplica(behave) as replica, gateway_for(replica) as gateway, serving(gateway) as port:
        reply = await ask(port, CHAT, BODY)
        assert reply.header(b"set-cookie") == [b"a=1", b"b=2"]
        assert [len(reply.header(name)) for name in (b"date", b"server", b"content-type", b"x-kept")] == [1] * 4
        assert not any(reply.header(name) for name in (b"x-hop", b"x-other", b"keep-alive"))


async def test_a_status_that_comes_while_the_request_is_sent_ends_the_sending() -> None:
    """A replica may refuse before it has read everything: its words arrive, and its connection isn't used again."""
    body = b'{"model":"m1","messages":[{"role":"user","content":"%b"}]}' % (b"a" * (6 << 20))
    answered = asyncio.Event()

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        if head.startswith(b"POST"):
            writer.write(b"HTTP/1.1 413 X\r\ncontent-length: 3\r\n\r\nbig")
            answered.set()
            await reader.read(1)
        else:
            page = b'{"data":[{"id":"m1"}]}' if b"/v1/models" in head else b"{}"
            writer.write(b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: %d\r\n\r\n%b" % (len(page), page))
        writer.close()

    server = await asyncio.start_server(connected, "127.0.0.1", 0)
    replica = FakeReplica(answers())
    replica.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    async with server, gateway_for(replica) as gateway, serving(gateway) as port:
        reply: RawClient = await ask(port, CHAT, body)
        assert answered.is_set()
        assert (reply.status, reply.body) == (413, b"big")
        assert_nothing_held(gateway)
        assert gateway.upstreams.num_open == 0
