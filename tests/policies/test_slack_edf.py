"""`slack-edf`: earliest due first, dear requests later as the load grows, late ones last but never without a part."""

import math
import random
from typing import Any

import pytest

from policies.dispatch import DispatchCore
from policies.job import Job
from policies.objectives import Objective
from policies.ordering.slack_edf import SlackEdf
from policies.queue import WaitingQueue
from policies.traffic import Load
from policies.types import Call, Lane, Outcome, Sample
from tests.policies.support import FakeReplica, FakeRequest, World, make_core, offer

COST = {"prefill_s_per_token": 0.1, "decode_s_per_token": 1e-9}
"""So a prompt of ten tokens is a second of work, all of it before the first token."""
ONE_AT_A_TIME = FakeReplica(max_in_flight_requests=1)


def _ordering(**options: float) -> SlackEdf:
    return SlackEdf(**{"default_ttft_s": 30.0, "max_theta": 1.0, "max_cost_s": 100.0, "late_share": 0.1} | options)


def _load(utilisation: float) -> Load:
    return Load(rate_per_s=utilisation, costs_s=(1.0,), capacity=1.0, log_error=None)


def _core(ttft_s: dict[Lane, float] | None = None, cost: Any = COST, **of_ordering: float) -> DispatchCore:
    return make_core(
        ONE_AT_A_TIME,
        ordering="slack-edf",
        flows="one-flow",
        lanes="single",
        options={"cost": cost, "wait": {"max_wait_s": 1e6}, "slack-edf": of_ordering},
        objectives={lane: Objective(ttft_s=seconds) for lane, seconds in (ttft_s or {}).items()},
    )


def _serve(core: DispatchCore, took_s: float, *, from_s: float = 0.0) -> list[str]:
    """Ends the running call again and again; request ids in the order in which they go from now on."""
    now_s, went = from_s, []
    call_ids = sorted(core._books.calls)
    while call_ids:
        now_s += took_s
        core.call_ended(call_ids.pop(), Outcome.SUCCESS, Sample(), now_s)
        for effect in core.poll(now_s):
            if isinstance(effect, Call):
                went.append(effect.request.request_id)
                call_ids.append(effect.call_id)
        core.check_integrity()
    return went


def test_the_key_is_when_it_is_due_and_later_for_what_is_dear() -> None:
    """Without load by due instants alone; with load each second of cost counts θ, up to a bound."""
    ordering = _ordering(max_theta=2.0)
    assert ordering.key(arrival_s=5.0, cost_s=50.0) == 35.0
    assert ordering.key(arrival_s=5.0, cost_s=50.0, due_s=7.0) == 7.0
    assert ordering.refit(_load(0.5))
    assert ordering.key(arrival_s=5.0, cost_s=50.0, due_s=7.0) == 57.0
    assert ordering.refit(_load(3.0))
    assert ordering.key(arrival_s=5.0, cost_s=500.0, due_s=7.0) == 207.0
    assert not ordering.refit(_load(1.1)), "full is full"
    assert ordering.overtaking_bound_s(10.0) == 20.0


def test_due_is_what_the_caller_said_else_what_the_lane_is_to_have() -> None:
    """A deadline goes before an objective, an objective before the default."""
    cost = {"prefill_s_per_token": 1e-4, "decode_s_per_token": 1e-3}
    core = _core({Lane.INTERACTIVE: 20.0, Lane.STANDARD: 200.0}, cost=cost)
    offer(core, "first")
    core.poll(0.0)
    offer(core, "default", declared_lane=Lane.LONG)
    offer(core, "standard", declared_lane=Lane.STANDARD)
    offer(core, "interactive", declared_lane=Lane.INTERACTIVE)
    offer(core, "said", declared_lane=Lane.STANDARD, first_token_by_s=10.0)
    assert _serve(core, 0.1) == ["said", "interactive", "default", "standard"]


def test_a_change_of_theta_orders_the_queue_anew() -> None:
    """What waited before is passed by what is cheap and came later, once the load has grown."""
    core = _core(default_ttft_s=1000.0, max_theta=5.0)
    offer(core, "first")
    core.poll(0.0)
    offer(core, "dear", 1.0, prompt_tokens=100)
    offer(core, "cheap", 2.0, prompt_tokens=1)
    traffic = core._policy.traffic
    for index in range(100):
        traffic.arrived(index * 0.1)
        traffic.ended(10.0)
    core.poll(61.0)
    assert _serve(core, 0.1, from_s=61.0) == ["cheap", "dear"]


def test_what_is_late_goes_last_in_order_of_arrival() -> None:
    """What can't have its first token in time any more keeps nobody else from that."""
    core = _core(default_ttft_s=10.0, late_share=0.001)
    offer(core, "first")
    core.poll(0.0)
    offer(core, "big", 0.5, prompt_tokens=95)
    offer(core, "late", 1.0)
    offer(core, "in time", 7.0)
    assert core.next_wakeup_s() == pytest.approx(1e6 + 0.5), "being late needs no timer"
    assert _serve(core, 0.1, from_s=12.0) == ["in time", "big", "late"]


