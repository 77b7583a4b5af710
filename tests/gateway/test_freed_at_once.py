"""However a request ends, nothing of it waits for a search for cycles: those are so rare that it would pile up."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import pytest
from httpx import AsyncClient

from gateway.app import Gateway
from gateway.replica_probe import MAX_ANSWER_BYTES, Prober
from gateway.sse import StreamScanner
from gateway.upstream import Upstream
from gateway.upstream_errors import ConnectFailed
from tests.support.cycles import no_cycles
from tests.support.fake_replica import DONE, Behaviour, Call, FakeReplica, answers, delta, hangs, streams
from tests.support.gateways import BODY, CHAT, STREAM_BODY, assert_nothing_held, gateway_for
from tests.support.raw import RawSocket, answer_to
from tests.support.serve import RawClient, ask, free_port, post, serving, until

EVENT_STREAM = [("content-type", "text/event-stream")]
QUICK: dict[str, Any] = {"first_byte_s": 0.05, "idle_s": 0.05, "queue_s": 0.2, "receive_s": 0.05}


@dataclass(frozen=True, slots=True)
class Site:
    """A gateway that serves, and its replica."""

    replica: FakeReplica
    gateway: Gateway
    port: int

    async def settled(self) -> None:
        """No client is connected, no request is being served, no call runs."""
        await until(lambda: self.gateway.front.num_open == 0 and self.gateway.drain.num_active == 0)
        await until(lambda: self.replica.num_running == 0)
        assert_nothing_held(self.gateway)


@asynccontextmanager
async def site(behaviour: Behaviour, **config: Any) -> AsyncIterator[Site]:
    async with (
        FakeReplica(behaviour) as replica,
        gateway_for(replica, **config) as gateway,
        serving(gateway) as port,
    ):
        yield Site(replica, gateway, port)


async def _reset(call: Call) -> None:
    call.reset()


async def _answers_and_closes(call: Call) -> None:
    await call.whole(b"{}")
    call.close()


async def _garbage(call: Call) -> None:
    await call.send(b"SMTP ready\r\n\r\n")


async def _breaks_off(call: Call) -> None:
    await call.head(headers=EVENT_STREAM)
    await call.chunk(delta("a"))
    call.reset()


async def _breaks_the_framing(call: Call) -> None:
    await call.head(headers=EVENT_STREAM)
    await call.chunk(delta("a"))
    await call.send(b"xyz\r\n")


async def _serves_a_connection_once(call: Call) -> None:
    """A second request over it is reset: it had been closed a moment before."""
    if call.received.connection in _used:
        call.reset()
    else:
        _used.add(call.received.connection)
        await call.whole(b"{}")


_used: set[int] = set()

REPLICAS: dict[str, Behaviour] = {
    "whole": answers(),
    "stream": streams(delta("a"), DONE),
    "closes": _answers_and_closes,
    "resets": _reset,
    "garbage": _garbage,
    "breaks-off": _breaks_off,
    "bad-framing": _breaks_the_framing,
    "silent": hangs(),
    "falls-silent": hangs(delta("a")),
    "stale": _serves_a_connection_once,
}


@pytest.mark.parametrize("body", [BODY, STREAM_BODY], ids=["whole", "stream"])
@pytest.mark.parametrize("kind", REPLICAS)
async def test_whatever_the_replica_does(kind: str, body: bytes) -> None:
    """Good answers, resets, closes, rubbish and silence, before the answer and inside it."""
    _used.clear()
    async with site(REPLICAS[kind], timeouts=QUICK) as here:
        await ask(here.port, CHAT, body)
        with no_cycles():
            for _ in range(3):
                await ask(here.port, CHAT, body)
            await here.settled()
            await until(lambda: here.gateway.upstreams.num_open == here.gateway.upstreams.num_idle)


async def test_another_replica_tried() -> None:
    """The first attempt's failure, and the second attempt's answer."""
    async with (
        FakeReplica(_reset) as bad,
        FakeReplica(answers()) as good,
        gateway_for(bad, good, limits={"min_retries_per_s": 1000.0}) as gateway,
        serving(gateway) as port,
    ):
        gateway.pool.report_failure = lambda replica_id: None  # type: ignore[method-assign]  # it stays in
        with no_cycles():
            for _ in range(4):
                assert (await ask(port, CHAT, BODY)).status == 200
            await until(lambda: gateway.front.num_open == 0)
        assert bad.received


@pytest.mark.parametrize("path", ["/health", "/v1/models", "/metrics", "/large"])
async def test_probes(path: str) -> None:
    """They go on whether anybody asks for anything or not."""
    async with FakeReplica(answers(), pages={"/large": bytes(MAX_ANSWER_BYTES + 1)}) as replica, AsyncClient() as http:
        prober = Prober(http, replica.url, None, 5.0)
        await prober.ask(path)
        with no_cycles("gateway", "httpx", "httpcore"):
            for _ in range(3):
                await prober.ask(path)
            await until(lambda: replica.num_open <= 1)


async def test_nobody_listens() -> None:
    """Connections that are refused, until the request's time in the queue is over."""
    async with site(answers(), timeouts=QUICK) as here:
        url = here.gateway.pool.all()[0].url
        here.gateway.pool.all()[0].url = f"http://127.0.0.1:{free_port()}"
        with no_cycles():
            assert (await ask(here.port, CHAT, BODY)).status >= 500
            await here.settled()
        here.gateway.pool.all()[0].url = url


