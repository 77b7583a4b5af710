"""How soon a replica that hangs is found out, and what isn't mistaken for one."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from gateway import replica_watch
from gateway.app import Gateway
from gateway.replica_watch import SILENT_PROBES, SLOW_PROBES
from tests.support.asgi import HandDriven
from tests.support.fake_replica import Call, FakeReplica, answers, delta, hangs
from tests.support.gateways import BODY, CHAT, STREAM_BODY, assert_nothing_held, gateway_for
from tests.support.serve import until

PROBES: dict[str, Any] = {"probes": {"interval_s": 60.0, "timeout_s": 0.1}}
OFTEN: dict[str, Any] = {"probes": {"interval_s": 0.01, "timeout_s": 0.1}}


@pytest.fixture(autouse=True)
def _suspects_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replica_watch, "SUSPECT_S", 0.02)


@asynccontextmanager
async def waiting_at(gateway: Gateway, first: FakeReplica, *others: FakeReplica) -> AsyncIterator[list[HandDriven]]:
    """Requests, of which at least one waits at the first replica; those that still run are given up at the end."""
    requests: list[HandDriven] = []
    while not first.num_running:
        requests.append(HandDriven(gateway, CHAT).start(BODY))
        await until(lambda: sum(len(replica.received) for replica in (first, *others)) == len(requests))
    yield requests
    for request in requests:
        request.disconnect()
        await request.ended()
    assert_nothing_held(gateway)


async def test_silence_of_probes_and_calls_needs_two_probes_and_no_interval() -> None:
    """Calls that wait are reason enough to look, long before the next probe is due, and then once more at once."""
    async with (
        FakeReplica(hangs()) as hung,
        FakeReplica(answers()) as other,
        gateway_for(hung, other, **PROBES) as gateway,
    ):
        asked = hung.num_health_checks
        hung.is_answering_health = False
        async with waiting_at(gateway, hung, other) as requests:
            await until(lambda: all(request.task is not None and request.task.done() for request in requests))
            assert {request.status for request in requests} == {200}
            assert hung.num_health_checks == asked + SILENT_PROBES
            assert gateway.pool.get("r1").is_hung


async def test_a_long_prefill_is_no_hang() -> None:
    """A replica that answers its probes is looked at more often while its calls hear nothing, and nothing moves."""
    async with (
        FakeReplica(hangs()) as busy,
        FakeReplica(hangs()) as other,
        gateway_for(busy, other, probes={"interval_s": 60.0, "timeout_s": 10.0}) as gateway,
        waiting_at(gateway, busy, other),
    ):
        asked = busy.num_health_checks
        await until(lambda: busy.num_health_checks >= asked + 5)
        assert gateway.pool.get("r1").is_available
        assert busy.num_aborted == other.num_aborted == 0


async def test_a_stream_that_goes_on_is_a_sign_of_life() -> None:
    """A replica too busy for its probes isn't held to have hung as soon while one of its streams is written."""
    goes_on = asyncio.Event()

    async def behave(call: Call) -> None:
        if b"stream" not in call.received.body:
            await call.gone.wait()
            return
        await call.head(headers=[("content-type", "text/event-stream")])
        while not goes_on.is_set() and not call.gone.is_set():
            await call.chunk(delta("a"))
            await asyncio.sleep(0.005)
        await call.end()

    async with FakeReplica(behave) as busy, FakeReplica(behave) as other, gateway_for(busy, other, **OFTEN) as gateway:
        streams: list[HandDriven] = []
        while not busy.num_running:
            streams.append(HandDriven(gateway, CHAT).start(STREAM_BODY))
            await streams[-1].until(lambda: len(streams[-1].sent) > 1)
        while busy.num_running < 2:
            streams.append(HandDriven(gateway, CHAT).start(BODY))
            await until(lambda: busy.num_running + other.num_running == len(streams))
        asked = busy.num_health_checks
        busy.is_answering_health = False
        await until(lambda: gateway.pool.get("r1").is_hung)
        assert busy.num_health_checks >= asked + SLOW_PROBES
        goes_on.set()
        for request in streams:
            request.disconnect()
            await request.ended()
        assert_nothing_held(gateway)


async def test_the_only_replica_of_a_model_is_given_the_usual_time() -> None:
    """Where nobody could take its calls, haste would only turn a slow replica into none."""
    async with (
        FakeReplica(hangs()) as only,
        gateway_for(only, **OFTEN) as gateway,
        waiting_at(gateway, only),
    ):
        only.is_answering_health = False
        asked = only.num_health_checks
        await until(lambda: gateway.pool.get("r1").is_hung)
        assert only.num_health_checks >= asked + SLOW_PROBES


async def test_a_replica_that_is_down_is_looked_at_often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the interval between probes: who waits for its return needn't wait for that."""
    monkeypatch.setattr(replica_watch, "RECHECK_S", 0.02)
    async with FakeReplica(answers()) as replica, gateway_for(replica, **PROBES) as gateway:
        replica.is_healthy = False
        gateway.pool.report_refused("r1")
        await until(lambda: gateway.pool.get("r1").last_error == "its health check failed: status 503 at /health")
        asked = replica.num_health_checks
        await until(lambda: replica.num_health_checks >= asked + 3)
        replica.is_healthy = True
        await until(lambda: gateway.pool.get("r1").is_available)
