"""Memory and slots in proportion to what is being done, and back when it is over."""

import asyncio
import gc
import socket
import sys

import pytest

from gateway import upstream
from gateway.dead_peers import UNACKNOWLEDGED_S, notice
from gateway.server import bind
from gateway.upstream import Exchange
from tests.support.asgi import HandDriven
from tests.support.fake_replica import Call, FakeReplica, answers, delta, hangs
from tests.support.gateways import CHAT, STREAM_BODY, assert_nothing_held, chat_body, gateway_for
from tests.support.serve import until


async def test_a_prompt_is_not_held_while_its_answer_streams() -> None:
    """Nobody sends it again once the answer has begun: minutes of streams needn't keep megabytes of prompts."""
    async with FakeReplica(hangs(delta("a"))) as replica, gateway_for(replica) as gateway:
        body = STREAM_BODY + b" " * 10_000
        held_here = sys.getrefcount(body)
        request = HandDriven(gateway, CHAT).start(body)
        await request.until(lambda: len(request.sent) > 1)
        gc.collect()
        assert sys.getrefcount(body) == held_here
        assert not [each for each in gc.get_objects() if isinstance(each, Exchange) and each._request]
        request.disconnect()
        await request.ended()
        assert_nothing_held(gateway)


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/embeddings"])
async def test_slots_are_never_exceeded(path: str) -> None:
    """Whatever the route: so many requests at once on a replica, the others wait, all are served."""
    most, release = 0, asyncio.Event()

    async def behave(call: Call) -> None:
        nonlocal most
        most = max(most, replica.num_running)
        await release.wait()
        await call.whole(b"{}")

    body = chat_body() if "chat" in path else b'{"model":"m1","input":"a"}'
    async with FakeReplica(behave) as replica, gateway_for(replica, replica={"max_in_flight_requests": 2}) as gateway:
        requests = [HandDriven(gateway, path).start(body) for _ in range(7)]
        await until(lambda: replica.num_running == 2 and gateway.core.num_queued == 5)
        release.set()
        for request in requests:
            await request.ended()
        assert {request.status for request in requests} == {200}
        assert most == 2
        assert_nothing_held(gateway)


async def test_a_held_model_holds_no_other() -> None:
    """A full replica of one model leaves the other model's free."""
    async with (
        FakeReplica(hangs()) as full,
        FakeReplica(answers(), models=("m2",)) as free,
        gateway_for(full, free, replica={"max_in_flight_requests": 1}) as gateway,
    ):
        held = [HandDriven(gateway, CHAT).start(chat_body()) for _ in range(3)]
        await until(lambda: full.num_running == 1 and gateway.core.num_queued == 2)
        other = HandDriven(gateway, CHAT).start(chat_body(model="m2"))
        await other.ended()
        assert other.status == 200
        for request in held:
            request.disconnect()
            await request.ended()
        assert_nothing_held(gateway)


async def test_connections_are_used_again() -> None:
    """A hundred requests one after the other, streams or not, take one connection."""
    async with FakeReplica(answers()) as replica, gateway_for(replica) as gateway:
        before = replica.num_connections
        for number in range(100):
            request = HandDriven(gateway, CHAT).start(chat_body(stream=bool(number % 2)))
            await request.ended()
        assert {received.connection for received in replica.received} == {replica.received[0].connection}
        assert replica.num_connections <= before + 2


async def test_peers_that_are_gone_without_a_word_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The system asks after clients and replicas alike; else a lost machine would hold a slot for long."""
    made: list[tuple[int, int]] = []

    def settings(sock: socket.socket) -> tuple[int, int]:
        alive = sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        return alive, sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT)

    def spy(sock: socket.socket, *, unacknowledged_s: int) -> None:
        notice(sock, unacknowledged_s=unacknowledged_s)
        made.append(settings(sock))

    monkeypatch.setattr(upstream, "notice", spy)
    async with FakeReplica(answers()) as replica, gateway_for(replica) as gateway:
        request = HandDriven(gateway, CHAT).start(chat_body())
        await request.ended()
        assert request.status == 200
    with bind("127.0.0.1", 0) as listening:
        _, writer = await asyncio.open_connection(*listening.getsockname())
        accepted, _ = listening.accept()
        with accepted:
            made.append(settings(accepted))
        writer.close()
    *of_replicas, of_client = made  # its probes go over connections of the same kind
    assert set(of_replicas) == {(1, UNACKNOWLEDGED_S * 1000)}
    assert of_client == (1, 0)
