"""Stopping: what counts as idle, how long is waited for it, and what happens to those that take too long."""

import asyncio
import json
from typing import Any

import pytest

from gateway.drain import Drain
from gateway.errors import GatewayError
from tests.support.asgi import HandDriven
from tests.support.fake_messages import CONTENT, OPENING, FakeMessages
from tests.support.fake_replica import FakeReplica, answers, delta, hangs
from tests.support.gateways import BODY, CHAT, STREAM_BODY, assert_nothing_held, gateway_for
from tests.support.serve import RawClient, post, serving, until


class Request:
    """One that is being served."""

    def __init__(self) -> None:
        self.stopped_by: list[GatewayError] = []

    def stop(self, error: GatewayError) -> None:
        self.stopped_by.append(error)


async def test_idle_is_when_the_last_request_ended() -> None:
    """However it ended."""
    drain = Drain()
    assert await drain.wait_idle(0.0)
    with drain.serving(Request()):
        with pytest.raises(ValueError, match="broke"), drain.serving(Request()):
            raise ValueError("broke")
        assert drain.num_active == 1
        waiting = asyncio.create_task(drain.wait_idle(30.0))
        await asyncio.sleep(0)
        assert not waiting.done()
    assert await waiting
    assert drain.num_active == 0


async def test_waiting_has_an_end() -> None:
    """A request that goes on too long is told of, and stopped."""
    drain, request = Drain(), Request()
    with drain.serving(request):
        assert not await drain.wait_idle(0.01)
        drain.cut()
    drain.cut()
    assert [error.status for error in request.stopped_by] == [503]


def test_readiness_goes_before_new_work() -> None:
    """There may be time between the two."""
    drain = Drain()
    drain.begin()
    assert (drain.is_draining, drain.is_refusing) == (True, False)
    drain.refuse()
    assert (drain.is_draining, drain.is_refusing) == (True, True)


async def test_a_stream_that_is_cut_says_so() -> None:
    """An error event behind the last whole one, no end marker, and an end that can be told from a proper one."""
    async with FakeReplica(hangs(delta("a"))) as replica, gateway_for(replica) as gateway, serving(gateway) as port:
        async with RawClient(port, post(CHAT, STREAM_BODY)) as client:
            await client.read_until(lambda: client.body == delta("a"))
            gateway.drain.cut()
            await client.read_all()
        assert not client.is_complete
        event = client.body.removeprefix(delta("a"))
        assert event.startswith(b"data: ")
        assert event.endswith(b"\n\n")
        assert json.loads(event[6:])["error"]["code"] == "draining"
        await until(lambda: replica.num_aborted == 1)
        assert_nothing_held(gateway)
        record = next(iter(gateway.ring._records.values()))
        assert (record.outcome, record.status, record.reason) == ("failed", 200, "draining")
        assert gateway.pool.get("r1").is_available


async def test_a_stream_that_is_cut_inside_an_event_just_ends() -> None:
    """What would follow half an event would be taken for the rest of it."""
    half = delta("a")[:20]
    async with FakeReplica(hangs(half)) as replica, gateway_for(replica) as gateway, serving(gateway) as port:
        async with RawClient(port, post(CHAT, STREAM_BODY)) as client:
            await client.read_until(lambda: client.body == half)
            gateway.drain.cut()
            await client.read_all()
        assert (client.body, client.is_complete) == (half, False)
        assert_nothing_held(gateway)


async def test_anthropics_streams_are_cut_in_their_own_words() -> None:
    """An event named error."""
    body = b'{"model":"m1","stream":true,"max_tokens":9,"messages":[{"role":"user","content":"hi"}]}'
    begun = b"".join((*OPENING, CONTENT[0]))
    async with (
        FakeMessages() as replica,
        gateway_for(replica) as gateway,
        serving(gateway) as port,
        RawClient(port, post("/v1/messages", body)) as client,
    ):
        replica.may_go_on.clear()
        await client.read_until(lambda: client.body == begun)
        gateway.drain.cut()
        await client.read_all()
        event = client.body.removeprefix(begun)
        assert event.startswith(b"event: error\ndata: ")
        assert json.loads(event.partition(b"data: ")[2])["error"]["type"] == "overloaded_error"


async def test_an_answer_that_has_not_begun_is_a_503() -> None:
    """Waiting for a replica, in the queue, or not even received: told to come back, with the end of the connection."""
    options: dict[str, Any] = {"policy": {"options": {"fixed": {"in_flight_tokens": 1}}}}
    async with FakeReplica(hangs()) as replica, gateway_for(replica, **options) as gateway:
        waiting = HandDriven(gateway, CHAT).start(BODY)
        await until(lambda: replica.num_running == 1)
        queued = HandDriven(gateway, CHAT).start(BODY)
        await until(lambda: gateway.core.num_queued == 1)
        sending = HandDriven(gateway, CHAT).start()
        sending.receive(b"{", more=True)
        await until(lambda: gateway.drain.num_active == 3)
        gateway.drain.cut()
        for request in (waiting, queued, sending):
            await request.ended()
            assert request.status == 503
            assert dict(request.headers)[b"retry-after"] == b"1"
            assert dict(request.headers)[b"connection"] == b"close"
        assert gateway.drain.num_active == 0
        assert_nothing_held(gateway)


async def test_an_answer_that_is_complete_is_not_cut() -> None:
    """Its last bytes are on their way to a client that reads slowly."""
    async with FakeReplica(answers()) as replica, gateway_for(replica) as gateway:
        request = HandDriven(gateway, CHAT, num_free_sends=1).start(BODY)
        await request.until(lambda: len(request.sent) == 2)
        gateway.drain.cut()
        request.may_send.set()
        await request.ended()
        assert request.is_complete
