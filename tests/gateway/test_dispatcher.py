"""The shell of the core: performs its effects, wakes it in time, and gives back each thing once."""

import asyncio
import dataclasses
import logging
from typing import Any

import pytest

from gateway.dispatcher import Dispatcher
from gateway.overload_errors import Evicted, Overloaded
from gateway.request import Request
from policies.config import PolicySpec, build_policy
from policies.dispatch import DispatchCore
from policies.lifecycle import LifecycleError
from policies.types import Outcome, Reason, Sample, WantCapacity
from tests.support.asgi import HandDriven
from tests.support.fake_replica import FakeReplica, answers
from tests.support.gateways import BODY, CHAT, assert_nothing_held, gateway_for


@dataclasses.dataclass
class FakeView:
    """A replica as the core sees it."""

    replica_id: str = "r1"
    models: frozenset[str] = frozenset({"m1"})
    features: frozenset[str] = frozenset()
    is_available: bool = True
    max_in_flight_tokens: int | None = 100
    kv_capacity_tokens: int | None = None
    max_prefill_tokens: int | None = None
    slice_block_tokens: int | None = None
    max_in_flight_requests: int | None = None


class Grants:
    """Grants what the test wants; remembers what was asked."""

    def __init__(self, dispatcher_of: list[Dispatcher], *, at_once: bool = True) -> None:
        self._dispatcher_of = dispatcher_of
        self.at_once = at_once
        self.wanted: list[WantCapacity] = []

    def start(self, on_grant: Any) -> None: ...

    def want(self, want: WantCapacity) -> None:
        self.wanted.append(want)
        if self.at_once:
            self._dispatcher_of[0].capacity_granted(want.replica_id, None)

    async def aclose(self) -> None: ...


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def _dispatcher(*, at_once: bool = True) -> tuple[Dispatcher, Grants, Clock]:
    of: list[Dispatcher] = []
    clock, grants = Clock(), Grants(of, at_once=at_once)
    options = {"output": {"prior_tokens": 10}}
    dispatcher = Dispatcher(DispatchCore(build_policy(PolicySpec(options=options))), clock=clock, capacity=grants)
    of.append(dispatcher)
    return dispatcher, grants, clock


def _request(name: str, *, prompt_tokens: int = 60, deadline_s: float | None = None) -> Request:
    return Request(name, 100.0, "m1", "", "chat", None, prompt_tokens, None, True, deadline_s)


async def test_dispatch_waits_for_room_and_for_grants() -> None:
    """The first goes when capacity is granted, the second when the first gives its slot back."""
    dispatcher, grants, _ = _dispatcher(at_once=False)
    dispatcher.replica_changed(FakeView())
    with dispatcher.place(_request("a")) as first:
        assert first.call is None
        assert [want.replica_id for want in grants.wanted] == ["r1"]
        waiting = asyncio.create_task(first.next_call())
        await asyncio.sleep(0)
        dispatcher.capacity_granted("r1", None)
        assert (await waiting).replica_id == "r1"
        with dispatcher.place(_request("b")) as second:
            assert dispatcher.core.num_queued == 1
            first.first_token()
            first.progress(3)
            first.progress(40)
            assert dispatcher.core.in_flight_tokens("r1") == 100
            first.end_call(Outcome.SUCCESS)
            assert (await second.next_call()).request.request_id == "b"
    dispatcher.core.check_integrity()
    assert (dispatcher.core.num_in_flight, dispatcher.core.num_queued) == (0, 0)
    dispatcher.close()


async def test_a_slot_is_given_back_once() -> None:
    """A second end of the same call is a fault that shows, and the scope's own end isn't one."""
    dispatcher, _, _ = _dispatcher()
    dispatcher.replica_changed(FakeView())
    with dispatcher.place(_request("a")) as place:
        call = await place.next_call()
        place.end_call(Outcome.SUCCESS)
        with pytest.raises(LifecycleError):
            dispatcher.end_call(place, call, Outcome.SUCCESS, Sample())
    with pytest.raises(AssertionError, match="no call"):
        place.end_call(Outcome.SUCCESS)
    dispatcher.close()


async def test_the_timer_wakes_the_core_for_deadlines() -> None:
    """A request past its deadline is evicted without anything else happening, the earliest deadline first."""
    dispatcher, _, clock = _dispatcher()
    dispatcher.replica_changed(FakeView())
    with dispatcher.place(_request("running")):
        late = dispatcher.place(_request("late", deadline_s=100.5))
        soon = dispatcher.place(_request("soon", deadline_s=100.02))
        with late, soon:
            clock.now_s = 100.03
            with pytest.raises(Evicted) as caught:
                await soon.next_call()
            assert caught.value.reason == Reason.QUEUE_TIMEOUT
            assert dispatcher.core.num_queued == 1
    assert dispatcher.core.num_queued == 0
    dispatcher.close()


async def test_turned_away() -> None:
    """A place that can't be had raises on entry, and nothing is remembered of it."""
    dispatcher, _, _ = _dispatcher()
    with pytest.raises(Overloaded) as caught, dispatcher.place(_request("a")):
        pass
    assert (caught.value.status, caught.value.reason) == (503, Reason.NO_REPLICA)
    dispatcher.core.check_integrity()
    dispatcher.close()


async def test_requeue_and_a_new_policy() -> None:
    """A dropped call waits again, not for the same replica; a policy can be changed meanwhile."""
    dispatcher, _, _ = _dispatcher()
    dispatcher.replica_changed(FakeView())
    with dispatcher.place(_request("a")) as place:
        await place.next_call()
        place.end_call(Outcome.DROPPED)
        place.requeue({"r1"})
        assert place.call is None
        dispatcher.set_policy(build_policy(PolicySpec(ordering="fcfs")))
        dispatcher.replica_changed(FakeView("r2"))
        assert (await place.next_call()).replica_id == "r2"
        dispatcher.replica_removed("r1")
    dispatcher.core.check_integrity()
    assert dispatcher.core.num_in_flight == 0
    dispatcher.close()


async def test_a_policy_that_raises_costs_no_request_and_is_told_of(caplog: pytest.LogCaptureFixture) -> None:
    """The answer comes, order of arrival decides from then on, the log has the traceback and the metrics the count."""
    async with FakeReplica(answers(b"{}")) as replica, gateway_for(replica) as gateway:

        class Raises:
            def __getattr__(self, name: str) -> Any:
                raise RuntimeError("planted")

        policy = build_policy(PolicySpec())
        gateway.dispatcher.set_policy(dataclasses.replace(policy, routing=Raises()))
        with caplog.at_level(logging.ERROR):
            request = HandDriven(gateway, CHAT).start(BODY)
            await request.ended()
        assert request.status == 200
        assert "fcfs" in gateway.core.policy_name
        (told,) = [line for line in caplog.records if "decides until another one is set" in line.getMessage()]
        assert told.exc_info is not None
        assert "tailgate_policy_failures_total 1.0" in gateway.metrics.render()[0].decode()
        assert_nothing_held(gateway)
