"""The gateway as a whole: what it starts and ends, and which requests go where."""

import asyncio
import json
import logging
import random
from typing import Any

import pytest

from gateway.app import build_app
from gateway.attribution import Record
from gateway.timing_ring import TimingRing
from tests.support.asgi import HandDriven
from tests.support.fake_replica import DONE, Call, FakeReplica, answers, delta, streams
from tests.support.gateways import BODY, CHAT, STREAM_BODY, assert_nothing_held, configured, gateway_for
from tests.support.raw import answer_to, statuses
from tests.support.serve import RawClient, ask, serving


def _get(path: str) -> bytes:
    return f"GET {path} HTTP/1.1\r\nhost: g\r\n\r\n".encode()


async def _fetch(port: int, path: str) -> RawClient:
    async with RawClient(port, _get(path)) as client:
        return await client.read_all()


async def test_other_paths_are_the_admin_applications() -> None:
    """Health, models and a finished request's timing are served; what nobody knows is 404 in OpenAI's shape."""
    async with FakeReplica(answers()) as replica, gateway_for(replica) as gateway, serving(gateway) as port:
        reply = await ask(port, CHAT, BODY)
        request_id = reply.header(b"x-tailgate-request-id")[0].decode()
        assert (await _fetch(port, "/healthz")).status == 200
        assert json.loads((await _fetch(port, "/v1/models")).body)["data"][0]["id"] == "m1"
        timing = json.loads((await _fetch(port, f"/v1/requests/{request_id}/timing")).body)
        assert timing["status"] == 200
        assert sum(timing["layers_ms"].values()) == pytest.approx(timing["total_ms"], abs=0.02)
        lost = await _fetch(port, "/v1/nothing")
        assert (lost.status, json.loads(lost.body)["error"]["type"]) == (404, "invalid_request_error")
        page = (await _fetch(port, "/metrics")).body
        assert b"tailgate_requests_in_flight 0.0" in page
        assert len(replica.received) == 1


async def test_heads_are_answered_as_gets_without_a_body() -> None:
    """As load balancers ask; a route that takes something else says what."""
    async with FakeReplica(answers()) as replica, gateway_for(replica) as gateway, serving(gateway) as port:
        for path, status in (("/healthz", 200), ("/readyz", 200), ("/v1/nothing", 404), (CHAT, 405)):
            received = await answer_to(port, f"HEAD {path} HTTP/1.1\r\nhost: g\r\nconnection: close\r\n\r\n".encode())
            assert statuses(received) == [status]
            assert received.endswith(b"\r\n\r\n")
            assert (b"allow: POST" in received) is (status == 405)
        assert replica.received == []


async def test_request_ids_are_ours_and_differ() -> None:
    """One for each request, whatever the client calls it; the same source of chance gives the same ones."""
    async with FakeReplica(answers()) as replica:
        seen = []
        for _ in range(2):
            gateway = build_app(configured(replica, replica={"models": ["m1"]}), rng=random.Random(7))
            for _ in range(2):
                request = HandDriven(gateway, CHAT, headers=[(b"x-request-id", b"mine")]).start(b"")
                await request.ended()
                seen.append(dict(request.headers)[b"x-tailgate-request-id"])
            await gateway.aclose()
        assert seen[:2] == seen[2:]
        assert seen[0] != seen[1]
        assert len(seen[0]) == len("tg-") + 32


async def test_while_draining_new_work_is_refused_and_running_streams_finish() -> None:
    """503 with Retry-After and the end of the connection for the new, the whole answer for the old."""
    async with FakeReplica(streams()) as replica, gateway_for(replica) as gateway, serving(gateway) as port:

        async def behave(call: Call) -> None:
            await call.head(headers=[("content-type", "text/event-stream")])
            await call.chunk(delta("a"))
            gateway.drain.refuse()
            assert gateway.drain.num_active == 1
            refused.append(await ask(port, CHAT, BODY))
            await call.chunk(DONE)
            await call.end()

        refused: list[RawClient] = []
        replica.behaviour = behave
        reply = await ask(port, CHAT, STREAM_BODY)
        assert (reply.body, reply.is_complete) == (delta("a") + DONE, True)
        assert refused[0].status == 503
        assert refused[0].header(b"connection") == [b"close"]
        assert refused[0].header(b"retry-after")
        assert refused[0].header(b"x-tailgate-reason") == [b"draining"]
        assert gateway.drain.num_active == 0
        assert_nothing_held(gateway)


async def test_a_start_that_fails_is_told_to_the_server(caplog: pytest.LogCaptureFixture) -> None:
    """The server learns it, and nothing is left running."""
    caplog.set_level(logging.CRITICAL)
    async with FakeReplica(answers()) as replica:
        gateway = build_app(configured(replica))

        async def fails() -> None:
            raise OSError("no such tokenizer")

        gateway.tokens.start = fails  # type: ignore[method-assign]
        messages: list[Any] = []

        async def receive() -> Any:
            return {"type": "lifespan.startup"}

        async def send(message: Any) -> None:
            messages.append(message)

        await gateway({"type": "lifespan"}, receive, send)
        assert messages == [{"type": "lifespan.startup.failed", "message": "no such tokenizer"}]


def test_the_ring_forgets_the_oldest() -> None:
    """Bounded by its capacity."""
    ring = TimingRing(2)
    for name in ("a", "b", "c"):
        ring.add(Record(name, 0.0))
    assert len(ring) == 2
    assert ring.get("a") is None
    assert ring.get("c") is not None


async def test_an_answer_that_breaks_off_inside_the_gateway() -> None:
    """A fault of our own after the head was sent ends the client's connection, and gives everything back."""
    async with FakeReplica(streams(delta("a"), DONE)) as replica, gateway_for(replica) as gateway:

        async def broken(message: Any) -> None:
            if message["type"] == "http.response.body":
                raise RuntimeError("CANARY")

        inbox = [{"type": "http.request", "body": STREAM_BODY, "more_body": False}]

        async def receive() -> Any:
            if inbox:
                return inbox.pop()
            return await asyncio.Event().wait()

        scope = {"type": "http", "method": "POST", "path": CHAT, "headers": []}
        with pytest.raises(Exception, match="broke off inside"):
            await gateway(scope, receive, broken)
        assert_nothing_held(gateway)
