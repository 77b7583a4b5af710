"""What is tried again and how often, what speaks against a replica, and how one that hangs is left out."""

import asyncio
from typing import Any

import pytest

from gateway.replica_health import Ejection, EjectionRule
from gateway.retry_budget import WINDOW_S, RetryBudget
from tests.support.asgi import HandDriven
from tests.support.fake_replica import Behaviour, Call, FakeReplica, answers, delta, hangs, streams
from tests.support.gateways import BODY, CHAT, STREAM_BODY, assert_nothing_held, gateway_for
from tests.support.serve import until


def says(status: int) -> Behaviour:
    """An answer with this status."""

    async def behave(call: Call) -> None:
        await call.whole(b'{"said":1}', status=status)

    return behave


async def _reset(call: Call) -> None:
    call.reset()


async def send(gateway: Any, body: bytes = BODY) -> HandDriven:
    request = HandDriven(gateway, CHAT).start(body)
    await request.ended()
    return request


def test_retries_are_a_share_of_requests() -> None:
    """With no floor, one retry for each five requests; what is refused isn't counted."""
    budget = RetryBudget(ratio=0.2, min_per_s=0.0)
    assert not budget.take(100.0)
    allowed = 0
    for _ in range(50):
        budget.requested(100.0)
        allowed += budget.take(100.0)
    assert allowed == 10


def test_a_few_retries_are_always_allowed_and_come_back_with_time() -> None:
    """A quiet gateway may retry; a burst uses the floor up, and it fades in again."""
    budget = RetryBudget(ratio=0.2, min_per_s=0.5)
    assert [budget.take(0.0) for _ in range(7)] == [True] * 5 + [False] * 2
    assert not budget.take(0.1)
    assert [budget.take(WINDOW_S) for _ in range(4)] == [True] * 3 + [False]
    assert budget.take(10 * WINDOW_S)


async def test_an_outage_is_not_multiplied() -> None:
    """When every replica fails, calls stay within the budget; each client gets the failure."""
    limits: dict[str, Any] = {"limits": {"retry_ratio": 0.2, "min_retries_per_s": 0.0}}
    async with FakeReplica(_reset) as a, FakeReplica(_reset) as b, gateway_for(a, b, **limits) as gateway:
        for _ in range(30):
            assert (await send(gateway)).status == 502
        assert len(a.received) + len(b.received) <= 30 * 1.2
        assert_nothing_held(gateway)


async def test_without_budget_a_busy_answer_is_passed_on() -> None:
    """503 of the replica as it is, with its body."""
    limits: dict[str, Any] = {"limits": {"retry_ratio": 0.0, "min_retries_per_s": 0.0}}
    async with FakeReplica(says(503)) as a, FakeReplica(says(503)) as b, gateway_for(a, b, **limits) as gateway:
        request = await send(gateway)
        assert (request.status, request.body) == (503, b'{"said":1}')
        assert len(a.received) + len(b.received) == 1
        assert_nothing_held(gateway)


@pytest.mark.parametrize("status", [400, 401, 404, 408, 409, 413, 422, 429, 499, 501, 503])
async def test_statuses_that_speak_against_nobody(status: int) -> None:
    """However often a caller provokes them, both replicas stay."""
    async with FakeReplica(says(status)) as a, FakeReplica(says(status)) as b, gateway_for(a, b) as gateway:
        for _ in range(8):
            assert (await send(gateway)).status == status
        assert gateway.pool.get("r1").is_available
        assert gateway.pool.get("r2").is_available
        tried = len(a.received) + len(b.received)
        assert tried == (16 if status in (429, 503) else 8)
        assert_nothing_held(gateway)


async def test_a_4xx_does_not_clear_a_replica_either() -> None:
    """Two failures, a refusal, and a third failure: out."""
    async with FakeReplica(says(500)) as bad, FakeReplica(answers()) as good, gateway_for(bad, good) as gateway:
        for num_sent, status in enumerate((500, 500, 422, 500)):
            assert gateway.pool.get("r1").is_available
            bad.behaviour = says(status)
            while len(bad.received) == num_sent:
                await send(gateway)
        assert not gateway.pool.get("r1").is_available


