"""What every policy must hold, whatever its parts: the suite that a new part passes before anything else."""

import itertools
import random
from typing import Any

import pytest

from policies.builtin import ORDERINGS
from policies.config import ROLES, PolicySpec, build_policy
from policies.dispatch import DispatchCore
from policies.idle import Idle
from policies.types import Call, Lane, Outcome, Sample
from tests.policies.support import FakeReplica, FakeRequest, World, changed, make_core, random_requests


def _meetings(composition: tuple[str, ...]) -> set[tuple[tuple[int, str], ...]]:
    """Every three parts of it, with their roles."""
    return set(itertools.combinations(enumerate(composition), 3))


def _compositions() -> list[tuple[str, ...]]:
    """A few of all there are, such that any three parts of different roles meet in one of them."""
    every = [tuple(names) for names in itertools.product(*(registry.names() for registry in ROLES.values()))]
    chosen = [tuple(getattr(PolicySpec(), role) for role in ROLES)]
    missing = set().union(*map(_meetings, every)) - _meetings(chosen[0])
    while missing:
        chosen.append(max(every, key=lambda composition: len(_meetings(composition) & missing)))
        missing -= _meetings(chosen[-1])
    return chosen


COMPOSITIONS = _compositions()
"""A part for each role, in the order of `ROLES`."""
REPLICAS = (
    FakeReplica("r1", max_in_flight_tokens=5000, max_prefill_tokens=1000, slice_block_tokens=16),
    FakeReplica("r2", max_in_flight_tokens=3000, max_prefill_tokens=500),
)


PATIENT = {"ladder": {"step_s": 1000.0, "interactive_step_s": 1000.0}}
"""For what is promised to those that may wait: parts that shed do so later."""


def service_s(request: FakeRequest) -> float:
    return 0.001 * request.prompt_tokens + 0.02 * (request.max_output_tokens or 0)


def composed(
    *composition: str,
    replicas: tuple[FakeReplica, ...] = REPLICAS,
    is_patient: bool = False,
    **wait: float,
) -> DispatchCore:
    options = {"cost": {"prefill_s_per_token": 0.001, "decode_s_per_token": 0.02}, "wait": wait}
    options |= _patience(composition) if is_patient else {}
    spec: dict[str, Any] = dict(zip(ROLES, composition, strict=True))
    return make_core(*replicas, **spec, options=options)


def _patience(composition: tuple[str, ...]) -> dict[str, dict[str, float]]:
    return {name: options for name, options in PATIENT.items() if name in composition}


@pytest.fixture
def seed() -> int:
    chosen = random.randrange(2**32)
    print(f"seed {chosen}")
    return chosen


