"""Each policy part by itself."""

import itertools
import math
import random
from dataclasses import replace
from typing import Any, ClassVar

import pytest

from policies.admission.fixed import FixedCaps
from policies.builtin import ADMISSIONS, FLOWS, ORDERINGS, ROUTINGS, SHEDDINGS, TURNS
from policies.config import ALWAYS, ROLES, PolicyConfigError, PolicySpec, build_policy, effective_options
from policies.dispatch import DispatchCore
from policies.estimate.output import OutputQuantiles
from policies.estimate.window import RecentQuantiles
from policies.fairness.background import BackgroundClaim
from policies.fairness.drr import ROUND, DeficitRoundRobin
from policies.fairness.flows import FlowKey, OneFlow
from policies.fairness.single import SingleQueue
from policies.fairness.turns import Turns
from policies.fairness.vtc import VirtualTokenCounters
from policies.job import Job
from policies.lanes import BudgetLanes
from policies.lifecycle import TRANSITIONS, Event, LifecycleError, State, after
from policies.objectives import Objective
from policies.ordering.aged_sjf import AgedSjf
from policies.ordering.boost import Boost, decay_rate_per_s
from policies.ordering.fcfs import Fcfs
from policies.queue import WaitingQueue
from policies.registry import Option, Part, Registry
from policies.routing.least_tokens import LeastTokens
from policies.routing.port import ReplicaLoad, Room
from policies.traffic import Load, Traffic
from policies.types import Call, Lane, Outcome, RequestLike, Sample
from tests.policies.support import FakeReplica, FakeRequest, calls, make_core, offer

NO_PART = "no-such-part"


class TestLifecycle:
    def test_refuses_what_is_not_in_the_table(self) -> None:
        """Every pair outside the table raises; an ended request allows nothing."""
        refused = [(s, e) for s in State for e in Event if (s, e) not in TRANSITIONS]
        assert len(refused) > 20
        for state, event in refused:
            with pytest.raises(LifecycleError):
                after(state, event)
        with pytest.raises(LifecycleError, match=r"possible: nothing"):
            after(State.ENDED, Event.CANCEL)

    def test_every_state_can_end(self) -> None:
        """From any state there is a way to ENDED: nothing can be stuck."""
        can_end = {State.ENDED}
        for _ in State:
            can_end |= {state for (state, _), following in TRANSITIONS.items() if following in can_end}
        assert can_end == set(State)


class TestOrderings:
    def test_fcfs_is_arrival(self) -> None:
        """Cost means nothing, nobody is passed."""
        assert Fcfs().key(arrival_s=1.0, cost_s=99.0) < Fcfs().key(arrival_s=2.0, cost_s=0.1)
        assert Fcfs().overtaking_bound_s(10.0) == 0.0

    def test_aged_sjf_bounds_overtaking(self) -> None:
        """Inside the bound a cheap request passes a dear one; from the bound on it doesn't."""
        order = AgedSjf(ageing=0.1)
        dear = order.key(arrival_s=0.0, cost_s=5.0)
        bound_s = order.overtaking_bound_s(5.0)
        assert order.key(arrival_s=bound_s - 0.1, cost_s=0.0) < dear
        assert order.key(arrival_s=bound_s + 0.1, cost_s=0.0) > dear


def load_of(**fields: Any) -> Load:
    return Load(rate_per_s=1.0, costs_s=(0.5,), capacity=1.0, log_error=None)._replace(**fields)


