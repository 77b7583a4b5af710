"""Replicas that fail: what is tried again, what is told, and that a part is never passed off as the whole."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from gateway.connection import Connection
from gateway.upstream import Exchange, Upstream
from gateway.upstream_errors import ConnectFailed, UpstreamClosed, UpstreamGarbled, UpstreamTimeout
from tests.support.asgi import HandDriven
from tests.support.fake_replica import DONE, Call, FakeReplica, answers, delta, hangs, streams
from tests.support.gateways import BODY, CHAT, STREAM_BODY, assert_nothing_held, gateway_for
from tests.support.serve import RawClient, ask, free_port, post, serving, until

REQUEST = b"POST /x HTTP/1.1\r\nhost: r\r\ncontent-length: 0\r\n\r\n"


def _upstream(replica: FakeReplica, *, gap_s: float = 10.0) -> Upstream:
    return Upstream(replica.url, connect_s=5.0, first_byte_s=10.0, gap_s=gap_s)


async def _body(exchange: Exchange) -> bytes:
    pieces = []
    while piece := await exchange.read():
        pieces.append(piece)
    return b"".join(pieces)


async def _reset(call: Call) -> None:
    call.reset()


async def _close(call: Call) -> None:
    call.close()


async def _garbage(call: Call) -> None:
    await call.send(b"SSH-2.0-OpenSSH\r\n\r\n")


@pytest.mark.parametrize("fault", [_reset, _close, _garbage])
async def test_a_failure_before_the_head_goes_to_another_replica(fault: Callable[[Call], Awaitable[None]]) -> None:
    """The client sees the second replica's answer; the time of the first is `retry`, and attempts are told."""
    async with FakeReplica(fault) as bad, FakeReplica(fault) as other, gateway_for(bad, other) as gateway:

        async def first_fails(call: Call) -> None:
            bad.behaviour = other.behaviour = answers(b'{"ok":1}')
            await fault(call)

        bad.behaviour = other.behaviour = first_fails
        request = HandDriven(gateway, CHAT).start(BODY)
        await request.ended()
        assert (request.status, request.body) == (200, b'{"ok":1}')
        assert (b"x-tailgate-attempt", b"2") in request.headers
        assert [len(bad.received), len(other.received)] == [1, 1]
        record = next(iter(gateway.ring._records.values()))
        assert record.layers["retry"] > 0  # type: ignore[index]
        assert sum(record.layers.values()) == pytest.approx(record.total_s)
        assert_nothing_held(gateway)


@pytest.mark.parametrize(
    ("fault", "code"), [(_reset, "upstream_closed"), (_close, "upstream_closed"), (_garbage, "upstream_protocol_error")]
)
async def test_without_another_replica_the_failure_is_told(fault: Callable[[Call], Awaitable[None]], code: str) -> None:
    """502 in OpenAI's shape, once, with the reason in a header."""
    async with FakeReplica(fault) as replica, gateway_for(replica) as gateway:
        request = HandDriven(gateway, CHAT).start(STREAM_BODY)
        await request.ended()
        assert request.status == 502
        assert json.loads(request.body)["error"]["code"] == code
        assert any(name == b"x-tailgate-reason" for name, _ in request.headers)
        assert len(replica.received) == 1
        assert_nothing_held(gateway)


async def test_attempts_are_bounded() -> None:
    """With more failing replicas than attempts, the client waits for `max_attempts` of them only."""
    async with (
        FakeReplica(_reset) as a,
        FakeReplica(_reset) as b,
        FakeReplica(_reset) as c,
        gateway_for(a, b, c) as gateway,
    ):
        request = HandDriven(gateway, CHAT).start(BODY)
        await request.ended()
        assert request.status == 502
        assert len(a.received) + len(b.received) + len(c.received) == 2
        assert_nothing_held(gateway)


async def test_a_replica_that_refuses_connections_is_replaced() -> None:
    """One that went away after its probe costs a retry, not the request."""
    async with (
        FakeReplica(answers(b"{}")) as gone,
        FakeReplica(answers(b"{}")) as other,
        gateway_for(gone, other) as gateway,
    ):
        gateway.upstreams.of("r1", gone.url).port = free_port()
        for _ in range(3):
            request = HandDriven(gateway, CHAT).start(BODY)
            await request.ended()
            assert request.status == 200
        assert gone.received == []
        assert_nothing_held(gateway)


