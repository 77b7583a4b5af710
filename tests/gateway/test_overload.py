"""What clients see when more comes than can be served."""

import json
from typing import Any

from tests.support.asgi import HandDriven
from tests.support.fake_replica import FakeReplica, hangs
from tests.support.gateways import CHAT, assert_nothing_held, chat_body, gateway_for
from tests.support.serve import until

LANE = b"x-tailgate-lane"


def _page(gateway: Any, name: str) -> list[str]:
    page = gateway.metrics.render()[0].decode()
    return [line for line in page.splitlines() if line.startswith(f"{name}{{") and not line.endswith(" 0.0")]


async def test_bodies_that_wait_are_bounded_in_bytes() -> None:
    """What a client sent is what counts; one alone may be larger."""
    policy = {"options": {"fixed": {"in_flight_tokens": 1}, "queue": {"max_bytes": 3000}}}
    async with FakeReplica(hangs()) as replica, gateway_for(replica, policy=policy) as gateway:
        body = chat_body(user="x" * 2000)
        running = HandDriven(gateway, CHAT).start(body)
        await until(lambda: replica.num_running == 1)
        waiting = HandDriven(gateway, CHAT).start(body)
        await until(lambda: gateway.core.num_queued == 1)
        refused = HandDriven(gateway, CHAT).start(body)
        await refused.ended()
        headers = dict(refused.headers)
        assert (refused.status, headers[b"x-tailgate-reason"]) == (429, b"queue-full")
        assert headers[LANE] == b"interactive", "what is shed is counted by lane"
        assert _page(gateway, "tailgate_requests_turned_away_total") == [
            'tailgate_requests_turned_away_total{lane="interactive",outcome="rejected",reason="queue-full"} 1.0'
        ]
        for request in (waiting, running):
            request.disconnect()
            await request.ended()
        assert_nothing_held(gateway)


async def test_the_ladder_downgrades_tells_so_and_turns_away() -> None:
    """By header and metrics; what its caller declared interactive still waits."""
    policy = {
        "shedding": "ladder",
        "options": {
            "fixed": {"in_flight_tokens": 1},
            "cost": {"prefill_s_per_token": 1e-9, "decode_s_per_token": 0.99},
            "ladder": {"step_s": 1000.0, "interactive_step_s": 5.0, "max_background_s": 1.0},
        },
    }
    async with FakeReplica(hangs()) as replica, gateway_for(replica, policy=policy) as gateway:
        body = chat_body(max_tokens=16)
        running = HandDriven(gateway, CHAT).start(body)
        await until(lambda: replica.num_running == 1)
        declared = [HandDriven(gateway, CHAT, headers=[(LANE, b"interactive")]).start(body)]
        await until(lambda: gateway.core.num_queued == 1)
        downgraded = HandDriven(gateway, CHAT).start(body)
        await until(lambda: gateway.core.num_queued == 2)
        refused = HandDriven(gateway, CHAT).start(body)
        await refused.ended()
        headers = dict(refused.headers)
        assert (refused.status, headers[b"x-tailgate-reason"], headers[LANE]) == (429, b"overload", b"interactive")
        assert json.loads(refused.body)["error"]["type"] == "rate_limit_error"
        assert int(headers[b"retry-after"]) == 32, "two requests of almost sixteen seconds"
        declared.append(HandDriven(gateway, CHAT, headers=[(LANE, b"interactive")]).start(body))
        await until(lambda: gateway.core.num_queued == 3)
        for request in (running, *declared, downgraded):
            request.disconnect()
            await request.ended()
        (record,) = [one for one in gateway.ring._records.values() if one.own_lane is not one.lane and one.own_lane]
        assert (record.lane, record.own_lane) == ("background", "interactive")
        assert record.reason is not None
        assert _page(gateway, "tailgate_requests_downgraded_total") == [
            'tailgate_requests_downgraded_total{lane="interactive"} 1.0'
        ]
        assert_nothing_held(gateway)
