"""What is tried again and how often, what speaks against a replica, and how one that hangs is left out."""

import asyncio
import json
import time
from typing import Any

import pytest

from gateway.replica_health import Ejection, EjectionRule, Rotation
from gateway.retry_budget import WINDOW_S, RetryBudget
from tests.support.asgi import HandDriven
from tests.support.fake_replica import Behaviour, Call, FakeReplica, answers, delta, hangs, streams
from tests.support.gateways import BODY, CHAT, STREAM_BODY, assert_nothing_held, gateway_for
from tests.support.serve import free_port, until

QUICK: dict[str, Any] = {"probes": {"interval_s": 0.01, "timeout_s": 0.1}}


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
        bad.behaviour = hangs()
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


async def test_the_head_of_an_answer_ends_a_trial_and_not_what_failed_before() -> None:
    """While the trial's stream goes on others are sent there; when it breaks off, that ejects again, for longer."""
    async with FakeReplica(_reset) as bad, FakeReplica(answers()) as good, gateway_for(bad, good) as gateway:
        replica = gateway.pool.get("r1")
        replica.ejection = Ejection(EjectionRule(num_failures=1, first_s=0.05, longest_s=30.0))
        while replica.is_available:
            await send(gateway)
        breaks = asyncio.Event()

        async def breaks_off(call: Call) -> None:
            await call.head(headers=[("content-type", "text/event-stream")])
            await call.chunk(delta("a"))
            await breaks.wait()
            call.reset()

        bad.behaviour = breaks_off
        good.behaviour = hangs(delta("b"))
        await until(lambda: replica.is_available)
        seen = len(bad.received)
        requests: list[HandDriven] = []
        while len(bad.received) < seen + 3:
            request = HandDriven(gateway, CHAT).start(STREAM_BODY)
            requests.append(request)
            await request.until(lambda request=request: len(request.sent) > 1)  # type: ignore[misc]
            assert len(requests) < 20
        breaks.set()
        await until(lambda: not replica.is_available)
        assert replica.ejection.until_s is not None
        assert replica.ejection.until_s - time.monotonic() == pytest.approx(0.1, abs=0.1)
        for request in requests:
            request.disconnect()
        await asyncio.gather(*(request.ended() for request in requests), return_exceptions=True)
        assert_nothing_held(gateway)


async def test_with_every_replica_on_trial_none_is_held_to_one_request() -> None:
    """Long ones hold up nobody where there is no replica that has proved itself."""
    async with FakeReplica(_reset) as a, FakeReplica(_reset) as b, gateway_for(a, b) as gateway:
        replicas = gateway.pool.all()
        for replica in replicas:
            replica.ejection = Ejection(EjectionRule(num_failures=1, first_s=0.05, longest_s=0.05))
            gateway.pool.report_failure(replica.replica_id)
        await until(lambda: all(each.ejection.state(time.monotonic()) is Rotation.TRIAL for each in replicas))
        a.behaviour = b.behaviour = hangs()
        requests = [HandDriven(gateway, CHAT).start(BODY) for _ in range(6)]
        await until(lambda: a.num_running + b.num_running == 6)
        for request in requests:
            request.disconnect()
            await request.ended()
        assert_nothing_held(gateway)


async def test_the_only_available_replica_is_not_held_to_one_request() -> None:
    """On trial beside one that is down, it takes what comes; once the other is back, it is tried again."""
    async with FakeReplica(hangs()) as a, FakeReplica(hangs()) as b, gateway_for(a, b, **QUICK) as gateway:
        replica = gateway.pool.get("r1")
        replica.ejection = Ejection(EjectionRule(num_failures=1, first_s=0.01, longest_s=0.01))
        gateway.pool.report_failure("r1")
        await until(lambda: replica.max_in_flight_tokens == 1)
        b.is_healthy = False
        await until(lambda: replica.max_in_flight_tokens is None)
        requests = [HandDriven(gateway, CHAT).start(BODY) for _ in range(3)]
        await until(lambda: a.num_running == 3)
        b.is_healthy = True
        await until(lambda: replica.max_in_flight_tokens == 1)
        for request in requests:
            request.disconnect()
            await request.ended()
        assert_nothing_held(gateway)