class TestBoost:
    def test_short_requests_count_as_having_come_earlier(self) -> None:
        """The shorter the earlier, never by more than the bound; no cost at all is the bound."""
        order = Boost(factor=0.1, max_boost_s=300.0, prior_gamma_per_s=0.01)
        keys = [order.key(arrival_s=1000.0, cost_s=cost_s) for cost_s in (0.0, 0.1, 10.0, 500.0, 1e6)]
        assert keys == sorted(keys)
        assert [keys[0], keys[-1]] == pytest.approx([850.0, 1000.0])
        assert order.overtaking_bound_s(1e9) == 300.0

    def test_a_request_of_mean_cost_keeps_its_arrival(self) -> None:
        """Whatever is fitted: so what comes after a fit doesn't pass all that came before it. Dearer ones come later,
        by half the bound at most."""
        order = Boost(factor=0.001, max_boost_s=300.0, prior_gamma_per_s=0.01)
        for rate_per_s in (0.1, 0.5, 5.0):
            order.refit(load_of(rate_per_s=rate_per_s, costs_s=(0.1, 1.9)))
            assert order.key(arrival_s=1000.0, cost_s=1.0) == 1000.0
            assert order.key(arrival_s=1000.0, cost_s=1.9) > 1000.0
            assert order.key(arrival_s=1000.0, cost_s=1e-9) == 850.0
        narrow = Boost(factor=0.001, max_boost_s=1.0, prior_gamma_per_s=0.01)
        narrow.refit(load_of(costs_s=(0.1, 1.9)))
        assert narrow.key(arrival_s=1000.0, cost_s=1e9) == 1000.5

    def test_the_decay_rate_of_exponential_costs_is_known(self) -> None:
        """Of M/M/1 it is the service rate less the arrival rate; the quantiles of the law stand for it here."""
        costs_s = [-math.log(1.0 - (index + 0.5) / 4000) / 2.0 for index in range(4000)]
        assert decay_rate_per_s(1.0, costs_s, 1.0) == pytest.approx(1.0, rel=0.05)
        assert decay_rate_per_s(4.0, costs_s, 4.0) == pytest.approx(4.0, rel=0.05)

    @pytest.mark.parametrize("utilisation", [0.05, 0.5, 0.89])
    def test_the_decay_rate_solves_its_equation(self, utilisation: float) -> None:
        """Whatever the load, and with costs five orders of magnitude apart."""
        costs_s = [0.001, 0.01, 0.1, 1.0, 100.0]
        rate_per_s = utilisation * 5 / sum(costs_s)
        rate = decay_rate_per_s(rate_per_s, costs_s, 1.0)
        assert rate is not None
        mean = sum(math.expm1(rate * cost_s) for cost_s in costs_s) / 5
        assert rate_per_s * mean == pytest.approx(rate, rel=1e-2)

    def test_full_load_and_no_load_have_a_figure_too(self) -> None:
        """Over full load it is that of nearly full load; without traffic, or costs, nothing is fitted."""
        assert decay_rate_per_s(99.0, [1.0, 2.0], 1.0) == decay_rate_per_s(50.0, [1.0, 2.0], 1.0)
        assert decay_rate_per_s(0.0, [1.0], 1.0) is None
        assert decay_rate_per_s(1.0, [], 1.0) is None
        assert decay_rate_per_s(1e-300, [1.0], 1.0) == pytest.approx(500.0, rel=0.5)

    def test_follows_the_traffic(self) -> None:
        """Near full load it favours the short more; over 0.9 it is all the same."""
        order = Boost(factor=0.1, max_boost_s=1e6, prior_gamma_per_s=0.01)
        order.refit(load_of(rate_per_s=0.0))
        assert order._gamma_per_s == 0.01
        spread = []
        for rate_per_s in (1.0, 1.9, 1.901):
            order.refit(load_of(rate_per_s=rate_per_s, costs_s=(0.1, 0.9)))
            spread.append(order.key(arrival_s=0.0, cost_s=0.9) - order.key(arrival_s=0.0, cost_s=0.1))
        assert spread[0] < spread[1] == spread[2]


class TestTraffic:
    def test_knows_nothing_at_first(self) -> None:
        """No rate, no costs, no variability, no error; one server."""
        load = Traffic().load()
        assert load == Load(0.0, (), 1.0, None)
        assert (load.scv, load.utilisation) == (0.0, 0.0)

    def test_rate_and_variability_are_of_the_latest(self) -> None:
        """Requests a second over the latest; costs as they really were."""
        traffic = Traffic()
        for index in range(1000):
            traffic.arrived(index * 0.5)
            traffic.ended(99.0 if index < 400 else 1.0 + index % 2)
        load = traffic.load()
        assert load.rate_per_s == pytest.approx(2.0)
        assert load.mean_cost_s == pytest.approx(1.5)
        assert load.scv == pytest.approx(0.25 / 1.5**2)

    def test_capacity_is_what_is_served_while_somebody_waits(self) -> None:
        """In the unit of the costs; before that, the calls seen side by side. Old times fade."""
        traffic = Traffic()
        traffic.polled(0.0, 0, 4)
        traffic.ended(1000.0)  # nobody waits: says nothing about what could be served
        assert traffic.load().capacity == 4.0
        for second in range(1, 20):
            traffic.polled(float(second), 3, 4)
            traffic.ended(8.0)
        assert traffic.load().capacity == pytest.approx(8.0, rel=0.1)
        for second in range(20, 2000):
            traffic.polled(float(second), 3, 4)
            traffic.ended(2.0)
        assert traffic.load().capacity == pytest.approx(2.0, rel=0.1)

    def test_the_error_of_predictions_is_a_ratio(self) -> None:
        """Twice as much and half as much are equally wrong."""
        for predicted_s, actual_s in ((1.0, 2.0), (2.0, 1.0)):
            traffic = Traffic()
            for _ in range(10):
                traffic.erred(predicted_s, actual_s)
            assert traffic.load().log_error == pytest.approx(math.log(2.0))


