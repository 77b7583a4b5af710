"""Event streams as replicas really write them: every byte passes, and passes at once."""

import asyncio
import json

import pytest

from gateway.config import parse_config
from gateway.heartbeat import COMMENT
from tests.support.fake_replica import DONE, Call, FakeReplica, delta, event, finish, streams, usage_event
from tests.support.gateways import CHAT, STREAM_BODY, assert_nothing_held, gateway_for
from tests.support.serve import RawClient, ask, post, serving, until

TYPE = [("content-type", "text/event-stream")]
CONTENT = delta("TEXT").replace(b"TEXT", "안녕 🚀 Öl 渐 é".encode())

WHOLE = {
    "usage in a chunk without choices": [delta("a"), finish(), usage_event(3, 1), DONE],
    "usage in every chunk": [delta("a", usage={"prompt_tokens": 3, "completion_tokens": 1}), finish(), DONE],
    "an error among events": [delta("a"), event({"error": {"message": "oom", "code": 500}}), DONE],
    "comments and odd fields": [b": ping\n\n", b":\n\n", b"event: x\nid: 7\nretry: 10\n" + delta("a"), b"\n\n", DONE],
    "no space after the colon": [b'data:{"choices":[{"index":0,"delta":{"content":"a"}}]}\n\n', b"data:[DONE]\n\n"],
    "several data lines": [b'data: {"choices":[\ndata: {"index":0,"delta":{"content":"a"}}]}\n\n', DONE],
    "carriage returns": [CONTENT.replace(b"\n", b"\r\n"), b"data: [DONE]\r\n\r\n"],
    "carriage returns alone": [CONTENT.replace(b"\n", b"\r"), b"data: [DONE]\r\r"],
    "a byte order mark": [b"\xef\xbb\xbf" + CONTENT, DONE],
    "several choices": [event({"choices": [{"index": n, "delta": {"content": "x"}}]}) for n in (1, 0, 2)] + [DONE],
    "no end marker": [delta("a"), finish()],
    "no events at all": [],
    "a tool call in pieces": [
        event({"choices": [{"index": 0, "delta": {"tool_calls": [{"index": 0, "function": {"arguments": piece}}]}}]})
        for piece in ('{"a', '": "é', '"}')
    ],
    "what isn't JSON": [b"data: oops\n\n", b"data: {\n\n", b"data: 1e999\n\n", b"data:\n\n", DONE],
    "a large event": [delta("z" * (1 << 20)), DONE],
    "words behind the end": [delta("a"), DONE, b": bye\n\n", delta("late")],
}


def in_pieces(data: bytes, size: int) -> list[bytes]:
    return [data[start : start + size] for start in range(0, len(data), size)]


@pytest.mark.parametrize("size", [1, 7, 1 << 16])
@pytest.mark.parametrize("name", WHOLE)
async def test_every_byte_passes_however_it_is_cut(name: str, size: int) -> None:
    """In the middle of a character, of a line end or of a field: nothing is added, dropped or written anew."""
    data = b"".join(WHOLE[name])
    pieces = in_pieces(data, size if len(data) < 4096 else max(size, 4099))
    async with FakeReplica(streams(*pieces)) as replica, gateway_for(replica) as gateway, serving(gateway) as port:
        reply = await ask(port, CHAT, STREAM_BODY)
        assert (reply.status, reply.body, reply.is_complete) == (200, data, True)
        assert reply.header(b"content-type") == [b"text/event-stream"]
        assert_nothing_held(gateway)


