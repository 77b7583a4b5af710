"""Deadlines of callers, objectives of lanes, and who counts as served well."""

import json
from typing import Any

import pytest

from gateway import goodput
from gateway.attribution import Layer, Record
from gateway.config import parse_config
from gateway.config_errors import ConfigError
from gateway.metrics import Metrics
from gateway.summary import summary
from policies.objectives import NO_OBJECTIVE, Objective
from policies.types import Lane
from tests.support.asgi import HandDriven
from tests.support.fake_replica import FakeReplica, answers, hangs
from tests.support.gateways import BODY, CHAT, STREAM_BODY, assert_nothing_held, gateway_for
from tests.support.serve import until

ONE_AT_A_TIME: dict[str, Any] = {"policy": {"options": {"fixed": {"in_flight_tokens": 1}}}}
DEADLINE = b"x-tailgate-deadline-ms"
MESSAGES = {"model": "m1", "max_tokens": 5, "messages": [{"role": "user", "content": "hi"}]}


def _judged(metrics: Metrics) -> dict[tuple[str, str], float]:
    page = metrics.render()[0].decode()
    lines = [line for line in page.splitlines() if line.startswith("tailgate_requests_judged_total{")]
    return {(line.split('"')[1], line.split('"')[3]): float(line.split()[-1]) for line in lines}


async def test_what_waits_past_its_deadline_is_answered_504() -> None:
    """Without a call to the replica, with reason and Retry-After; it counts as not served."""
    async with FakeReplica(hangs()) as replica, gateway_for(replica, **ONE_AT_A_TIME) as gateway:
        running = HandDriven(gateway, CHAT, headers=[(DEADLINE, b"1")]).start(BODY)
        await until(lambda: replica.num_running == 1)
        late = HandDriven(gateway, CHAT, headers=[(DEADLINE, b"30")]).start(BODY)
        await late.ended()
        headers = dict(late.headers)
        assert (late.status, headers[b"x-tailgate-reason"], headers[b"x-tailgate-lane"]) == (
            504,
            b"deadline",
            b"interactive",
        )
        assert int(headers[b"retry-after"]) >= 1
        error = json.loads(late.body)["error"]
        assert (error["type"], error["code"]) == ("timeout_error", "deadline")
        assert [record.outcome for record in gateway.ring._records.values()] == ["evicted"]
        assert _judged(gateway.metrics) == {("interactive", "not-served"): 1}
        assert replica.num_running == 1, "what a replica has is left to go on"
        running.disconnect()
        await running.ended()
        assert_nothing_held(gateway)


async def test_a_deadline_that_is_kept_changes_nothing() -> None:
    """The answer is the replica's, the header stays here, and the request counts as served well."""
    async with FakeReplica(answers()) as replica, gateway_for(replica) as gateway:
        request = HandDriven(gateway, CHAT, headers=[(DEADLINE, b" 60000 ")]).start(STREAM_BODY)
        await request.ended()
        assert request.status == 200
        assert replica.received[-1].header(DEADLINE.decode()) == []
        assert _judged(gateway.metrics) == {("interactive", "met"): 1}


@pytest.mark.parametrize("value", [b"0", b"-5", b"1.5", b"soon", b"", b"999999999", "\u0665".encode()])
@pytest.mark.parametrize("path", [CHAT, "/v1/messages"])
async def test_a_bad_deadline(path: str, value: bytes) -> None:
    """400 that names the header, in the shape of the API that was called; nothing is sent on."""
    async with FakeReplica(answers()) as replica, gateway_for(replica) as gateway:
        request = HandDriven(gateway, path, headers=[(DEADLINE, value)]).start(json.dumps(MESSAGES).encode())
        await request.ended()
        answer = json.loads(request.body)
        assert request.status == 400
        assert "x-tailgate-deadline-ms" in answer["error"]["message"]
        if path == CHAT:
            assert answer["error"]["param"] == "x-tailgate-deadline-ms"
        else:
            assert answer["type"] == "error"
        assert replica.num_running == 0


async def test_the_wait_of_all_ends_before_a_late_deadline() -> None:
    """A deadline makes nobody wait longer than `timeouts.queue_s`."""
    config = {**ONE_AT_A_TIME, "timeouts": {"queue_s": 0.05}}
    async with FakeReplica(hangs()) as replica, gateway_for(replica, **config) as gateway:
        running = HandDriven(gateway, CHAT).start(BODY)
        await until(lambda: replica.num_running == 1)
        late = HandDriven(gateway, CHAT, headers=[(DEADLINE, b"60000")]).start(BODY)
        await late.ended()
        assert (late.status, dict(late.headers)[b"x-tailgate-reason"]) == (503, b"queue-timeout")
        running.disconnect()
        await running.ended()