class TestDeficitRoundRobin:
    QUANTA: ClassVar = dict(zip(ROUND, (0.5, 0.3, 0.2, 0.1), strict=True))

    def serve(self, drr: DeficitRoundRobin, costs_s: dict[Lane, float], count: int) -> dict[Lane, float]:
        served = dict.fromkeys(costs_s, 0.0)
        for _ in range(count):
            lane = drr.next_lane({lane: (0.0, cost_s) for lane, cost_s in costs_s.items()})
            drr.charge(lane, costs_s[lane])
            served[lane] += costs_s[lane]
        return served

    def test_shares_work_by_quantum(self) -> None:
        """Backlogged lanes get replica time 5 : 3 : 2, whatever their requests cost."""
        served = self.serve(
            DeficitRoundRobin(self.QUANTA), {Lane.INTERACTIVE: 0.05, Lane.STANDARD: 0.4, Lane.LONG: 3.0}, 2000
        )
        total = sum(served.values())
        assert served[Lane.INTERACTIVE] / total == pytest.approx(0.5, abs=0.03)
        assert served[Lane.STANDARD] / total == pytest.approx(0.3, abs=0.03)
        assert served[Lane.LONG] / total == pytest.approx(0.2, abs=0.03)

    def test_bounds_how_long_a_lane_waits(self) -> None:
        """A long head is served after at most ceil(cost / quantum) rounds of the others."""
        drr = DeficitRoundRobin(self.QUANTA)
        costs_s = {Lane.INTERACTIVE: 0.05, Lane.LONG: 3.0}
        waited_s = 0.0
        while (lane := drr.next_lane({lane: (0.0, cost) for lane, cost in costs_s.items()})) is not Lane.LONG:
            drr.charge(lane, costs_s[lane])
            waited_s += costs_s[lane]
        rounds = 3.0 / 0.2
        assert waited_s <= rounds * (0.5 + 0.05)

    def test_a_lane_alone_is_served_at_once(self) -> None:
        """However small the quantum against the cost."""
        drr = DeficitRoundRobin(dict.fromkeys(ROUND, 1e-9))
        assert drr.next_lane({Lane.LONG: (0.0, 100.0)}) is Lane.LONG

    def test_credit_is_lost_and_debt_kept_when_a_lane_empties(self) -> None:
        """A lane can't save up while idle, nor shed what it owes."""
        drr = DeficitRoundRobin(self.QUANTA)
        drr.next_lane({Lane.INTERACTIVE: (0.0, 0.1)})
        drr.emptied(Lane.INTERACTIVE)
        assert drr._deficit_s[Lane.INTERACTIVE] == 0.0
        drr.charge(Lane.INTERACTIVE, 2.0)
        drr.emptied(Lane.INTERACTIVE)
        assert drr._deficit_s[Lane.INTERACTIVE] == -2.0
        assert self.serve(drr, {Lane.INTERACTIVE: 0.1, Lane.STANDARD: 0.1}, 3)[Lane.INTERACTIVE] == 0.0

    def test_background_has_no_account(self) -> None:
        """Idle capacity is free."""
        drr = DeficitRoundRobin(self.QUANTA)
        drr.charge(Lane.BACKGROUND, 5.0)
        drr.emptied(Lane.BACKGROUND)
        assert Lane.BACKGROUND not in drr._deficit_s