@pytest.mark.parametrize(
    "framing",
    [
        b"content-length: %d\r\n" % len(CONTENT + DONE),
        b"connection: close\r\n",
        b"",
        b"transfer-encoding: chunked\r\n",
    ],
    ids=["length", "close", "neither", "chunked"],
)
async def test_any_framing_will_do(framing: bytes) -> None:
    """A stream may come with its length, or end with its connection."""

    async def behave(call: Call) -> None:
        await call.send(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\n" + framing + b"\r\n")
        for piece in (CONTENT, DONE):
            await (call.chunk(piece) if b"chunked" in framing else call.send(piece))
        if b"chunked" in framing:
            await call.end()
        elif b"length" not in framing:
            call.close()

    async with FakeReplica(behave) as replica, gateway_for(replica) as gateway, serving(gateway) as port:
        reply = await ask(port, CHAT, STREAM_BODY)
        assert (reply.body, reply.is_complete) == (CONTENT + DONE, True)
        assert_nothing_held(gateway)


@pytest.mark.parametrize("piece", [b": keep-alive\n\n", b":", b"d", delta("a"), CONTENT[:40], b"\r", b"\n"])
async def test_every_piece_passes_at_once(piece: bytes) -> None:
    """A comment, half an event, half a line end: whatever has come is with the client before the replica says more."""
    seen = asyncio.Event()

    async def behave(call: Call) -> None:
        await call.head(headers=TYPE)
        await call.chunk(piece)
        await seen.wait()
        await call.chunk(DONE)
        await call.end()

    async with (
        FakeReplica(behave) as replica,
        gateway_for(replica) as gateway,
        serving(gateway) as port,
        RawClient(port, post(CHAT, STREAM_BODY)) as client,
    ):
        await client.read_until(lambda: client.body == piece)
        seen.set()
        assert (await client.read_all()).body == piece + DONE


BROKEN = {
    "between events": (delta("a"), True),
    "before any event": (b"", True),
    "in an event": (delta("a") + b'data: {"choi', False),
    "in a character": (CONTENT[: CONTENT.index("🚀".encode()) + 2], False),
    "behind an event's first line end": (delta("a")[:-1], False),
}


@pytest.mark.parametrize("is_reset", [False, True])
@pytest.mark.parametrize("name", BROKEN)
async def test_a_stream_that_breaks_off_says_so(name: str, is_reset: bool) -> None:
    """By an error event where one can be told from the event before, by an unfinished body in any case."""
    data, is_told = BROKEN[name]
    held = asyncio.Event()

    async def behave(call: Call) -> None:
        await call.head(headers=TYPE)
        if data:
            await call.chunk(data)
            await held.wait()
        call.reset() if is_reset else call.close()

    async with FakeReplica(behave) as replica, gateway_for(replica) as gateway, serving(gateway) as port:
        async with RawClient(port, post(CHAT, STREAM_BODY)) as client:
            await client.read_until(lambda: client.has_head and client.body == data)
            held.set()
            await client.read_all()
        told = client.body.removeprefix(data)
        assert not client.is_complete
        assert b"[DONE]" not in client.body
        assert bool(told) is is_told
        if told:
            assert told.endswith(b"\n\n")
            assert json.loads(told.removeprefix(b"data: "))["error"]["code"] == "upstream_closed"
        assert len(replica.received) == 1
        assert_nothing_held(gateway)


@pytest.mark.parametrize("timing", [False, True])
async def test_a_silent_stream_shows_that_it_lives_where_that_is_wanted(timing: bool) -> None:
    """By comments, between its events only, from its head to its end; what the replica says is as it was."""
    goes_on = asyncio.Event()
    half = len(CONTENT) - 3

    async def behave(call: Call) -> None:
        await call.head(headers=TYPE)
        await goes_on.wait()
        goes_on.clear()
        await call.chunk(CONTENT[:half])
        await goes_on.wait()
        await call.chunk(CONTENT[half:] + DONE)
        await call.end()

    headers = [("x-tailgate-timing", "stream")] if timing else []
    async with (
        FakeReplica(behave) as replica,
        gateway_for(replica, streams={"heartbeat_s": 0.01}) as gateway,
        serving(gateway) as port,
        RawClient(port, post(CHAT, STREAM_BODY, *headers)) as client,
    ):
        await client.read_until(lambda: client.body.startswith(COMMENT * 3))
        goes_on.set()
        await until(lambda: not goes_on.is_set())
        goes_on.set()
        await client.read_all()
        assert client.is_complete
        said = client.body.replace(COMMENT, b"")
        assert said.startswith(CONTENT)
        assert said.endswith(DONE)
        assert (b": tailgate " in said) is timing
        assert_nothing_held(gateway)


async def test_nothing_is_put_into_streams_unasked() -> None:
    """Comments are more than some clients understand."""
    assert parse_config({"replicas": [{"url": "http://a"}]}, source="test").streams.heartbeat_s is None


async def test_a_stream_of_a_certain_length_is_left_alone() -> None:
    """A comment would make it longer than it says."""
    goes_on = asyncio.Event()

    async def behave(call: Call) -> None:
        await call.head(headers=TYPE, length=len(CONTENT))
        await goes_on.wait()
        await call.send(CONTENT)

    async with (
        FakeReplica(behave) as replica,
        gateway_for(replica, streams={"heartbeat_s": 0.001}) as gateway,
        serving(gateway) as port,
        RawClient(port, post(CHAT, STREAM_BODY)) as client,
    ):
        await client.read_until(lambda: client.has_head)
        goes_on.set()
        assert (await client.read_all()).body == CONTENT