@pytest.mark.parametrize("status", [429, 503])
async def test_a_busy_replica_sends_the_request_elsewhere(status: int) -> None:
    """429 and 503 are tried on another replica, and passed on unchanged when that one is busy too."""

    async def busy(call: Call) -> None:
        await call.whole(b'{"busy":1}', status=status, headers=[("x-from", "replica")])

    async with FakeReplica(busy) as first, FakeReplica(busy) as second, gateway_for(first, second) as gateway:
        request = HandDriven(gateway, CHAT).start(BODY)
        await request.ended()
        assert (request.status, request.body) == (status, b'{"busy":1}')
        assert (b"x-from", b"replica") in request.headers
        assert [len(first.received), len(second.received)] == [1, 1]
        second.behaviour = first.behaviour = answers(b"{}")
        request = HandDriven(gateway, CHAT).start(BODY)
        await request.ended()
        assert request.status == 200
        assert_nothing_held(gateway)


async def test_a_silent_replica_times_out() -> None:
    """504 after the first-byte timeout, the connection closed."""
    timeouts: dict[str, Any] = {"timeouts": {"first_byte_s": 0.05}}
    async with FakeReplica(hangs()) as replica, gateway_for(replica, **timeouts) as gateway:
        request = HandDriven(gateway, CHAT).start(BODY)
        await request.ended()
        assert request.status == 504
        await until(lambda: replica.num_aborted == 1)
        assert_nothing_held(gateway)


def error_behind(body: bytes, start: bytes) -> object:
    """The code of the error event that ends a broken stream, and is all that stands behind its start."""
    assert body.startswith(start)
    event = body.removeprefix(start)
    assert event.startswith(b"data: ")
    assert event.endswith(b"\n\n")
    return json.loads(event[6:])["error"]["code"]


async def test_a_gap_breaks_a_stream_and_a_long_stream_does_not() -> None:
    """The silence between two pieces is bounded, not the whole answer."""
    timeouts: dict[str, Any] = {"timeouts": {"idle_s": 0.15}}

    async def steady(call: Call) -> None:
        await call.head(headers=[("content-type", "text/event-stream")])
        for _ in range(12):
            await asyncio.sleep(0.03)
            await call.chunk(delta("a"))
        await call.chunk(DONE)
        await call.end()

    async with FakeReplica(steady) as replica, gateway_for(replica, **timeouts) as gateway, serving(gateway) as port:
        reply = await ask(port, CHAT, STREAM_BODY)
        assert reply.is_complete
        replica.behaviour = hangs(delta("a"))
        reply = await ask(port, CHAT, STREAM_BODY)
        assert (reply.status, reply.is_complete) == (200, False)
        assert error_behind(reply.body, delta("a")) == "upstream_timeout"
        await until(lambda: replica.num_aborted == 1)
        assert_nothing_held(gateway)


@pytest.mark.parametrize("fault", [Call.reset, Call.close])
async def test_a_stream_that_breaks_off_is_visibly_broken(fault: Callable[[Call], None]) -> None:
    """What came is passed on, then an error event and the end of the connection; nothing is sent twice."""

    async def behave(call: Call) -> None:
        await call.head(headers=[("content-type", "text/event-stream")])
        await call.chunk(delta("a"))
        await until(lambda: client.body == delta("a"))
        fault(call)

    async with (
        FakeReplica(behave) as replica,
        FakeReplica(behave) as other,
        gateway_for(replica, other) as gateway,
        serving(gateway) as port,
    ):
        client = RawClient(port, post(CHAT, STREAM_BODY))
        async with client:
            await client.read_all()
        assert (client.status, client.is_complete) == (200, False)
        assert error_behind(client.body, delta("a")) == "upstream_closed"
        assert len(replica.received) + len(other.received) == 1
        record = next(iter(gateway.ring._records.values()))
        assert (record.outcome, record.reason) == ("failed", "upstream-closed")
        assert_nothing_held(gateway)