class TestVirtualTokenCounters:
    A, B = ("a", "m"), ("b", "m")

    def vtc(self) -> VirtualTokenCounters:
        return VirtualTokenCounters(input_weight=1.0, output_weight=2.0)

    def test_who_was_served_least_goes_first(self) -> None:
        """Output counts twice, and as it comes."""
        vtc = self.vtc()
        vtc.charge(self.A, 100, 0)
        vtc.charge(self.B, 10, 0)
        assert list(vtc.in_order([self.A, self.B])) == [self.B, self.A]
        vtc.charge(self.B, 0, 46)
        assert list(vtc.in_order([self.A, self.B])) == [self.A, self.B]

    def test_nobody_saves_up_turns_while_idle(self) -> None:
        """Who wakes stands where the others of its model stand; another model's counters are none of its business."""
        vtc = self.vtc()
        for _ in range(10):
            vtc.charge(self.A, 100, 0)
        vtc.woke(self.B, [self.A])
        assert vtc._counters[self.B] == 900.0
        vtc.woke(("b", "n"), [self.A])
        assert ("b", "n") not in vtc._counters

    def test_who_sends_little_may_come_in_bursts(self) -> None:
        """It wakes a bounded amount below the others, so that its next requests go before theirs; never lower."""
        vtc = VirtualTokenCounters(input_weight=1.0, output_weight=2.0, burst_tokens=250.0)
        for _ in range(10):
            vtc.charge(self.A, 100, 0)
        vtc.woke(self.B, [self.A])
        assert vtc._counters[self.B] == 650.0
        vtc.charge(self.B, 100, 0)
        vtc.woke(self.B, [self.A])
        assert vtc._counters[self.B] == 750.0, "what it has used of that stays used"
        for _ in range(3):
            assert next(iter(vtc.in_order([self.A, self.B]))) == self.B
            vtc.charge(self.B, 100, 0)
        assert next(iter(vtc.in_order([self.A, self.B]))) == self.A

    def test_who_had_much_does_not_wait_for_what_others_never_asked(self) -> None:
        """Waking again, it keeps its own counter where that is larger."""
        vtc = self.vtc()
        vtc.charge(self.A, 1000, 0)
        vtc.woke(self.A, [])
        assert vtc._counters[self.A] == 1000.0

    def test_the_order_is_that_of_sorting_all_at_each_question(self) -> None:
        """Flows that wake, leave unsaid, are charged while they wait or not: least first, then who woke first."""
        seed = random.randrange(2**32)
        print(f"seed {seed}")
        rng = random.Random(seed)
        vtc = self.vtc()
        waiting: dict[FlowKey, None] = {}
        flows = [(f"t{number}", rng.choice("mn")) for number in range(30)]
        for _ in range(3000):
            flow, action = rng.choice(flows), rng.random()
            if action < 0.3:
                if flow not in waiting:
                    vtc.woke(flow, waiting)
                    waiting[flow] = None
            elif action < 0.5:
                waiting.pop(flow, None)
            elif action < 0.51:
                waiting.clear()
            elif action < 0.8:
                vtc.charge(flow, rng.choice((0, 50)), rng.choice((0, 16)))
            elif waiting:
                expected = sorted(waiting, key=lambda flow: vtc._counters.get(flow, 0.0))  # a stable sort
                looked_at = rng.randint(1, len(waiting))
                assert list(itertools.islice(vtc.in_order(waiting), looked_at)) == expected[:looked_at]

    def test_bounds_the_gap_between_two_that_always_wait(self) -> None:
        """Weighted tokens served in any stretch of time differ by at most 2 · max(w_in · L, w_out · M)."""
        seed = random.randrange(2**32)
        print(f"seed {seed}")
        rng = random.Random(seed)
        vtc, longest, most_in_flight = self.vtc(), 500, 2000
        running: list[tuple[FlowKey, int]] = []
        served = {self.A: 0.0, self.B: 0.0}
        gaps = [0.0]
        for _ in range(3000):
            flow = next(iter(vtc.in_order([self.A, self.B])))
            largest_prompt, largest_output = (longest, 100) if flow == self.A else (20, 400)
            output_tokens = rng.randint(1, largest_output)
            while running and sum(left for _, left in running) + output_tokens > most_in_flight:
                of, left = running.pop(rng.randrange(len(running)))
                vtc.charge(of, 0, left)
                served[of] += 2.0 * left
            prompt_tokens = rng.randint(1, largest_prompt)
            vtc.charge(flow, prompt_tokens, 0)
            served[flow] += prompt_tokens
            running.append((flow, output_tokens))
            gaps.append(served[self.A] - served[self.B])
        assert max(gaps) - min(gaps) <= 2 * max(1.0 * longest, 2.0 * most_in_flight)
        assert min(served.values()) > 100 * longest

    def test_memory_follows_the_flows_that_matter(self) -> None:
        """Ten thousand tenants that came once leave no trace; those that wait, and those that had much, stay."""
        vtc = self.vtc()
        vtc.charge(self.A, 1_000_000, 0)
        for index in range(10_000):
            vtc.woke((f"t{index}", "m"), [self.B])
            vtc.charge((f"t{index}", "m"), 1, 0)
            vtc.charge(self.B, 10, 0)
        assert len(vtc._counters) < 2500
        assert {self.A, self.B} <= vtc._counters.keys()

    def test_one_flow_is_everybody(self) -> None:
        """Whatever their tenants."""
        flows = OneFlow()
        assert flows.key(FakeRequest(tenant="a")) == flows.key(FakeRequest(tenant="b"))

    def test_accounts_of_flows_not_seen_for_long_are_forgotten(self) -> None:
        """The one used least recently goes; the others keep what they have."""
        turns = Turns(OneFlow(), SingleQueue)
        first, second = turns.lanes(("0", "m")), turns.lanes(("1", "m"))
        for index in range(2, 4097):
            turns.lanes((f"{index}", "m"))
            assert turns.lanes(("0", "m")) is first
        assert turns.lanes(("1", "m")) is not second


