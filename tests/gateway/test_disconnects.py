"""A client that leaves, at any moment, takes everything it held with it."""

import asyncio
import random
from typing import Any

import pytest

from gateway.app import Gateway
from tests.support.asgi import HandDriven
from tests.support.fake_replica import DONE, Call, FakeReplica, answers, delta, hangs, streams
from tests.support.gateways import BODY, CHAT, STREAM_BODY, assert_nothing_held, chat_body, gateway_for
from tests.support.serve import RawClient, ask, post, serving, until

ONE_AT_A_TIME: dict[str, Any] = {"policy": {"options": {"fixed": {"in_flight_tokens": 1}}}}


def _last_outcome(gateway: Gateway) -> tuple[str, int | None]:
    record = list(gateway.ring._records.values())[-1]
    return record.outcome, record.status


async def test_leaving_while_the_body_arrives() -> None:
    """Nothing was taken yet, and nothing reaches a replica."""
    async with FakeReplica(answers()) as replica, gateway_for(replica) as gateway:
        request = HandDriven(gateway, CHAT).start()
        request.receive(b'{"model":', more=True)
        request.disconnect()
        await request.ended()
        assert request.sent == []
        assert replica.received == []
        assert _last_outcome(gateway) == ("client-left", 499)


@pytest.mark.parametrize("body", [BODY, STREAM_BODY])
async def test_leaving_while_tokens_are_counted(body: bytes) -> None:
    """The count is given up and nothing was queued."""
    async with FakeReplica(answers()) as replica, gateway_for(replica) as gateway:
        counting = asyncio.Event()

        async def count(*_: object, **__: object) -> None:
            counting.set()
            await asyncio.Event().wait()

        gateway.tokens.count = count  # type: ignore[method-assign, assignment]
        request = HandDriven(gateway, CHAT).start(body)
        await counting.wait()
        request.disconnect()
        await request.ended()
        assert replica.received == []
        assert_nothing_held(gateway)


@pytest.mark.parametrize("body", [BODY, STREAM_BODY])
async def test_leaving_while_queued(body: bytes) -> None:
    """The place in the queue is free at once, and the replica never sees the request."""
    async with FakeReplica(hangs()) as replica, gateway_for(replica, **ONE_AT_A_TIME) as gateway:
        first = HandDriven(gateway, CHAT).start(BODY)
        await until(lambda: replica.num_running == 1)
        second = HandDriven(gateway, CHAT).start(body)
        await until(lambda: gateway.core.num_queued == 1)
        second.disconnect()
        await second.ended()
        assert gateway.core.num_queued == 0
        assert gateway.core.num_in_flight == 1
        first.disconnect()
        await first.ended()
        assert len(replica.received) == 1
        assert_nothing_held(gateway)


async def test_leaving_while_connecting() -> None:
    """A connection that isn't there yet is given up with the request."""
    async with FakeReplica(answers()) as replica, gateway_for(replica) as gateway:
        connecting = asyncio.Event()
        upstream = gateway.upstreams.of("r1", replica.url)

        async def connect() -> None:
            connecting.set()
            await asyncio.Event().wait()

        upstream.connect = connect  # type: ignore[method-assign, assignment]
        request = HandDriven(gateway, CHAT).start(BODY)
        await connecting.wait()
        assert gateway.core.num_in_flight == 1
        request.disconnect()
        await request.ended()
        assert_nothing_held(gateway)


@pytest.mark.parametrize("body", [BODY, STREAM_BODY])
async def test_leaving_before_the_first_byte(body: bytes) -> None:
    """The replica sees its connection close, streaming or not, and the slot is free."""
    async with FakeReplica(hangs()) as replica, gateway_for(replica) as gateway:
        request = HandDriven(gateway, CHAT).start(body)
        await until(lambda: replica.num_running == 1)
        request.disconnect()
        await request.ended()
        assert_nothing_held(gateway)
        assert gateway.upstreams.num_idle == 0
        await until(lambda: replica.num_aborted == 1 and replica.num_running == 0)
        assert _last_outcome(gateway) == ("client-left", 499)