async def test_a_connect_that_is_cancelled_is_over_at_once() -> None:
    """At the very moment at which it was made, too."""
    async with FakeReplica(answers()) as replica:
        upstream = Upstream(replica.url, connect_s=5.0, first_byte_s=1.0, gap_s=1.0)
        with no_cycles():
            for num_turns in range(8):
                task = asyncio.create_task(upstream.connect())
                for _ in range(num_turns):
                    await asyncio.sleep(0)
                task.cancel()
                await asyncio.wait({task})
                if not task.cancelled():
                    task.result().abort()
                del task
            await until(lambda: replica.num_open == 0 and upstream.num_open == 0)


async def test_a_connect_that_fails() -> None:
    """Refused, and one that speaks no TLS."""
    async with FakeReplica(answers()) as replica:
        refused = Upstream(f"http://127.0.0.1:{free_port()}", connect_s=5.0, first_byte_s=1.0, gap_s=1.0)
        plain = Upstream(replica.url.replace("http", "https"), connect_s=5.0, first_byte_s=1.0, gap_s=1.0)
        for upstream in (refused, plain):
            with no_cycles():
                with pytest.raises(ConnectFailed):
                    await upstream.connect()
                await until(lambda: replica.num_open == 0)


async def _until_received(here: Site, _: RawClient) -> None:
    await until(lambda: len(here.replica.received) == 1)


async def _until_streaming(here: Site, client: RawClient) -> None:
    await client.read_until(lambda: bool(client.body))


async def _until_queued(here: Site, _: RawClient) -> None:
    await until(lambda: here.gateway.core.num_queued == 1)


async def _until_begun(here: Site, _: RawClient) -> None:
    await until(lambda: here.gateway.drain.num_active == 1)


LEAVING: dict[str, tuple[bytes, Behaviour, Callable[[Site, RawClient], Any]]] = {
    "sending": (post(CHAT, BODY)[:-5], answers(), _until_begun),
    "waiting": (post(CHAT, BODY), hangs(), _until_received),
    "streaming": (post(CHAT, STREAM_BODY), hangs(delta("a")), _until_streaming),
}


@pytest.mark.parametrize("when", LEAVING)
async def test_whenever_the_client_leaves(when: str) -> None:
    """While it sends, before the answer, inside it."""
    request, behaviour, reached = LEAVING[when]
    async with site(behaviour) as here:
        with no_cycles():
            async with RawClient(here.port, request) as client:
                await reached(here, client)
                client.leave()
            await here.settled()


async def test_a_client_that_leaves_the_queue() -> None:
    """Its place, and what it sent."""
    one_at_a_time = {"options": {"fixed": {"in_flight_tokens": 1}}}
    async with site(hangs(), policy=one_at_a_time) as here, RawClient(here.port, post(CHAT, BODY)) as first:
        await _until_received(here, first)
        with no_cycles():
            async with RawClient(here.port, post(CHAT, BODY)) as second:
                await _until_queued(here, second)
                second.leave()
            await until(lambda: here.gateway.front.num_open == 1 and here.gateway.core.num_queued == 0)


SENT: dict[str, bytes] = {
    "chunks": b"POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhelloworld\r\n",
    "json": post(CHAT, b'{"model":', ("connection", "close")),
    "model": post(CHAT, BODY.replace(b"m1", b"no"), ("connection", "close")),
    "too-large": post(CHAT, b" " * 3000, ("connection", "close")),
    "unsent": post(CHAT, BODY)[:-5],
    "no-http": b"\x16\x03\x01\x00\xc8\x01",
    "upgrade": post(CHAT, BODY, ("connection", "upgrade, close"), ("upgrade", "h2c")),
    "expects": post(CHAT, BODY, ("expect", "100-continue"), ("connection", "close")),
}


@pytest.mark.parametrize("kind", SENT)
async def test_whatever_the_client_sends(kind: str) -> None:
    """What can't be read, and what is refused."""
    async with site(answers(), timeouts=QUICK, limits={"max_body_bytes": 2000}) as here:
        with no_cycles():
            assert b"HTTP/1.1 " in await answer_to(here.port, SENT[kind])
            await here.settled()


async def test_a_client_that_takes_nothing() -> None:
    """It is cut off while a piece of its answer waits for it."""

    async def floods(call: Call) -> None:
        await call.head(headers=EVENT_STREAM)
        while not call.gone.is_set():
            await call.chunk(delta("x" * 60_000))

    async with site(floods, timeouts={"send_s": 0.05}) as here:
        with no_cycles():
            async with RawSocket(here.port) as client:
                client.send(post(CHAT, STREAM_BODY))
                await until(lambda: here.gateway.drain.num_active == 1)
                await here.settled()


async def test_a_fault_of_our_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Inside the answer, where the replica's connection mustn't see it."""

    def fail(*_: object) -> None:
        raise ArithmeticError("a fault planted by the test")

    async with site(hangs(delta("a"))) as here:
        monkeypatch.setattr(StreamScanner, "feed", fail)
        with no_cycles():
            await ask(here.port, CHAT, STREAM_BODY)
            await here.settled()