class TestBackgroundClaim:
    def test_the_whole_share_owes_nothing(self) -> None:
        """With a share of one, background work is like any other once it is overdue."""
        claim = BackgroundClaim(max_wait_s=1.0, max_share=1.0)
        claim.claimed(5.0)
        assert claim.may_claim

    def test_a_claim_is_paid_by_others_work(self) -> None:
        """At a quarter, three times its cost; what they do beyond that isn't saved up."""
        claim = BackgroundClaim(max_wait_s=1.0, max_share=0.25)
        for _ in range(2):
            claim.claimed(2.0)
            claim.others_went(5.9)
            assert not claim.may_claim
            claim.others_went(50.0)
            assert claim.may_claim


class TestRoutings:
    def picked(self, routing: str, num_calls: int) -> list[str]:
        """Where so many requests go that come one after the other and stay, to three replicas with room for two."""
        replicas = (FakeReplica(f"r{n}", max_in_flight_requests=2) for n in (1, 2, 3))
        core = make_core(*replicas, routing=routing, ordering="fcfs", lanes="single")
        for number in range(num_calls):
            offer(core, f"q{number}", prompt_tokens=100 if number == 0 else 10)
        return [replica_id for _, replica_id in calls(core.poll(0.0))]

    def test_least_tokens_spreads_ties(self) -> None:
        """The least loaded goes first, equals take turns, and a full one is left out."""
        assert self.picked("least-tokens", 6) == ["r1", "r2", "r3", "r2", "r3", "r1"]

    def test_round_robin_takes_turns_among_those_with_room(self) -> None:
        """In order of id, skipping who has none, and round again."""
        assert self.picked("round-robin", 6) == ["r1", "r2", "r3", "r1", "r2", "r3"]
        core = make_core(*(FakeReplica(f"r{n}", max_in_flight_requests=1) for n in (1, 2, 3)), routing="round-robin")
        for number in range(3):
            offer(core, f"q{number}")
        first, second, _ = (effect for effect in core.poll(0.0) if isinstance(effect, Call))
        for number, call in enumerate((second, first)):  # r2, then r1, is the only one with room
            core.call_ended(call.call_id, Outcome.SUCCESS, Sample(), 1.0)
            offer(core, f"late{number}", 1.0)
            assert calls(core.poll(1.0)) == [(f"late{number}", call.replica_id)]

    def test_the_port_shows_all_that_have_room(self) -> None:
        """For routings that compare replicas by something else: each with its load, in order of id."""
        rooms: list[list[ReplicaLoad]] = []

        class Watching(LeastTokens):
            def pick(self, request: RequestLike, room: Room) -> tuple[str, str]:
                rooms.append(list(room.all()))
                return super().pick(request, room)

        policy = replace(build_policy(PolicySpec()), routing=Watching())
        core = DispatchCore(policy)
        for number in (2, 1, 3):
            core.replica_changed(FakeReplica(f"r{number}", max_in_flight_requests=1), 0.0)
            core.capacity_granted(f"r{number}", None, 0.0)
        for number in range(2):
            offer(core, f"q{number}")
        core.poll(0.0)
        idle = [ReplicaLoad(f"r{number}", 0, 0, 0) for number in (1, 2, 3)]
        assert rooms == [idle, idle[1:]]