async def test_leaving_mid_stream() -> None:
    """The replica's generation is aborted, the slot is free, and the replica isn't blamed."""
    async with FakeReplica(hangs(delta("a"))) as replica, gateway_for(replica) as gateway, serving(gateway) as port:
        async with RawClient(port, post(CHAT, STREAM_BODY)) as client:
            await client.read_until(lambda: client.body == delta("a"))
            assert gateway.core.num_in_flight == 1
            client.leave()
            await until(lambda: gateway.core.num_in_flight == 0)
        assert_nothing_held(gateway)
        await until(lambda: replica.num_aborted == 1)
        assert gateway.pool.get("r1").is_available


async def test_leaving_mid_answer() -> None:
    """The same in the middle of a whole answer."""

    async def behave(call: Call) -> None:
        await call.head(headers=[("content-type", "application/json")], length=100)
        await call.send(b"{")
        await call.gone.wait()

    async with FakeReplica(behave) as replica, gateway_for(replica) as gateway, serving(gateway) as port:
        async with RawClient(port, post(CHAT, BODY)) as client:
            await client.read_until(lambda: client.body == b"{")
            client.leave()
            await until(lambda: gateway.core.num_in_flight == 0)
        assert_nothing_held(gateway)
        await until(lambda: replica.num_aborted == 1)


async def test_the_next_request_is_served_when_one_leaves() -> None:
    """The slot that a leaving client frees goes to whoever waits."""
    async with FakeReplica(hangs()) as replica, gateway_for(replica, **ONE_AT_A_TIME) as gateway:
        first = HandDriven(gateway, CHAT).start(BODY)
        await until(lambda: replica.num_running == 1)
        second = HandDriven(gateway, CHAT).start(BODY)
        await until(lambda: gateway.core.num_queued == 1)
        replica.behaviour = answers(b"{}")
        first.disconnect()
        await second.ended()
        assert (second.status, second.body) == (200, b"{}")


async def test_leaving_after_the_answer_is_no_leaving() -> None:
    """A disconnect that comes with the last byte doesn't turn a served request into a left one."""
    async with FakeReplica(answers()) as replica, gateway_for(replica) as gateway, serving(gateway) as port:
        for _ in range(20):
            async with RawClient(port, post(CHAT, BODY)) as client:
                await client.read_all()
                client.leave()
        assert {record.outcome for record in gateway.ring._records.values()} == {"ok"}


async def test_cancellation_from_outside_stays_one() -> None:
    """A server that cancels its tasks sees CancelledError, and everything is given back."""
    async with FakeReplica(hangs(delta("a"))) as replica, gateway_for(replica) as gateway:
        request = HandDriven(gateway, CHAT).start(STREAM_BODY)
        await request.until(lambda: len(request.sent) > 1)
        assert request.task is not None
        request.task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await request.task
        assert_nothing_held(gateway)


async def test_a_slow_reader_slows_the_replica() -> None:
    """A client that doesn't read stops the replica's sending: what is held in between is bounded."""
    size, pieces, sent = 1 << 16, 1024, 0

    async def behave(call: Call) -> None:
        nonlocal sent
        await call.head(headers=[("content-type", "text/event-stream")])
        for _ in range(pieces):
            await call.chunk(b":" + b"x" * size + b"\n\n")
            sent += 1
        await call.chunk(DONE)
        await call.end()

    async with FakeReplica(behave) as replica, gateway_for(replica) as gateway:
        request = HandDriven(gateway, CHAT)
        request.may_send.clear()
        request.start(STREAM_BODY)
        await request.until(lambda: len(request.sent) == 1)
        last = -1
        while last != sent or sent == 0:  # until the replica makes no more progress
            last = sent
            for _ in range(50):
                await asyncio.sleep(0.001)
        # What the kernel's buffers of both sockets take (a few MiB), and not the 64 MiB there are.
        assert sent < pieces / 4
        assert sum(len(message.get("body", b"")) for message in request.sent) < 1 << 20
        request.may_send.set()
        await request.ended()
        assert request.body.endswith(DONE)
        assert sent == pieces


