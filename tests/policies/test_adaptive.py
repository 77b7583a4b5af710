"""The choice among orderings, and the ordering that follows it."""

import math

import pytest

from policies.adaptive import BOOST, FCFS, GENTLE_BOOST, Choice, choose
from policies.ordering.adaptive import Adaptive
from policies.traffic import Load
from policies.types import Call, Lane, Notice, Outcome, Sample
from tests.policies.support import FakeReplica, calls, make_core, offer, only_call

ALIKE = tuple(1.0 + 0.5 * (index % 5) for index in range(100))
"""Squared variation 0.1."""
DIFFERENT = (*(1.0,) * 90, *(50.0,) * 10)
WIDE = (*(0.01,) * 20, *ALIKE[:80])
"""Alike, but for many that cost next to nothing."""


def load(costs_s: tuple[float, ...], *, waiting: int = 0, error: float | None = 0.5) -> Load:
    return Load(1.0, costs_s, 10.0, error, num_queued=waiting, num_in_flight=10)


def chosen(given: Load, before: Choice | None = None) -> str:
    return choose(given, before).name


class TestChoice:
    def test_is_order_of_arrival_until_enough_was_seen(self) -> None:
        """And it says so."""
        choice = choose(load(DIFFERENT[-31:]), None)
        assert (choice.name, choice.factor) == (FCFS, None)
        assert "31 requests have ended" in choice.why

    @pytest.mark.parametrize(
        ("costs_s", "few", "some", "many"),
        [(ALIKE, GENTLE_BOOST, BOOST, FCFS), (DIFFERENT, BOOST, BOOST, GENTLE_BOOST)],
    )
    def test_follows_how_costs_vary_and_how_many_wait(
        self, costs_s: tuple[float, ...], few: str, some: str, many: str
    ) -> None:
        """The more costs differ, the more letting the short go first pays; in a long queue it harms."""
        quiet = choose(load(costs_s), None)
        assert [chosen(load(costs_s, waiting=waiting), quiet) for waiting in (0, 12, 40)] == [few, some, many]

    def test_many_that_cost_next_to_nothing_are_let_past_where_costs_differ(self) -> None:
        """Where they are alike otherwise, they would pass all others over and over."""
        assert chosen(load(WIDE)) == FCFS
        assert chosen(load((*WIDE, 500.0))) == BOOST

    def test_wrong_predictions_order_nothing(self) -> None:
        """Without any prediction that was judged, they count as right."""
        assert [chosen(load(DIFFERENT, error=error)) for error in (None, 1.0, 1.5)] == [BOOST, BOOST, FCFS]

    @pytest.mark.parametrize(
        ("costs_s", "low", "high"),
        [
            (ALIKE, {"waiting": 6}, {"waiting": 9}),
            (ALIKE, {"waiting": 10}, {"waiting": 20}),
            (DIFFERENT, {"waiting": 10}, {"waiting": 20}),
            (DIFFERENT, {"error": 1.2}, {"error": 1.4}),
        ],
    )
    def test_stays_as_it_is_between_two_thresholds(
        self, costs_s: tuple[float, ...], low: dict[str, float], high: dict[str, float]
    ) -> None:
        """What swings about one of them doesn't change the choice each time, which would order the queue anew."""
        below = choose(load(costs_s), None)
        if costs_s is ALIKE and low["waiting"] == 10:
            below = choose(load(costs_s, waiting=9), below)
        between, above = load(costs_s, **low), load(costs_s, **high)  # type: ignore[arg-type]
        assert chosen(between, below) == below.name
        raised = choose(above, below)
        assert raised.name != below.name
        assert chosen(between, raised) == raised.name

    def test_says_why(self) -> None:
        """With the figures that decided."""
        assert choose(load(ALIKE, waiting=25), None).why == "squared variation of cost 0.1, 2.5 wait for each that runs"
        assert "times the smallest tenth" in choose(load(WIDE), None).why
        assert "e^1.5" in choose(load(ALIKE, error=1.5), None).why