class TestLanes:
    def lanes(self, **options: object) -> BudgetLanes:
        return build_policy(PolicySpec(options={"lane-cuts": options})).lanes

    def test_cuts_follow_recent_budgets(self) -> None:
        """Enough seen, the cuts are the 60th and 90th percentile."""
        lanes = self.lanes(min_samples=10)
        for budget in range(1, 101):
            request = FakeRequest()
            lanes.observe(lanes.classify(request, budget), request, budget)
        assert lanes.cuts() == (60, 90)
        assert [lanes.classify(FakeRequest(), b).lane for b in (60, 90, 91)] == [
            Lane.INTERACTIVE,
            Lane.STANDARD,
            Lane.LONG,
        ]

    def test_fixed_cuts_replace_learned_ones(self) -> None:
        """Configured cuts don't move; a standard cut below the interactive one gives no standard lane."""
        lanes = self.lanes(interactive_max_tokens=5, standard_max_tokens=3)
        assert lanes.cuts() == (5, 5)
        assert lanes.classify(FakeRequest(), 6).lane is Lane.LONG

    def test_overlong_is_by_prompt(self) -> None:
        """A prompt over the configured length is overlong, declared interactive or not."""
        lanes = self.lanes(overlong_prompt_tokens=1000)
        assert lanes.classify(FakeRequest(prompt_tokens=1001), 1).lane is Lane.OVERLONG
        declared = FakeRequest(prompt_tokens=1001, declared_lane=Lane.INTERACTIVE)
        assert lanes.classify(declared, 5000).lane is Lane.OVERLONG

    def test_a_declared_lane_is_believed(self) -> None:
        """Up or down."""
        lanes = self.lanes()
        assert lanes.classify(FakeRequest(declared_lane=Lane.BACKGROUND), 1).lane is Lane.BACKGROUND
        assert lanes.classify(FakeRequest(declared_lane=Lane.INTERACTIVE), 1).lane is Lane.INTERACTIVE

    def test_declared_interactive_has_a_size_limit(self) -> None:
        """Far over the lane, it is moved down and told so."""
        decision = self.lanes().classify(FakeRequest(declared_lane=Lane.INTERACTIVE), 6001)
        assert decision.lane is Lane.LONG
        assert decision.why == "declared interactive, but its budget of 6001 is over 6000"

    def test_declared_interactive_has_a_share(self) -> None:
        """Large declared requests may take up to their share of the recent work, then their size decides."""
        lanes = self.lanes(declared_max_share=0.5)
        plain, declared = FakeRequest(), FakeRequest(declared_lane=Lane.INTERACTIVE)
        lanes.observe(lanes.classify(plain, 1000), plain, 1000)
        first = lanes.classify(declared, 900)
        lanes.observe(first, declared, 900)
        second = lanes.classify(declared, 900)
        assert first.lane is Lane.INTERACTIVE
        assert (second.lane, second.why) == (
            Lane.STANDARD,
            "declared interactive, but over the share of 50% of the work",
        )


class TestEstimates:
    def test_quantiles_of_the_most_recent(self) -> None:
        """The window slides; quantiles match a sort of what is in it."""
        seed = random.randrange(2**32)
        print(f"seed {seed}")
        rng = random.Random(seed)
        window, seen = RecentQuantiles(50), []
        for _ in range(500):
            value = float(rng.randrange(20))
            window.add(value)
            seen.append(value)
            recent = sorted(seen[-50:])
            assert len(window) == len(recent)
            for q in (0.001, 0.5, 0.9, 1.0):
                at_or_below = sum(v <= window.quantile(q) for v in recent) / len(recent)
                assert at_or_below >= q
                assert window.quantile(q) in recent

    def output(self, **options: int) -> OutputQuantiles:
        given = {"quantile": 0.5, "prior_tokens": 100, "window": 10, "min_samples": 2, "max_keys": 2} | options
        return OutputQuantiles(**given)  # type: ignore[arg-type]

    def test_output_prediction_falls_back_from_kind_to_pool_to_prior(self) -> None:
        """A kind with enough history answers for itself, else everybody's, else the prior; the bound always holds."""
        output = self.output()
        request = FakeRequest(tenant="a", max_output_tokens=None)
        assert output.predict(request) == 100
        output.learn(request, 30)
        assert output.predict(request) == 100
        output.learn(request, 40)
        assert output.predict(request) == 30
        assert output.predict(FakeRequest(tenant="b", max_output_tokens=None)) == 30
        assert output.predict(FakeRequest(tenant="a", max_output_tokens=5)) == 5

    def test_output_prediction_counts_every_choice(self) -> None:
        """What one choice is expected to produce, times the choices; learned from all, remembered by the one."""
        output = self.output()
        for _ in range(2):
            output.learn(FakeRequest(max_output_tokens=None, num_choices=4), 100)
        assert output.predict(FakeRequest(max_output_tokens=None)) == 25
        assert output.predict(FakeRequest(max_output_tokens=None, num_choices=128)) == 3200
        assert output.predict(FakeRequest(max_output_tokens=2000, num_choices=128)) == 2000

    def test_output_history_is_bounded_in_kinds(self) -> None:
        """The kind least recently learned from is forgotten."""
        output = self.output()
        for tenant in ("a", "b", "a", "c"):
            output.learn(FakeRequest(tenant=tenant), 10)
        assert {key[0] for key in output._by_key} == {"a", "c"}