async def test_a_client_that_stops_reading_is_cut_off() -> None:
    """After `send_s` its slot and the replica's connection are free, and the next request is served."""

    async def floods(call: Call) -> None:
        await call.head(headers=[("content-type", "text/event-stream")])
        while True:
            await call.chunk(b":" + b"x" * 65536 + b"\n\n")

    timeouts: dict[str, Any] = {"timeouts": {"send_s": 0.2}}
    async with (
        FakeReplica(floods) as replica,
        gateway_for(replica, **ONE_AT_A_TIME, **timeouts) as gateway,
        serving(gateway) as port,
        RawClient(port, post(CHAT, STREAM_BODY)) as client,
    ):
        await client.read_until(lambda: client.has_head)
        await until(lambda: replica.num_running == 1)
        replica.behaviour = answers(b"{}")
        reply = await ask(port, CHAT, BODY)
        assert (reply.status, reply.body) == (200, b"{}")
        await until(lambda: replica.num_running == 0)
        record = next(iter(gateway.ring._records.values()))
        assert (record.outcome, record.status, record.reason) == ("client-left", 499, "client-stalled")
        assert_nothing_held(gateway)


async def test_five_hundred_requests_cut_at_random_leave_nothing() -> None:
    """With 30 % of the clients leaving at a random moment, all counts are back at zero afterwards."""
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    rng = random.Random(seed)

    async def behave(call: Call) -> None:
        if b"true" not in call.received.body:
            await asyncio.sleep(0.002)
            await call.whole(b'{"usage":{"prompt_tokens":3,"completion_tokens":4}}')
            return
        await call.head(headers=[("content-type", "text/event-stream")])
        for _ in range(8):
            await asyncio.sleep(0.001)
            await call.chunk(delta("x"))
        await call.chunk(DONE)
        await call.end()

    async def one(port: int, cut_after_s: float | None, body: bytes) -> None:
        async with RawClient(port, post(CHAT, body)) as client:
            try:
                async with asyncio.timeout(cut_after_s):
                    await client.read_all()
            except TimeoutError:
                client.leave()
            else:
                assert (client.status, client.is_complete) == (200, True)

    options: dict[str, Any] = {"policy": {"options": {"fixed": {"in_flight_tokens": 3000}}}}
    async with (
        FakeReplica(behave) as left,
        FakeReplica(behave) as right,
        gateway_for(left, right, **options) as gateway,
        serving(gateway) as port,
    ):
        gate = asyncio.Semaphore(40)

        async def gated() -> None:
            cut_after_s = rng.uniform(0.0, 0.03) if rng.random() < 0.3 else None
            body = chat_body(stream=rng.random() < 0.7, max_tokens=rng.randrange(1, 500))
            async with gate:
                await one(port, cut_after_s, body)

        await asyncio.gather(*(gated() for _ in range(500)))
        await until(lambda: gateway.core.num_in_flight == 0 and gateway.core.num_queued == 0)
        assert_nothing_held(gateway)
        await until(lambda: left.num_running == right.num_running == 0)
        outcomes = [record.outcome for record in gateway.ring._records.values()]
        assert set(outcomes) <= {"ok", "client-left"}
        assert "client-left" in outcomes
        reply = await ask(port, CHAT, BODY)
        assert reply.status == 200


async def test_a_stream_that_ends_with_its_client() -> None:
    """The client leaving in the same instant as the replica's end is one or the other, never both."""
    async with FakeReplica(streams(delta("a"), DONE)) as replica, gateway_for(replica) as gateway:
        request = HandDriven(gateway, CHAT).start(STREAM_BODY)
        await request.until(lambda: len(request.sent) > 1)
        request.disconnect()
        await request.ended()
        assert_nothing_held(gateway)
        assert len(gateway.ring) == 1


async def test_a_server_whose_receive_fails() -> None:
    """It has no client any more: the request ends as if the client had left."""
    async with FakeReplica(hangs()) as replica, gateway_for(replica) as gateway:
        inbox = [{"type": "http.request", "body": BODY, "more_body": False}]

        async def receive() -> Any:
            if inbox:
                return inbox.pop()
            await until(lambda: replica.num_running == 1)
            raise OSError("no such client")

        async def send(message: Any) -> None:
            raise AssertionError("nobody to send to")

        await gateway({"type": "http", "method": "POST", "path": CHAT, "headers": []}, receive, send)
        assert _last_outcome(gateway) == ("client-left", 499)
        assert_nothing_held(gateway)