class TestOrdering:
    def test_orders_by_what_is_chosen(self) -> None:
        """By arrival first; once costs are seen to differ, short before long; a change asks for all keys anew."""
        order = Adaptive(max_boost_s=100.0)
        assert order.choice.name == FCFS
        assert order.key(arrival_s=5.0, cost_s=1.0) == order.key(arrival_s=5.0, cost_s=50.0) == 5.0
        assert order.refit(load(DIFFERENT))
        assert order.choice.name == BOOST
        assert order.key(arrival_s=5.0, cost_s=1.0) < order.key(arrival_s=5.0, cost_s=50.0)
        assert not order.refit(load(DIFFERENT))
        assert order.refit(load(DIFFERENT, error=9.0))
        assert order.key(arrival_s=5.0, cost_s=50.0) == 5.0

    def test_more_that_wait_favour_the_short_less_where_costs_differ(self) -> None:
        """The factor is the choice's."""
        order = Adaptive(max_boost_s=1e6)
        spread = []
        for waiting in (0, 40):
            order.refit(load(DIFFERENT, waiting=waiting))
            spread.append(order.key(arrival_s=0.0, cost_s=50.0) - order.key(arrival_s=0.0, cost_s=1.0))
        assert spread[0] > spread[1] > 0.0

    @pytest.mark.parametrize("error", [0.5, 9.0])
    def test_declared_interactive_requests_go_before_others(self, error: float) -> None:
        """Whatever is chosen and predicted, but not before what came half the bound earlier."""
        order = Adaptive(max_boost_s=100.0)
        order.refit(load(DIFFERENT, error=error))
        declared = order.key(arrival_s=1000.0, cost_s=0.0)
        assert declared == 950.0
        assert declared <= order.key(arrival_s=951.0, cost_s=50.0)
        assert order.key(arrival_s=899.0, cost_s=50.0) < declared

    def test_passes_within_its_bound(self) -> None:
        """Any two keys of one choice are at most the bound apart, less what their arrivals are."""
        order = Adaptive(max_boost_s=100.0)
        order.refit(load(DIFFERENT))
        keys = [order.key(arrival_s=0.0, cost_s=10.0**exponent) for exponent in range(-9, 9)]
        assert max(keys) - min(keys) <= order.overtaking_bound_s(math.inf) == 100.0


class TestInTheCore:
    def test_a_change_orders_what_waits_anew_and_keeps_what_was_learned(self) -> None:
        """Requests that waited in order of arrival wait shortest first from then on."""
        core = make_core(FakeReplica(max_in_flight_requests=1))
        now_s = 0.0
        for index in range(40):
            offer(core, f"q{index}", now_s, prompt_tokens=1 if index % 8 else 50_000, max_output_tokens=1)
            call = only_call(core.poll(now_s))
            core.call_ended(call.call_id, Outcome.SUCCESS, Sample(output_tokens=1), now_s + 0.1)
            now_s += 0.2
        assert core.choice is not None
        assert core.choice.name == FCFS
        offer(core, "running", 9.0)
        running = only_call(core.poll(9.0))
        offer(core, "long", 9.1, prompt_tokens=50_000)
        offer(core, "short", 9.2, prompt_tokens=1)
        assert core.poll(9.5) == []
        (notice,) = core.poll(20.0)
        assert (core.choice.name, core.num_choice_changes) == (GENTLE_BOOST, 1)
        assert notice == Notice(f"requests are ordered by gentle-boost from now on: {core.choice.why}")
        core.check_integrity()
        core.call_ended(running.call_id, Outcome.SUCCESS, Sample(output_tokens=10), 20.1)
        assert calls(core.poll(20.1)) == [("short", "r1")]

    def test_declared_interactive_goes_first_however_long_it_is_thought_to_be(self) -> None:
        """Of two that came together the declared one, though it is predicted to cost more."""
        core = make_core(FakeReplica(max_in_flight_requests=1))
        offer(core, "running")
        running = only_call(core.poll(0.0))
        offer(core, "short", 1.0, max_output_tokens=300)
        offer(core, "declared", 1.5, max_output_tokens=600, declared_lane=Lane.INTERACTIVE)
        core.call_ended(running.call_id, Outcome.SUCCESS, Sample(), 2.0)
        (effect,) = core.poll(2.0)
        assert isinstance(effect, Call)
        assert effect.request.request_id == "declared"
        assert core.choice is not None

    def test_counts_how_right_predictions_were(self) -> None:
        """An answer as short as its bound says is covered; one that was thought long and turned out short isn't lost
        sight of."""
        core = make_core()
        for index, (bound, output_tokens) in enumerate([(10, 10), (9000, 5)]):
            offer(core, f"q{index}", 0.0, max_output_tokens=bound)
            call = only_call(core.poll(0.0))
            core.call_ended(call.call_id, Outcome.SUCCESS, Sample(output_tokens=output_tokens), 1.0)
        counts = core.calibration
        assert (counts.num_predicted, counts.num_covered, counts.num_short) == (2, 2, 2)
        assert counts.num_short_predicted_long == 0  # nothing was served yet, so 256 tokens are predicted

    def test_a_policy_that_chooses_nothing_says_nothing(self) -> None:
        """Only `adaptive` does."""
        assert make_core(ordering="boost").choice is None
