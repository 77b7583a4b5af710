"""httpx over the gateway's own connections: what it sends and brings back, and what a cancellation leaves."""

import asyncio

import httpx
import pytest

from gateway.upstream_transport import UpstreamTransport
from tests.support.fake_replica import Behaviour, Call, FakeReplica, answers, hangs
from tests.support.serve import free_port, until


async def _chunked(call: Call) -> None:
    await call.head(201, [("x-a", "1"), ("x-a", "2")])
    for piece in (b"one ", b"two"):
        await call.chunk(piece)
    await call.end()


async def _closes(call: Call) -> None:
    call.close()


async def _garbage(call: Call) -> None:
    await call.send(b"SMTP ready\r\n\r\n")


async def _breaks_off(call: Call) -> None:
    await call.head()
    await call.chunk(b"one")
    call.close()


async def test_a_question_and_its_answer() -> None:
    """Method, path with its query, headers and body there; status, headers and body back; one connection for all."""
    transport = UpstreamTransport()
    async with FakeReplica(_chunked) as replica, httpx.AsyncClient(transport=transport, trust_env=False) as http:
        for _ in range(3):
            answer = await http.post(f"{replica.url}/a%20b?c=d", content=b"body", headers={"x-b": "3"})
            assert (answer.status_code, answer.content) == (201, b"one two")
            assert answer.headers.get_list("x-a") == ["1", "2"]
        received = replica.received[-1]
        assert (received.method, received.path, received.body) == ("POST", "/a%20b?c=d", b"body")
        assert (received.header("x-b"), received.header("host")) == (["3"], [replica.url.partition("//")[2]])
        assert (replica.num_connections, transport.num_open) == (1, 1)
    await until(lambda: transport.num_open == 0)


@pytest.mark.parametrize("behaviour", [_closes, _garbage, _breaks_off])
async def test_failures_are_httpx_errors(behaviour: Behaviour) -> None:
    """As the caller knows them, whichever transport it is."""
    async with (
        FakeReplica(behaviour) as replica,
        httpx.AsyncClient(transport=UpstreamTransport(), trust_env=False) as http,
    ):
        with pytest.raises(httpx.RemoteProtocolError):
            await http.post(replica.url, content=b"x")


async def test_nobody_there() -> None:
    """A connection refused, with what the system said as the cause; a scheme that nobody speaks."""
    async with httpx.AsyncClient(transport=UpstreamTransport(), trust_env=False) as http:
        with pytest.raises(httpx.ConnectError) as raised:
            await http.get(f"http://127.0.0.1:{free_port()}/")
        assert raised.value.__cause__ is not None
        assert isinstance(raised.value.__cause__.__cause__, ConnectionRefusedError)
        with pytest.raises(httpx.UnsupportedProtocol):
            await http.get("gopher://127.0.0.1/")


@pytest.mark.parametrize("behaviour", [answers(), hangs()], ids=["answers", "hangs"])
async def test_cancelled_at_any_moment_no_connection_is_left(behaviour: Behaviour) -> None:
    """While it is made, while the question is sent, before the answer and inside it: it is closed, or idle."""
    transport = UpstreamTransport()
    async with FakeReplica(behaviour) as replica, httpx.AsyncClient(transport=transport, trust_env=False) as http:
        for num_turns in range(25):
            task = asyncio.create_task(http.post(replica.url, content=b"x"))
            for _ in range(num_turns):
                await asyncio.sleep(0)
            task.cancel()
            await asyncio.wait({task})
        await until(lambda: transport.num_open == sum(each.num_idle for each in transport._by_origin.values()))
        await until(lambda: replica.num_open == transport.num_open <= 1)