async def test_a_crash_costs_what_was_in_flight_and_not_the_queue() -> None:
    """Who finds nobody listening gets 502, and marks the replica down: who waits goes on waiting, and is served."""
    one_at_a_time: dict[str, Any] = {"policy": {"options": {"fixed": {"in_flight_tokens": 1}}}}
    async with FakeReplica(hangs()) as replica, gateway_for(replica, **one_at_a_time) as gateway:
        requests = [HandDriven(gateway, CHAT).start(BODY) for _ in range(8)]
        await until(lambda: replica.num_running == 1)
        await until(lambda: gateway.core.num_queued == 7)
        asked = replica.num_health_checks
        # It crashes: what runs is reset, and nobody listens.
        upstream = gateway.upstreams.of("r1", replica.url)
        port, upstream.port = upstream.port, free_port()
        replica.is_healthy = False
        replica.behaviour = answers()
        for connection in tuple(upstream._open):
            connection.abort()
        await until(lambda: not gateway.pool.get("r1").is_available)
        await until(lambda: replica.num_health_checks > asked)  # long before the next one was due
        lost = [request for request in requests if request.task is not None and request.task.done()]
        assert [request.status for request in lost] == [502] * len(lost)
        assert len(lost) <= 2
        assert gateway.core.num_queued == 8 - len(lost)
        # It is back.
        upstream.port, replica.is_healthy = port, True
        gateway.pool._watchers["r1"]._wanted.set()
        for request in requests:
            await request.ended()
        assert [request.status for request in requests].count(200) == 8 - len(lost)
        assert_nothing_held(gateway)


async def test_what_waits_for_a_hung_replica_goes_elsewhere() -> None:
    """Once its health checks go unanswered: calls without a byte are closed and sent on; a stream is left alone."""
    async with (
        FakeReplica(hangs()) as hung,
        FakeReplica(hangs()) as other,
        gateway_for(hung, other, **QUICK) as gateway,
    ):
        requests: list[HandDriven] = []
        while hung.num_running < 3:
            requests.append(HandDriven(gateway, CHAT).start(BODY))
            await until(lambda: hung.num_running + other.num_running == len(requests))
        hung.behaviour = other.behaviour = hangs(delta("a"))
        streaming: list[HandDriven] = []
        while hung.num_running < 4:
            streaming.append(HandDriven(gateway, CHAT).start(STREAM_BODY))
            await streaming[-1].until(lambda: len(streaming[-1].sent) > 1)
        at_hung = hung.num_running - 1
        other.behaviour = answers(b'{"ok":1}')
        hung.is_answering_health = False
        await until(lambda: hung.num_aborted == at_hung)
        done = [request for request in requests if request.task is not None and request.task.done()]
        await until(lambda: sum(request.task.done() for request in requests if request.task is not None) == at_hung)
        done = [request for request in requests if request.task is not None and request.task.done()]
        assert {(request.status, request.body) for request in done} == {(200, b'{"ok":1}')}
        assert hung.num_running == 1
        for request in (*requests, *streaming):
            request.disconnect()
            await request.ended()
        assert_nothing_held(gateway)


@pytest.mark.parametrize("limits", [{"max_attempts": 1}, {"retry_ratio": 0.0, "min_retries_per_s": 0.0}])
async def test_what_may_not_be_tried_again_stays_with_a_hung_replica(limits: dict[str, Any]) -> None:
    """Attempts and the budget bound this as every other retry; then waiting is all that is left."""
    async with (
        FakeReplica(hangs()) as hung,
        FakeReplica(hangs()) as other,
        gateway_for(hung, other, limits=limits, **QUICK) as gateway,
    ):
        requests: list[HandDriven] = []
        while not hung.num_running:
            requests.append(HandDriven(gateway, CHAT).start(BODY))
            await until(lambda: hung.num_running + other.num_running == len(requests))
        hung.is_answering_health = False
        await until(lambda: gateway.pool.get("r1").is_hung)
        asked = hung.num_health_checks
        await until(lambda: hung.num_health_checks > asked + 1)
        assert (hung.num_running, hung.num_aborted) == (1, 0)
        for request in requests:
            request.disconnect()
            await request.ended()
        assert_nothing_held(gateway)


async def test_a_replica_that_says_it_is_unwell_may_finish_what_it_has() -> None:
    """One that is shutting down answers its health checks with 503, and its calls all the same."""
    async with FakeReplica(hangs()) as a, FakeReplica(hangs()) as b, gateway_for(a, b, **QUICK) as gateway:
        requests: list[HandDriven] = []
        while not a.num_running:
            requests.append(HandDriven(gateway, CHAT).start(BODY))
            await until(lambda: a.num_running + b.num_running == len(requests))
        a.is_healthy = False
        await until(lambda: not gateway.pool.get("r1").is_available)
        asked = a.num_health_checks
        await until(lambda: a.num_health_checks > asked + 1)
        assert (a.num_running, a.num_aborted) == (1, 0)
        for request in requests:
            request.disconnect()
            await request.ended()
        assert_nothing_held(gateway)


@pytest.mark.parametrize("status", [600, 999, 0])
async def test_a_status_that_does_not_exist_is_no_answer(status: int) -> None:
    """502 of ours; a client could make nothing of it."""

    async def behave(call: Call) -> None:
        await call.send(b"HTTP/1.1 %03d X\r\ncontent-length: 2\r\n\r\n{}" % status)

    async with FakeReplica(behave) as replica, gateway_for(replica) as gateway:
        request = await send(gateway)
        assert request.status == 502
        assert json.loads(request.body)["error"]["code"] == "upstream_protocol_error"
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