async def test_a_whole_answer_that_breaks_off_is_visibly_broken() -> None:
    """Fewer bytes than announced never look like a complete answer."""

    async def behave(call: Call) -> None:
        await call.head(headers=[("content-type", "application/json")], length=100)
        await call.send(b'{"half":')
        call.close()

    async with FakeReplica(behave) as replica, gateway_for(replica) as gateway, serving(gateway) as port:
        reply = await ask(port, CHAT, BODY)
        assert not reply.is_complete
        assert_nothing_held(gateway)


async def test_a_stale_connection_is_replaced_invisibly() -> None:
    """A kept connection that dies under the next request costs a fresh one, and no attempt."""

    async def behave(call: Call) -> None:
        if call.received.connection == connections[0] and len(replica.received) > 1:
            call.close()
            return
        await call.whole(b"{}")

    connections: list[int] = []
    async with FakeReplica(answers()) as replica, gateway_for(replica) as gateway:
        first = HandDriven(gateway, CHAT).start(BODY)
        await first.ended()
        connections.append(replica.received[0].connection)
        replica.behaviour = behave
        second = HandDriven(gateway, CHAT).start(BODY)
        await second.ended()
        assert (second.status, second.body) == (200, b"{}")
        assert (b"x-tailgate-attempt", b"1") in second.headers
        assert [received.connection == connections[0] for received in replica.received] == [True, True, False]
        assert_nothing_held(gateway)


async def test_a_fresh_connection_that_dies_is_not_replaced() -> None:
    """Only a kept connection is suspected of being stale."""
    async with FakeReplica(_close) as replica:
        exchange = _upstream(replica).exchange(REQUEST, b"")
        await exchange.send()
        with pytest.raises(UpstreamClosed):
            await exchange.head()
        exchange.close()
        assert len(replica.received) == 1


async def test_an_idle_connection_that_the_replica_closes_leaves_the_pool() -> None:
    """It is gone when the loss is seen, before anybody takes it."""

    async def behave(call: Call) -> None:
        await call.whole(b"{}")
        call.close()

    async with FakeReplica(behave) as replica:
        upstream = _upstream(replica)
        exchange = upstream.exchange(REQUEST, b"")
        await exchange.send()
        await exchange.head()
        assert await _body(exchange) == b"{}"
        exchange.close()
        await until(lambda: upstream.num_open == 0)
        assert upstream.num_idle == 0


async def test_an_idle_connection_expires() -> None:
    """Kept no longer than `keep_idle_s`, so that the replica isn't first to close it."""
    async with FakeReplica(answers(b"{}")) as replica:
        upstream = Upstream(replica.url, connect_s=5, first_byte_s=5, gap_s=5, keep_idle_s=0.02)
        exchange = upstream.exchange(REQUEST, b"")
        await exchange.send()
        await exchange.head()
        await _body(exchange)
        exchange.close()
        assert upstream.num_idle == 1
        await until(lambda: upstream.num_open == 0)


async def test_an_answer_to_head_has_no_body() -> None:
    """Whatever length it announces; and the connection is good for the next request."""

    async def behave(call: Call) -> None:
        if len(replica.received) == 1:
            await call.head(length=10)
        else:
            await call.whole(b"[]")

    async with FakeReplica(behave) as replica:
        upstream = _upstream(replica)
        for is_for_head, wanted in ((True, b""), (False, b"[]")):
            exchange = upstream.exchange(REQUEST, b"", is_for_head=is_for_head)
            await exchange.send()
            assert (await exchange.head())[0] == 200
            assert await _body(exchange) == wanted
            exchange.close()
        assert upstream.num_open == upstream.num_idle == 1


async def test_bytes_behind_an_answer_spoil_the_connection() -> None:
    """The answer is good, but nothing else is sent over a connection that says more than asked."""

    async def behave(call: Call) -> None:
        await call.send(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")

    async with FakeReplica(behave) as replica:
        upstream = _upstream(replica)
        exchange = upstream.exchange(REQUEST, b"")
        await exchange.send()
        await exchange.head()
        assert await _body(exchange) == b"{}"
        exchange.close()
        assert upstream.num_idle == 0


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 101 Switching Protocols\r\nupgrade: x\r\nconnection: upgrade\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nx: " + b"x" * 70_000,
    ],
)
async def test_answers_that_are_not_http_are_refused(answer: bytes) -> None:
    """Upgrades nobody asked for, contradicting framing and endless heads are failures of the replica."""

    async def behave(call: Call) -> None:
        await call.send(answer)
        await call.gone.wait()

    async with FakeReplica(behave) as replica:
        exchange = _upstream(replica).exchange(REQUEST, b"")
        await exchange.send()
        with pytest.raises(UpstreamGarbled):
            await exchange.head()
        exchange.close()


