"""What goes through the gateway comes out as it went in."""

import asyncio
import random

import pytest

from tests.support.asgi import HandDriven
from tests.support.fake_replica import DONE, Call, FakeReplica, answers, delta, finish, streams, usage_event
from tests.support.gateways import BODY, CHAT, STREAM_BODY, assert_nothing_held, chat_body, gateway_for
from tests.support.serve import RawClient, ask, post, serving, until

ODD_BODY = (
    b'{ "model" : "m1",\t"messages":[{"role":"user","content":"h\\u00e9\xc3\xa9"}], '
    b'"seed":123456789012345678901234567890,'
    b'"temperature":1.0000000000000000001, "x":{"y":[1e400000,null,-0.0]},"unknown":null }'
)


async def test_the_body_reaches_the_replica_as_it_came() -> None:
    """Unknown fields, big integers, odd floats and white space travel untouched, as do the answer's bytes."""
    answer = b'{"id":"c", "choices":[],"big":98765432109876543210,"usage":{"prompt_tokens":1} , "n":null}'
    async with FakeReplica(answers(answer)) as replica, gateway_for(replica) as gateway, serving(gateway) as port:
        reply = await ask(port, CHAT, ODD_BODY.replace(b"1e400000", b"1e300"))
        assert replica.received[0].body == ODD_BODY.replace(b"1e400000", b"1e300")
    assert (reply.status, reply.body, reply.is_complete) == (200, answer, True)


async def test_a_chunked_upload_arrives_whole() -> None:
    """A request body without a length is forwarded with one."""
    async with FakeReplica(answers()) as replica, gateway_for(replica) as gateway, serving(gateway) as port:
        head = f"POST {CHAT} HTTP/1.1\r\nhost: g\r\ntransfer-encoding: chunked\r\n\r\n".encode()
        chunks = b"".join(b"1\r\n%c\r\n" % byte for byte in BODY)
        async with RawClient(port, head + chunks + b"0\r\n\r\n") as client:
            await client.read_all()
        assert client.status == 200
        assert replica.received[0].body == BODY
        assert replica.received[0].header("content-length") == [str(len(BODY))]
        assert replica.received[0].header("transfer-encoding") == []


@pytest.mark.parametrize("line_end", [b"\n", b"\r\n"])
async def test_a_stream_comes_out_byte_for_byte(line_end: bytes) -> None:
    """Whatever the pieces, CR LF or LF, comments and odd events included."""
    events = b": keep-alive\n\n" + delta("h\u00e9") + b"event: x\ndata: 1\ndata: 2\n\n" + delta("b") + finish() + DONE
    events = events.replace(b"\n", line_end)
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    cuts = sorted(rng.sample(range(1, len(events)), 40))
    pieces = [events[a:b] for a, b in zip([0, *cuts], [*cuts, len(events)], strict=True)]
    async with FakeReplica(streams(*pieces)) as replica, gateway_for(replica) as gateway, serving(gateway) as port:
        reply = await ask(port, CHAT, STREAM_BODY)
        assert_nothing_held(gateway)
    assert (reply.body, reply.is_complete) == (events, True)
    assert reply.header(b"content-type") == [b"text/event-stream"]


async def test_request_headers_are_sorted() -> None:
    """End-to-end headers go on, repeated ones too; those of the connection, the gateway and vLLM's priority don't."""
    async with FakeReplica(answers()) as replica, gateway_for(replica) as gateway, serving(gateway) as port:
        await ask(
            port,
            CHAT,
            BODY,
            ("connection", "keep-alive, x-hop"),
            ("x-hop", "1"),
            ("te", "trailers"),
            ("proxy-authorization", "secret"),
            ("x-vllm-priority", "-100"),
            ("x-tailgate-lane", "standard"),
            ("authorization", "Bearer client"),
            ("x-request-id", "mine"),
            ("x-two", "a"),
            ("x-two", "b"),
            ("x-odd", "\xff~"),
        )
        got = replica.received[0]
        assert got.header("host") == [replica.url.removeprefix("http://")]
        assert got.header("authorization") == ["Bearer client"]
        assert got.header("x-request-id") == ["mine"]
        assert got.header("x-two") == ["a", "b"]
        assert got.header("x-odd") == ["\xff~"]
        assert got.path == CHAT
        gone = {"connection", "x-hop", "te", "proxy-authorization", "x-vllm-priority", "x-tailgate-lane"}
        assert not gone & {name for name, _ in got.headers}


async def test_a_replicas_own_authorization_and_priority_replace_the_clients() -> None:
    """The client's key is not shown to a replica that has its own, and the priority is the lane's."""
    settings = {"authorization": "Bearer own", "priority_scheduling": True}
    async with (
        FakeReplica(answers()) as replica,
        gateway_for(replica, replica=settings) as gateway,
        serving(gateway) as port,
    ):
        await ask(
            port,
            CHAT,
            BODY,
            ("authorization", "Bearer client"),
            ("x-vllm-priority", "-100"),
            ("x-tailgate-lane", "background"),
        )
        assert replica.received[0].header("authorization") == ["Bearer own"]
        assert replica.received[0].header("x-vllm-priority") == ["4"]