@pytest.mark.parametrize("composition", COMPOSITIONS, ids="+".join)
class TestEveryPolicy:
    def test_replays_exactly(self, composition: tuple[str, ...], seed: int) -> None:
        """The same inputs give the same effects at the same instants."""
        logs = []
        for _ in range(2):
            world = World(composed(*composition), service_s)
            for request in random_requests(random.Random(seed), 150):
                world.arrives(request)
            world.run()
            logs.append(world.log)
        assert logs[0] == logs[1]

    def test_loses_and_doubles_nothing(self, composition: tuple[str, ...], seed: int) -> None:
        """Every request that was admitted ends exactly once, and at rest nothing is held."""
        world = World(composed(*composition), service_s)
        requests = random_requests(random.Random(seed), 200)
        for request in requests:
            world.arrives(request)
        world.run()
        assert sorted(world.ended + world.rejected) == sorted(request.request_id for request in requests)
        assert world.core.num_queued == world.core.num_in_flight == 0
        assert [world.core.in_flight_tokens(replica.replica_id) for replica in REPLICAS] == [0, 0]

    def test_conserves_work(self, composition: tuple[str, ...], seed: int) -> None:
        """After a poll no request waits for which a replica has room, unless an overdue one has it reserved."""

        def nobody_could_go(core: DispatchCore, now_s: float) -> None:
            assert core._selection.next(now_s) is None
            idle = [slots for slots in core._books.replicas.values() if not slots.calls and not slots.parked_tokens]
            assert not (idle and core.num_queued), "a replica idles while a request waits"
            assert not core.idle.num_times[Idle.VIOLATION], "a request waits alone that fits"

        world = World(composed(*composition), service_s, after_poll=nobody_could_go)
        for request in random_requests(random.Random(seed), 200, rate_per_s=6.0):
            world.arrives(request)
        world.run()
        assert len(world.dispatched_s) + len(world.rejected) == 200

    def test_bounds_starvation(self, composition: tuple[str, ...], seed: int) -> None:
        """Once a request has waited max_wait_s, nothing of its flow that came after it starts before it on its only
        replica. Other flows have their turns: what they may gain is bounded by the flows' own bound. Where long
        prompts go in slices, they wait for each other, too, and others pass; here they don't."""
        max_wait_s = 5.0
        replica = changed(REPLICAS[0], slice_block_tokens=None)
        world = World(composed(*composition, replicas=(replica,), is_patient=True, max_wait_s=max_wait_s), service_s)
        requests = random_requests(random.Random(seed), 250, rate_per_s=5.0)
        for request in requests:
            world.arrives(request)
        world.run()
        went_s = world.dispatched_s
        late = [request for request in requests if went_s[request.request_id] - request.arrival_s > max_wait_s]
        assert late, "the load was to be heavy enough that some wait too long"
        for request in late:
            passed_by = [
                other.request_id
                for other in requests
                if other.arrival_s > request.arrival_s
                and (other.tenant == request.tenant or composition[1] == "one-flow")
                and request.arrival_s + max_wait_s < went_s[other.request_id] < went_s[request.request_id]
            ]
            assert passed_by == []

    def test_bounds_what_background_work_waits_and_takes(self, composition: tuple[str, ...], seed: int) -> None:
        """Under a load that never ends each background request goes, in order of arrival, at its stated pace."""
        max_wait_s, max_share = 5.0, 0.2
        spec: dict[str, Any] = dict(zip(ROLES, composition, strict=True))
        options = {"background": {"max_wait_s": max_wait_s, "max_share": max_share}, "wait": {"max_wait_s": 1000.0}}
        options |= _patience(composition)
        replica = FakeReplica(max_in_flight_requests=1)
        core = make_core(replica, **spec, options=options)
        world = World(core, lambda _: 0.1)
        rng = random.Random(seed)
        for index in range(600):
            world.arrives(FakeRequest(f"q{index}", index * 0.09, streams=rng.random() < 0.5))
        for index in range(10):
            world.arrives(FakeRequest(f"b{index}", 1.0 + index * 0.01, declared_lane=Lane.BACKGROUND))
        world.run()
        went_s = [world.dispatched_s[f"b{index}"] for index in range(10)]
        assert went_s == sorted(went_s)
        for index, at_s in enumerate(went_s):
            # Its wait, the call that runs, and for each before it one claim and the others' part: 1 + 4 calls of 0.1 s.
            bound_s = 1.0 + index * 0.01 + max_wait_s + 0.1 + index * 0.1 / max_share
            assert 6.0 <= at_s <= bound_s + 1e-6

    def test_survives_faults(self, composition: tuple[str, ...], seed: int) -> None:
        """Cancels, recounts, failures, retries and vanishing replicas: the books stay exact and everything ends."""
        rng = random.Random(seed)
        core = composed(*composition, no_replica_grace_s=1.0)
        running: dict[int, Call] = {}
        for index in range(600):
            now_s = index * 0.05
            action = rng.random()
            if action < 0.4:
                (request,) = random_requests(rng, 1)
                core.offer(FakeRequest(**(request.__dict__ | {"request_id": f"q{index}", "arrival_s": now_s})), now_s)
            elif action < 0.5 and index > 10:
                core.cancel(f"q{rng.randrange(index)}", now_s)
            elif action < 0.6 and index > 10:
                (request,) = random_requests(rng, 1)
                core.recount(FakeRequest(**(request.__dict__ | {"request_id": f"q{rng.randrange(index)}"})), now_s)
            elif action < 0.65:
                replica = rng.choice(REPLICAS)
                core.replica_changed(FakeReplica(**(replica.__dict__ | {"is_available": rng.random() < 0.7})), now_s)
            elif running:
                call = running.pop(rng.choice(sorted(running)))
                request_id, outcome = call.request.request_id, rng.choice(list(Outcome))
                core.call_ended(call.call_id, outcome, Sample(output_tokens=rng.randint(0, 50)), now_s)
                if outcome is Outcome.DROPPED and rng.random() < 0.5 and core.knows(request_id):
                    core.requeue(request_id, {"r1"}, now_s)
                elif outcome is Outcome.DROPPED or rng.random() < 0.5:
                    core.cancel(request_id, now_s)
            running |= {effect.call_id: effect for effect in core.poll(now_s) if isinstance(effect, Call)}
            core.check_integrity()
        for replica in REPLICAS:
            core.replica_changed(replica, 40.0)
        now_s = 40.0
        while any(core.knows(f"q{index}") for index in range(600)):
            for call_id in sorted(running):
                core.call_ended(call_id, Outcome.SUCCESS, Sample(), now_s)
                del running[call_id]
            now_s += 1.0
            running |= {effect.call_id: effect for effect in core.poll(now_s) if isinstance(effect, Call)}
        core.check_integrity()
        assert core.num_queued == core.num_in_flight == 0


@pytest.mark.parametrize("ordering", ORDERINGS.names())
def test_every_ordering_bounds_overtaking(ordering: str, seed: int) -> None:
    """In one lane, one call at a time: a request is passed only by those that came within the ordering's bound."""
    rng = random.Random(seed)
    replica = FakeReplica(max_in_flight_requests=1)
    spec = PolicySpec(
        ordering=ordering,
        flows="one-flow",
        lanes="single",
        options={"cost": {"prefill_s_per_token": 0.001, "decode_s_per_token": 0.02}, "wait": {"max_wait_s": 1e6}},
    )
    policy = build_policy(spec)
    core = DispatchCore(policy)
    core.replica_changed(replica, 0.0)
    core.capacity_granted(replica.replica_id, None, 0.0)
    world = World(core, service_s)
    requests = []
    for index in range(400):
        # Prompts alone make costs differ, so what is predicted is what it takes.
        prompt_tokens = rng.choice([rng.randint(1, 100), rng.randint(500, 2000)])
        requests.append(FakeRequest(f"q{index}", index * 0.3, prompt_tokens=prompt_tokens, max_output_tokens=1))
        world.arrives(requests[-1])
    world.run()
    bound_s = policy.ordering.overtaking_bound_s(max(service_s(request) for request in requests))
    went_s = world.dispatched_s
    waited_s = max(went_s[request.request_id] - request.arrival_s for request in requests)
    assert waited_s > 60.0, "the load was to be heavy enough that an order matters"
    num_passed = 0
    for earlier, later in itertools.combinations(requests, 2):
        if went_s[later.request_id] < went_s[earlier.request_id]:
            waited_s = went_s[earlier.request_id] - earlier.arrival_s
            if policy.ordering.lateness and waited_s > policy.ordering.lateness.within_s - service_s(earlier):
                continue  # it was late, which is another bound's
            num_passed += 1
            assert later.arrival_s - earlier.arrival_s <= bound_s + 1e-9
    assert num_passed or ordering in ("fcfs", "boost", "adaptive"), "these have all of them at their bound"