class TestQueue:
    def test_memory_follows_what_waits(self) -> None:
        """Thousands of cancelled requests leave no trace behind the few that still wait."""
        queue = WaitingQueue()
        keeper = Job(FakeRequest("keeper", arrival_s=0.0, deadline_s=1e9), 0)
        queue.add(keeper)
        for index in range(1, 2000):
            job = Job(FakeRequest(f"q{index}", arrival_s=float(index), deadline_s=1e6 + index), index)
            job.key = float(index)
            queue.add(job)
            queue.remove(job)
        assert queue.jobs() == [keeper]
        heaps = [
            *queue._by_flow[keeper.flow][keeper.lane].values(),
            *queue._arrivals._heaps.values(),
            queue._by_deadline,
        ]
        assert max(len(heap) for heap in heaps) < 100

    def test_heads_skip_what_left(self) -> None:
        """The first of a lane is the first that is still there."""
        queue = WaitingQueue()
        jobs = [Job(FakeRequest(f"q{index}", arrival_s=float(index)), index) for index in range(3)]
        for job in jobs:
            job.key = float(job.seq)
            queue.add(job)
        queue.remove(jobs[0])
        assert queue.waits_in(jobs[1].flow, Lane.STANDARD)
        assert not queue.waits_in(("", "n"), Lane.STANDARD)
        assert list(queue.heads(jobs[1].flow, Lane.STANDARD)) == [jobs[1]]
        assert queue.oldest() == [jobs[1]]