async def test_response_headers_are_sorted() -> None:
    """Repeated and unknown headers stay, those of the connection go, Date and Server are single."""
    sent = [
        ("date", "Mon, 01 Jan 2024 00:00:00 GMT"),
        ("server", "engine"),
        ("set-cookie", "a=1"),
        ("set-cookie", "b=2"),
        ("x-odd", "\xe9\xff"),
        ("connection", "keep-alive, x-hop"),
        ("keep-alive", "timeout=5"),
        ("x-hop", "1"),
        ("server-timing", "db;dur=1"),
        ("x-tailgate-replica", "a lie"),
    ]

    async def behave(call: Call) -> None:
        await call.whole(b"{}", headers=sent)

    async with FakeReplica(behave) as replica, gateway_for(replica) as gateway, serving(gateway) as port:
        reply = await ask(port, CHAT, BODY)
    assert reply.header(b"set-cookie") == [b"a=1", b"b=2"]
    assert reply.header(b"date") == [b"Mon, 01 Jan 2024 00:00:00 GMT"]
    assert reply.header(b"server") == [b"engine"]
    assert reply.header(b"x-odd") == [b"\xe9\xff"]
    assert reply.header(b"x-tailgate-replica") == [b"r1"]
    assert reply.header(b"server-timing")[0] == b"db;dur=1"
    assert len(reply.header(b"server-timing")) == 2
    assert not reply.header(b"x-hop")
    assert not reply.header(b"keep-alive")
    assert reply.header(b"content-length") == [b"2"]


@pytest.mark.parametrize("status", [400, 404, 422, 500, 503])
async def test_a_replicas_error_passes_unchanged(status: int) -> None:
    """Status, body and Retry-After of the only replica are the answer."""

    async def behave(call: Call) -> None:
        await call.whole(b'{"error": 1}', status=status, headers=[("retry-after", "7")])

    async with FakeReplica(behave) as replica, gateway_for(replica) as gateway, serving(gateway) as port:
        reply = await ask(port, CHAT, STREAM_BODY)
        assert len(replica.received) == 1
        assert_nothing_held(gateway)
    assert (reply.status, reply.body, reply.header(b"retry-after")) == (status, b'{"error": 1}', [b"7"])


async def test_a_packed_stream_passes_without_being_looked_into() -> None:
    """Content-Encoding and bytes agree, and no comment is put between."""
    packed = b"\x1f\x8b\x08 not really gzip \x00\xff\n\n"
    behave = streams(packed, headers=[("content-encoding", "gzip")])
    async with FakeReplica(behave) as replica, gateway_for(replica) as gateway, serving(gateway) as port:
        reply = await ask(port, CHAT, STREAM_BODY, ("x-tailgate-timing", "stream"))
    assert (reply.body, reply.header(b"content-encoding")) == (packed, [b"gzip"])


async def test_a_body_without_framing_ends_with_its_connection() -> None:
    """An HTTP/1.1 answer that ends by closing is complete, and its connection isn't kept."""

    async def behave(call: Call) -> None:
        await call.send(b"HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\n\r\nto the end")
        call.close()

    async with FakeReplica(behave) as replica, gateway_for(replica) as gateway, serving(gateway) as port:
        reply = await ask(port, CHAT, BODY)
        assert gateway.upstreams.num_open == 0
    assert (reply.body, reply.is_complete) == (b"to the end", True)


async def test_interim_and_bodyless_answers() -> None:
    """1xx answers are skipped, and a 204 has no body."""

    async def behave(call: Call) -> None:
        await call.send(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early\r\nx-a: 1\r\n\r\n")
        await call.send(b"HTTP/1.1 204 No Content\r\nx-b: 2\r\n\r\n")

    async with FakeReplica(behave) as replica, gateway_for(replica) as gateway, serving(gateway) as port:
        reply = await ask(port, CHAT, BODY)
        assert gateway.upstreams.num_idle == 1
    assert (reply.status, reply.body, reply.header(b"x-b"), reply.header(b"x-a")) == (204, b"", [b"2"], [])


async def test_a_caller_that_asks_gets_its_timing_before_the_end_marker() -> None:
    """One comment, right before [DONE], with the usage known; every other byte as it came."""
    events = delta("a") + delta("b") + finish() + usage_event(7, 2)
    behave = streams(events[:50], events[50:] + DONE[:5], DONE[5:])
    async with FakeReplica(behave) as replica, gateway_for(replica) as gateway, serving(gateway) as port:
        reply = await ask(port, CHAT, STREAM_BODY, ("x-tailgate-timing", "stream"))
    comment = reply.body.removeprefix(events).removesuffix(DONE)
    assert comment.startswith(b": tailgate {")
    assert comment.endswith(b"}\n\n")
    assert b'"output_tokens":2' in comment
    assert reply.body == events + comment + DONE


async def test_nothing_is_sent_before_the_replicas_status_is_known() -> None:
    """While the replica is silent, so is the gateway."""
    may_answer = asyncio.Event()

    async def behave(call: Call) -> None:
        await may_answer.wait()
        await call.whole(b"{}", status=422)

    async with FakeReplica(behave) as replica, gateway_for(replica) as gateway:
        request = HandDriven(gateway, CHAT).start(STREAM_BODY)
        await until(lambda: len(replica.received) == 1)
        assert request.sent == []
        may_answer.set()
        await request.ended()
        assert request.status == 422


async def test_pipelined_keep_alive_connections_are_reused() -> None:
    """Requests one after the other use one connection to the replica."""
    async with FakeReplica(answers()) as replica, gateway_for(replica) as gateway, serving(gateway) as port:
        before = replica.num_connections
        for _ in range(5):
            await ask(port, CHAT, chat_body(n=1))
        assert replica.num_connections == before + 1
        async with RawClient(port, post(CHAT, BODY) + post(CHAT, BODY)) as client:
            await client.read_all()
            assert client.status == 200