async def test_nothing_listens() -> None:
    """A refused connection is ConnectFailed, and a slow one too."""
    upstream = Upstream(f"http://127.0.0.1:{free_port()}", connect_s=1, first_byte_s=1, gap_s=1)
    with pytest.raises(ConnectFailed):
        await upstream.exchange(REQUEST, b"").send()
    assert upstream.num_open == 0


async def test_a_replica_that_answers_without_reading_the_request() -> None:
    """An early answer to a large body is passed on, though the body isn't written yet; the connection is closed."""

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 413 Too Large\r\ncontent-length: 3\r\n\r\nbig")
        await finished.wait()
        writer.close()

    finished = asyncio.Event()
    server = await asyncio.start_server(handle, "127.0.0.1", 0, limit=1 << 10)
    try:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        upstream = Upstream(url, connect_s=5, first_byte_s=5, gap_s=5)
        exchange = upstream.exchange(
            b"POST / HTTP/1.1\r\nhost: r\r\ncontent-length: 30000000\r\n\r\n", b"x" * 30_000_000
        )
        await exchange.send()
        status, _ = await exchange.head()
        assert (status, await _body(exchange)) == (413, b"big")
        exchange.close()
        assert upstream.num_idle == 0
    finally:
        finished.set()
        server.close()


async def test_a_slow_reader_pauses_the_connection() -> None:
    """No more than the high-water mark and one piece are held for whoever doesn't read."""
    async with FakeReplica(streams(*[b"x" * 65536] * 64)) as replica:
        upstream = _upstream(replica)
        exchange = upstream.exchange(REQUEST, b"")
        await exchange.send()
        await exchange.head()
        connection: Any = exchange._connection
        assert isinstance(connection, Connection)
        await until(lambda: connection._is_paused)
        assert connection._buffered_bytes < 512 * 1024
        assert len(await _body(exchange)) == 64 * 65536
        exchange.close()


async def test_a_wait_that_is_long_but_not_silent_is_no_timeout() -> None:
    """The gap is measured from the last wait, however long the answer takes."""

    async def behave(call: Call) -> None:
        await call.head(length=4)
        for _ in range(4):
            await asyncio.sleep(0.03)
            await call.send(b"x")
        await call.gone.wait()

    async with FakeReplica(behave) as replica:
        exchange = _upstream(replica, gap_s=0.1).exchange(REQUEST, b"")
        await exchange.send()
        await exchange.head()
        assert await _body(exchange) == b"xxxx"
        exchange.close()

        replica.behaviour = hangs(b"x")
        exchange = _upstream(replica, gap_s=0.05).exchange(REQUEST, b"")
        await exchange.send()
        await exchange.head()
        with pytest.raises(UpstreamTimeout):
            await _body(exchange)
        exchange.close()


async def test_stopping_an_exchange_ends_its_wait() -> None:
    """Whoever waits on a stopped exchange sees UpstreamClosed, and no fresh connection is made."""
    async with FakeReplica(hangs()) as replica:
        upstream = _upstream(replica)
        exchange = upstream.exchange(REQUEST, b"")
        await exchange.send()
        waiting = asyncio.create_task(exchange.head())
        await until(lambda: replica.num_running == 1)
        exchange.stop()
        with pytest.raises(UpstreamClosed):
            await waiting
        exchange.close()
        await until(lambda: upstream.num_open == 0)
        assert replica.num_connections == 1


@pytest.mark.parametrize("url", ["ftp://host", "http://", "host:80"])
def test_a_url_that_is_no_replica(url: str) -> None:
    """Only http and https with a host."""
    with pytest.raises(ValueError, match="not an http"):
        Upstream(url, connect_s=1, first_byte_s=1, gap_s=1)