@pytest.mark.parametrize("fault", [_reset, hangs(), says(500)])
async def test_a_replica_that_fails_is_left_out_though_its_health_is_green(fault: Behaviour) -> None:
    """Resets, first-byte timeouts, 500s: out after three in a row, back through one trial at a time."""
    timeouts: dict[str, Any] = {"timeouts": {"first_byte_s": 0.05}}
    async with FakeReplica(fault) as bad, FakeReplica(answers()) as good, gateway_for(bad, good, **timeouts) as gateway:
        replica = gateway.pool.get("r1")
        replica.ejection = Ejection(EjectionRule(num_failures=3, first_s=0.3, longest_s=0.3))
        for _ in range(40):
            await send(gateway)
            if not replica.is_available:
                break
        assert not replica.is_available
        assert replica.is_healthy
        seen = len(bad.received)
        assert seen == 3
        for _ in range(5):
            assert (await send(gateway)).status == 200
        assert len(bad.received) == seen
        # The trial fails: out again, after one request.
        await until(lambda: replica.is_available)
        while len(bad.received) == seen:
            await send(gateway)
        assert not replica.is_available
        assert len(bad.received) == seen + 1
        bad.behaviour = answers()
        await until(lambda: replica.is_available)
        while len(bad.received) == seen + 1:
            await send(gateway)
        await until(lambda: replica.max_in_flight_tokens is None)
        assert_nothing_held(gateway)


async def test_on_trial_one_request_goes_and_the_others_stay_away() -> None:
    """Half-open: while the trial runs, nothing else is sent there."""
    async with FakeReplica(_reset) as bad, FakeReplica(answers()) as good, gateway_for(bad, good) as gateway:
        replica = gateway.pool.get("r1")
        replica.ejection = Ejection(EjectionRule(num_failures=1, first_s=0.05, longest_s=0.05))
        while replica.is_available:
            await send(gateway)
        bad.behaviour = hangs(delta("a"))
        await until(lambda: replica.is_available)
        seen = len(bad.received)
        trials = []
        while len(bad.received) == seen:
            trials.append(HandDriven(gateway, CHAT).start(STREAM_BODY))
            await asyncio.sleep(0.01)
        for _ in range(10):
            assert (await send(gateway)).status == 200
        assert len(bad.received) == seen + 1
        for request in trials:
            request.disconnect()
            await request.ended()
        assert_nothing_held(gateway)


async def test_a_first_byte_timeout_is_tried_elsewhere_and_a_byte_ends_all_retries() -> None:
    """Before the first byte another replica may answer; after it nothing is sent twice."""
    timeouts: dict[str, Any] = {"timeouts": {"first_byte_s": 0.05, "idle_s": 0.05}}
    async with (
        FakeReplica(hangs()) as silent,
        FakeReplica(hangs()) as other,
        gateway_for(silent, other, **timeouts) as gateway,
    ):

        async def first_hangs(call: Call) -> None:
            silent.behaviour = other.behaviour = streams(delta("b"))
            await hangs()(call)

        silent.behaviour = other.behaviour = first_hangs
        request = await send(gateway, STREAM_BODY)
        assert (request.status, request.body) == (200, delta("b"))
        assert [len(silent.received), len(other.received)] == [1, 1]
        silent.behaviour = other.behaviour = hangs(delta("a"))
        request = HandDriven(gateway, CHAT).start(STREAM_BODY)
        with pytest.raises(Exception, match="sent nothing"):
            await request.ended()
        assert (request.body[: len(delta("a"))], request.is_complete) == (delta("a"), False)
        assert len(silent.received) + len(other.received) == 3
        assert_nothing_held(gateway)


async def test_light_routes_are_tried_elsewhere_too() -> None:
    """A replica that fails costs a retry; when none is left, the failure is told in the API's shape."""
    async with (
        FakeReplica(_reset, owned_by="vllm") as bad,
        FakeReplica(answers(b'{"count":1}'), owned_by="vllm") as good,
        gateway_for(bad, good) as gateway,
    ):
        request = HandDriven(gateway, "/detokenize").start(b'{"model":"m1","tokens":[1]}')
        await request.ended()
        assert (request.status, request.body) == (200, b'{"count":1}')
        good.behaviour = _reset
        request = HandDriven(gateway, "/detokenize").start(b'{"model":"m1","tokens":[1]}')
        await request.ended()
        assert request.status == 502
        for replica in gateway.pool.all():
            replica.is_available = False
        request = HandDriven(gateway, "/detokenize").start(b'{"model":"m1","tokens":[1]}')
        await request.ended()
        assert request.status == 503
        assert_nothing_held(gateway)