def _record(**fields: Any) -> Record:
    """Six seconds in all."""
    record = Record("tg-1", 10.0, route="chat", model="m", **fields)
    record.enter(Layer.QUEUE, 10.5)
    record.finish(16.0)
    return record


@pytest.mark.parametrize(
    ("fields", "objective", "result"),
    [
        ({"ttft_s": 1.0, "tpot_s": 0.1}, Objective(1.0, 0.1, 6.0), "met"),
        ({"ttft_s": 1.1, "tpot_s": 0.2}, Objective(1.0, 0.1, 5.0), "ttft"),
        ({"ttft_s": 1.0, "tpot_s": 0.2}, Objective(1.0, 0.1, 5.0), "tpot"),
        ({"ttft_s": 1.0}, Objective(1.0, 0.1, 5.0), "e2e"),
        ({}, Objective(ttft_s=0.1), "met"),
        ({"ttft_s": 3.0, "first_token_by_s": 12.0}, NO_OBJECTIVE, "ttft"),
        ({"ttft_s": 3.0, "first_token_by_s": 14.0}, Objective(ttft_s=1.0), "met"),
        ({"outcome": "rejected"}, Objective(ttft_s=1.0), "not-served"),
        ({"outcome": "evicted"}, Objective(e2e_s=100.0), "not-served"),
        ({"outcome": "failed", "ttft_s": 0.1}, Objective(ttft_s=1.0), "not-served"),
        ({"outcome": "bad-request"}, Objective(ttft_s=1.0), None),
        ({"outcome": "client-left"}, Objective(ttft_s=5.0), "ttft"),
        ({"outcome": "client-left"}, Objective(ttft_s=7.0), None),
        ({"outcome": "client-left", "ttft_s": 1.0}, Objective(ttft_s=5.0), None),
    ],
)
def test_what_counts_as_served_well(fields: dict[str, Any], objective: Objective, result: str | None) -> None:
    """Everything that its objectives name; shed and failed are misses, a client's own leaving is none by itself."""
    assert goodput.result(_record(**fields), objective) == result


def test_goodput_is_counted_by_the_lane_that_a_request_had_by_right() -> None:
    """Lanes without objectives aren't judged; one that overload moved is held to those of its own lane."""
    metrics = Metrics()
    metrics.observe(_record(lane=Lane.LONG, ttft_s=1.0))
    assert _judged(metrics) == {}
    metrics.objectives = {Lane.STANDARD: Objective(ttft_s=2.0)}
    metrics.observe(_record(lane=Lane.LONG, ttft_s=1.0))
    metrics.observe(_record(lane=Lane.STANDARD, ttft_s=1.0))
    metrics.observe(_record(lane=Lane.BACKGROUND, own_lane=Lane.STANDARD, ttft_s=9.0))
    metrics.observe(_record(outcome="rejected", reason="requests-per-min"))
    assert _judged(metrics) == {("standard", "met"): 1, ("standard", "ttft"): 1}


def test_objectives_in_a_configuration() -> None:
    """They reach the policy, are shown, and a wrong one is an error that names it."""
    replica = {"url": "http://127.0.0.1:8001"}
    given = {"interactive": {"ttft_s": 1.5, "tpot_s": 0.1}, "long": {"e2e_s": 600.0}}
    config = parse_config({"replicas": [replica], "policy": {"objectives": given}}, source="test")
    assert config.policy.spec().objectives == {Lane.INTERACTIVE: Objective(1.5, 0.1), Lane.LONG: Objective(e2e_s=600.0)}
    assert "objective interactive  ttft_s 1.5, tpot_s 0.1\nobjective long  e2e_s 600\n" in summary(config)
    assert "objective none" in summary(parse_config({"replicas": [replica]}, source="test"))
    bad: list[dict[str, Any]] = [{"interactive": {"ttft_s": 0}}, {"short": {}}, {"long": {"ttft": 1.0}}]
    for wrong in bad:
        with pytest.raises(ConfigError) as caught:
            parse_config({"replicas": [replica], "policy": {"objectives": wrong}}, source="test")
        assert "policy.objectives." in caught.value.problems[0]