@pytest.mark.parametrize("share", [0.1, 0.3, 0.5, 1.0])
def test_late_ones_keep_their_part(share: float) -> None:
    """However many come that can be in time: with n late ones before it, one is the (n + 1)/share-th at the latest."""
    core = _core(default_ttft_s=10.0, late_share=share)
    offer(core, "first")
    core.poll(0.0)
    late = [f"late-{index}" for index in range(4)]
    for index, request_id in enumerate(late):
        offer(core, request_id, 0.1 * index)
    for index in range(100):
        offer(core, f"q{index}", 100.0)
    went = _serve(core, 1e-3, from_s=100.0)
    places = [went.index(request_id) + 1 for request_id in late]
    assert places == sorted(places)
    for num_before, place in enumerate(places):
        assert place <= math.ceil((num_before + 1) / share - 1e-9)
        assert place >= num_before / share, "and not before others more often than that"


def test_late_ones_keep_their_part_of_each_flow_under_a_random_load() -> None:
    """Twice what can be served, two tenants: of ten dispatches of a tenant one is late, if one waits."""
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    core = make_core(
        ONE_AT_A_TIME,
        ordering="slack-edf",
        options={"cost": COST, "wait": {"max_wait_s": 1e6}, "slack-edf": {"default_ttft_s": 15.0}},
    )
    world = World(core, lambda request: 0.1 * request.prompt_tokens)
    requests = [
        FakeRequest(f"q{i}", i * 0.5, tenant=rng.choice("ab"), prompt_tokens=rng.randint(1, 20), max_output_tokens=1)
        for i in range(400)
    ]
    for request in requests:
        world.arrives(request)
    world.run()
    went_s = world.dispatched_s
    num_late, num_others_in_a_row = 0, dict.fromkeys("ab", 0)
    for at_s, request_id in [(at_s, one.request.request_id) for at_s, one in world.log if isinstance(one, Call)]:
        request = requests[int(request_id[1:])]
        tenant = request.tenant
        # Late whatever its size, and known as late: a whole prompt less than its time to the first token is left.
        late_waits = any(
            other.tenant == tenant and other.arrival_s + 15.0 < at_s < went_s[other.request_id] for other in requests
        )
        if at_s - request.arrival_s > 15.0 - 0.1 * request.prompt_tokens:
            num_late, num_others_in_a_row[tenant] = num_late + 1, 0
        elif late_waits:
            num_others_in_a_row[tenant] += 1
            assert num_others_in_a_row[tenant] <= 9
        else:
            num_others_in_a_row[tenant] = 0
    assert num_late > 50, "the load was to be heavy enough that many are late"


def test_late_ones_are_forgotten_as_all_others() -> None:
    """Cancelled, counted anew, dispatched or sent again: nothing of them stays in the queue."""
    core = _core(default_ttft_s=10.0)
    offer(core, "first")
    core.poll(0.0)
    for request_id in "abc":
        offer(core, request_id, 0.0)
    offer(core, "d", 50.0)
    assert [effect.request.request_id for effect in _next(core, 50.0)] == ["d"]
    core.recount(FakeRequest("b", prompt_tokens=5), 50.0)
    core.cancel("c", 50.0)
    core.check_integrity()
    assert _serve(core, 0.1, from_s=50.0) == ["a", "b"]
    assert core._books.queue.late._by_flow == {}
    assert core._books.queue.late._earned == {}


def _next(core: DispatchCore, now_s: float) -> list[Call]:
    (call_id,) = core._books.calls
    core.call_ended(call_id, Outcome.SUCCESS, Sample(), now_s)
    return [effect for effect in core.poll(now_s) if isinstance(effect, Call)]


def test_reordering_leaves_the_late_where_they_are() -> None:
    """Keys are given anew to all others, also where a single job waits."""
    queue = WaitingQueue()
    jobs = [Job(FakeRequest(f"q{index}", float(index)), index) for index in range(4)]
    for job in jobs:
        job.key = job.request.arrival_s
        queue.add(job)
        if len(jobs) == 1:
            break
    queue.postpone(jobs[0])

    def backwards(job: Job) -> None:
        job.key = -job.request.arrival_s

    queue.reorder(backwards)
    order = []
    while queue.num_requests:
        (head,) = queue.heads(jobs[0].flow, Lane.STANDARD)
        order.append(head.request.request_id)
        queue.remove(head)
    assert order == ["q3", "q2", "q1", "q0"]
    queue.add(jobs[1])
    queue.reorder(backwards)
    assert jobs[1].key == -1.0


@pytest.mark.parametrize("flows", ["one-flow", "vtc"])
def test_the_last_one_that_waits_may_be_late(flows: str) -> None:
    """Somebody waited beside it and left; it is postponed behind nobody, and goes."""
    core = make_core(ONE_AT_A_TIME, ordering="slack-edf", flows=flows, options={"cost": COST})
    offer(core, "running")
    (running,) = core.poll(0.0)
    assert isinstance(running, Call)
    offer(core, "late", 1.0)
    offer(core, "leaves", 1.0)
    core.cancel("leaves", 2.0)
    assert core.poll(40.0) == []
    core.call_ended(running.call_id, Outcome.SUCCESS, Sample(), 41.0)
    (call,) = core.poll(41.0)
    assert isinstance(call, Call)
    assert call.request.request_id == "late"
    core.check_integrity()
