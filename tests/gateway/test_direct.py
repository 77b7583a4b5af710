"""What our own server does at once for an application that knows it: `gateway.disconnect.Direct`."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from gateway.disconnect import DIRECT, LINES, Direct, Message, Receive, Send
from tests.support.raw import answer_to
from tests.support.serve import RawClient, serving, until

POST = b"POST / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n"
Act = Callable[[Direct, Receive], Awaitable[bytes]]


def app(act: Act) -> Callable[[Message, Receive, Send], Awaitable[None]]:
    """Answers with what `act` gives."""

    async def serve(scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await receive()
            await send({"type": "lifespan.startup.complete"})
            await receive()
            return await send({"type": "lifespan.shutdown.complete"})
        body = await act(scope["extensions"][DIRECT], receive)
        headers = [(b"content-length", b"%d" % len(body))]
        await send({"type": "http.response.start", "status": 200, "headers": headers, LINES: b"x-a: 1\r\nx-b: 2\r\n"})
        return await send({"type": "http.response.body", "body": body})

    return serve


async def _given(_: Direct, receive: Receive) -> bytes:
    return bytes((await receive())["body"])


async def test_lines_go_out_as_they_are() -> None:
    """Behind the headers, once."""
    async with serving(app(_given)) as port:
        received = await answer_to(port, POST + b"Content-Length: 2\r\n\r\nab")
    head, _, body = received.partition(b"\r\n\r\n")
    assert body == b"ab"
    assert head.endswith(b"\r\nx-a: 1\r\nx-b: 2")


@pytest.mark.parametrize("num_bytes", [0, 5])
async def test_a_whole_body_is_taken(num_bytes: int) -> None:
    """Once, and only where it is no larger than asked for; `receive` then waits for the client to leave."""

    async def act(direct: Direct, receive: Receive) -> bytes:
        assert num_bytes == 0 or direct.take_body(num_bytes - 1) is None
        body = direct.take_body(num_bytes)
        assert body is not None
        assert direct.take_body(num_bytes) is None
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await receive()
        return body

    async with serving(app(act)) as port:
        received = await answer_to(port, POST + b"Content-Length: %d\r\n\r\n" % num_bytes + b"x" * num_bytes)
    assert received.endswith(b"\r\n\r\n" + b"x" * num_bytes)


async def test_a_body_that_is_still_coming_is_left_to_receive() -> None:
    """Nothing of it is taken."""
    asked = asyncio.Event()

    async def act(direct: Direct, receive: Receive) -> bytes:
        assert direct.take_body(100) is None
        asked.set()
        body = b""
        while len(body) < 2:
            body += (await receive())["body"]
        return body

    async with serving(app(act)) as port, RawClient(port, POST + b"Content-Length: 2\r\n\r\na") as client:
        await asked.wait()
        client._writer.write(b"b")
        await client.read_all()
    assert client.body == b"ab"


@pytest.mark.parametrize("when", ["before", "after", "never"])
async def test_whoever_watches_is_told_once_that_the_client_left(when: str) -> None:
    """Also of one that had left before; not after the watch is over."""
    told: list[str | None] = []
    watching, gate = asyncio.Event(), asyncio.Event()

    async def act(direct: Direct, receive: Receive) -> bytes:
        if when == "before":
            watching.set()
            await receive()
            assert (await receive())["type"] == "http.disconnect"
        direct.watch(told.append)
        if when == "never":
            direct.watch(None)
        watching.set()
        await gate.wait()
        return b""

    async with serving(app(act)) as port, RawClient(port, POST + b"Content-Length: 0\r\n\r\n") as client:
        await watching.wait()
        client.leave()
        if when == "never":
            gate.set()
            await client.read_all()
        else:
            await until(lambda: bool(told))
            gate.set()
    assert told == ([] if when == "never" else [None])