class TestConfig:
    @pytest.mark.parametrize(
        ("spec", "key", "allowed"),
        [
            (PolicySpec(ordering=NO_PART), "ordering", f"allowed: {', '.join(ORDERINGS.names())}"),
            (PolicySpec(flows=NO_PART), "flows", f"allowed: {', '.join(FLOWS.names())}"),
            (PolicySpec(lanes=NO_PART), "lanes", f"allowed: {', '.join(TURNS.names())}"),
            (PolicySpec(admission=NO_PART), "admission", f"allowed: {', '.join(ADMISSIONS.names())}"),
            (PolicySpec(shedding=NO_PART), "shedding", f"allowed: {', '.join(SHEDDINGS.names())}"),
            (PolicySpec(routing=NO_PART), "routing", f"allowed: {', '.join(ROUTINGS.names())}"),
            (PolicySpec(options={NO_PART: {}}), f"options.{NO_PART}", "cost"),
            (PolicySpec(options={"fcfs": {}}), "options.fcfs", "fcfs isn't in use: ordering is adaptive"),
            (PolicySpec(lanes="drr", options={"drr": 3}), "options.drr", "a mapping"),  # type: ignore[dict-item]
            (PolicySpec(lanes="drr", options={"drr": {"x": 1}}), "options.drr.x", "interactive_s, long_s"),
            (PolicySpec(options={"round-robin": {}}), "options.round-robin", "routing is least-tokens"),
            (
                PolicySpec(routing="round-robin", options={"round-robin": {"x": 1}}),
                "options.round-robin.x",
                "round-robin has no options",
            ),
            (
                PolicySpec(ordering="aged-sjf", options={"aged-sjf": {"ageing": 0}}),
                "options.aged-sjf.ageing",
                "a number above 0",
            ),
            (
                PolicySpec(ordering="aged-sjf", options={"aged-sjf": {"ageing": float("nan")}}),
                "options.aged-sjf.ageing",
                "a number",
            ),
            (
                PolicySpec(ordering="aged-sjf", options={"aged-sjf": {"ageing": True}}),
                "options.aged-sjf.ageing",
                "a number",
            ),
            (PolicySpec(options={"output": {"quantile": 1.5}}), "options.output.quantile", "at most 1"),
            (PolicySpec(options={"output": {"window": 2.5}}), "options.output.window", "a whole number at least 1"),
            (
                PolicySpec(options={"lane-cuts": {"declared_max_share": -1}}),
                "options.lane-cuts.declared_max_share",
                "0",
            ),
            (
                PolicySpec(objectives={Lane.LONG: Objective(ttft_s=0.0)}),
                "objectives.long.ttft_s",
                "a number above 0 or null",
            ),
            (PolicySpec(options={"wait": {"max_wait_s": None}}), "options.wait.max_wait_s", "a number above 0"),
        ],
    )
    def test_an_error_names_key_value_and_choices(self, spec: PolicySpec, key: str, allowed: str) -> None:
        """A policy that can't be built says what is wrong and what would be right."""
        with pytest.raises(PolicyConfigError) as caught:
            build_policy(spec)
        (problem,) = caught.value.problems
        assert problem.key == key
        assert allowed in problem.allowed
        assert repr(problem.value) in str(caught.value)

    def test_all_errors_are_told_at_once(self) -> None:
        """Unknown parts, unknown options and wrong values together; options of a part that may be meant are checked."""
        spec = PolicySpec(
            ordering=NO_PART,
            lanes="drr",
            routing=NO_PART,
            options={"aged-sjf": {"ageing": 0, "nonsense": 1}, "drr": {"long_s": "1"}, "single": {}, "cost": []},  # type: ignore[dict-item]
        )
        with pytest.raises(PolicyConfigError) as caught:
            effective_options(spec)
        assert [problem.key for problem in caught.value.problems] == [
            "ordering",
            "routing",
            "options.aged-sjf.ageing",
            "options.aged-sjf.nonsense",
            "options.drr.long_s",
            "options.single",
            "options.cost",
        ]

    def test_options_reach_their_part(self) -> None:
        """What is configured is what decides; null where it is allowed."""
        policy = build_policy(
            PolicySpec(options={"wait": {"max_wait_s": 7}, "lane-cuts": {"overlong_prompt_tokens": None}})
        )
        assert policy.max_wait_s == 7
        assert Option(None, "", may_be_none=True, whole=True).allowed == "a whole number or null"

    def test_what_is_in_use_is_told_with_its_defaults(self) -> None:
        """Every option of every part that decides, given or not; nothing of the others."""
        spec = PolicySpec(ordering="fcfs", options={"wait": {"max_wait_s": 7}})
        options = effective_options(spec)
        assert set(options) == {
            spec.ordering,
            spec.flows,
            spec.lanes,
            spec.admission,
            spec.shedding,
            spec.routing,
            spec.slicing,
            *(p.name for p in ALWAYS),
        }
        assert options["wait"] == {"max_wait_s": 7, "no_replica_grace_s": 1.5}
        assert options["fcfs"] == {}

    def test_names_are_unique_over_all_roles(self) -> None:
        """Options are given by the name of their part, whatever it does."""
        names = [name for registry in ROLES.values() for name in registry.names()] + [part.name for part in ALWAYS]
        assert len(names) == len(set(names))

    def test_a_duplicate_name_is_refused(self) -> None:
        """Two parts of one name would hide one of them."""
        with pytest.raises(ValueError, match="listed twice"):
            Registry("ordering", [Part("fcfs", Fcfs), Part("fcfs", Fcfs)])


class TestCaps:
    @pytest.mark.parametrize(
        ("own", "capacity", "expected"),
        [(None, None, 300), (500, None, 500), (None, 400, 400), (500, 400, 400), (200, 400, 200)],
    )
    def test_no_cap_exceeds_the_kv_cache(self, own: int | None, capacity: int | None, expected: int) -> None:
        """What was configured for the replica holds up to what its cache can; the policy's figure where both lack."""
        caps = FixedCaps(in_flight_tokens=300, prefill_tokens=10)
        replica = FakeReplica(max_in_flight_tokens=own, kv_capacity_tokens=capacity)
        assert caps.max_in_flight_tokens(replica) == expected
