"""The contract of `DispatchCore`, input by input."""

import pytest

from policies.config import PolicySpec, build_policy
from policies.lifecycle import LifecycleError
from policies.types import Evict, Lane, Outcome, Reason, Sample, WantCapacity
from policies.verdict import Admitted, Rejected
from tests.policies.support import FakeReplica, FakeRequest, calls, make_core, offer, only_call

ONE_AT_A_TIME = FakeReplica(max_prefill_tokens=1)


class TestOffer:
    def test_admits_with_lane_and_prediction(self) -> None:
        """An admitted request learns its lane, why, and what output is expected of it."""
        admitted = offer(make_core(), "a", prompt_tokens=100, max_output_tokens=7)
        assert isinstance(admitted, Admitted)
        assert (admitted.lane, admitted.predicted_output_tokens) == (Lane.INTERACTIVE, 7)
        assert admitted.budget_tokens == pytest.approx(7 + 100 * 0.0001 / 0.025)
        assert "of at most 300" in admitted.lane_why

    def test_refuses_an_unknown_model(self) -> None:
        """No replica serves it: waiting wouldn't help, so there is no Retry-After."""
        assert offer(make_core(), "a", model="other") == Rejected(Reason.UNKNOWN_MODEL, None)

    def test_refuses_an_id_that_is_still_known(self) -> None:
        """Two requests with one id would share a slot."""
        core = make_core()
        offer(core, "a")
        with pytest.raises(LifecycleError, match="offered already"):
            offer(core, "a")

    def test_turns_away_when_the_queue_is_full(self) -> None:
        """The bound in requests holds; Retry-After is the work that waits over the rate at which work was got done."""
        cost = {"prefill_s_per_token": 1e-9, "decode_s_per_token": 0.1}
        core = make_core(ONE_AT_A_TIME, options={"queue": {"max_requests": 2}, "cost": cost})
        for request_id in "abc":
            offer(core, request_id)
            core.poll(0.0)
        rejected = offer(core, "d")
        assert rejected == Rejected(Reason.QUEUE_FULL, rejected.retry_after_s, Lane.INTERACTIVE)
        assert rejected.retry_after_s == pytest.approx(2.0)
        assert not core.knows("d")
        core.call_ended(1, Outcome.SUCCESS, Sample(output_tokens=10), 5.0)
        second = only_call(core.poll(5.0))
        core.call_ended(second.call_id, Outcome.SUCCESS, Sample(output_tokens=10), 8.0)
        core.poll(8.0)
        offer(core, "e", 8.0)
        offer(core, "f", 8.0, max_output_tokens=30)
        assert offer(core, "g", 8.0).retry_after_s == pytest.approx(16.0)

    def test_a_full_queue_is_no_business_of_what_need_not_wait(self) -> None:
        """Without any queue too, a request goes where there is room; what would wait is turned away."""
        replicas = (FakeReplica("r1", max_prefill_tokens=1), FakeReplica("r2", frozenset({"n"})))
        core = make_core(*replicas, grant=False, options={"queue": {"max_requests": 0}})
        assert isinstance(offer(core, "a"), Admitted)
        assert isinstance(core.poll(0.0)[0], WantCapacity)
        core.capacity_granted("r1", None, 0.0)
        assert calls(core.poll(0.0)) == [("a", "r1")]
        assert offer(core, "b") == Rejected(Reason.QUEUE_FULL, 1.0, Lane.INTERACTIVE)
        assert isinstance(offer(core, "c", model="n"), Admitted)
        assert offer(core, "d", model="n") == Rejected(Reason.QUEUE_FULL, 1.0, Lane.INTERACTIVE)

    def test_turns_away_by_tokens_unless_nothing_waits(self) -> None:
        """The bound in tokens never refuses a request that would wait alone."""
        core = make_core(ONE_AT_A_TIME, options={"queue": {"max_tokens": 25}})
        offer(core, "a", prompt_tokens=1000)
        core.poll(0.0)
        assert isinstance(offer(core, "b", prompt_tokens=1000), Admitted)
        assert offer(core, "c", prompt_tokens=20) == Rejected(Reason.QUEUE_FULL, 1.0, Lane.INTERACTIVE)

    @pytest.mark.parametrize("bound", [{"max_requests": 4}, {"max_tokens": 80}, {"max_bytes": 400}], ids=str)
    def test_background_work_keeps_nobody_out(self, bound: dict[str, int]) -> None:
        """It joins up to half of each bound, whoever fills that; the rest is for others."""
        core = make_core(ONE_AT_A_TIME, options={"queue": bound})
        offer(core, "running")
        core.poll(0.0)
        for request_id in "ab":
            assert isinstance(offer(core, request_id, declared_lane=Lane.BACKGROUND, body_bytes=100), Admitted)
        rejected = offer(core, "c", declared_lane=Lane.BACKGROUND, body_bytes=100)
        assert rejected == Rejected(Reason.QUEUE_FULL, 1.0, Lane.BACKGROUND)
        assert isinstance(offer(core, "d", body_bytes=100), Admitted)

    def test_turns_away_by_bytes_unless_nothing_waits(self) -> None:
        """The bodies held while they wait are bounded, and what left the queue counts no more."""
        core = make_core(ONE_AT_A_TIME, options={"queue": {"max_bytes": 1000}})
        offer(core, "a", body_bytes=10**9)
        core.poll(0.0)
        assert isinstance(offer(core, "b", body_bytes=2000), Admitted)
        assert offer(core, "c", body_bytes=1) == Rejected(Reason.QUEUE_FULL, 1.0, Lane.INTERACTIVE)
        core.cancel("b", 1.0)
        assert isinstance(offer(core, "d", 1.0, body_bytes=600), Admitted)
        assert isinstance(offer(core, "e", 1.0, body_bytes=400), Admitted)
        assert isinstance(offer(core, "f", 1.0, body_bytes=1), Rejected)
        core.check_integrity()


class TestDispatch:
    def test_one_request_goes_at_once(self) -> None:
        """With room, nothing waits; the effect says where, whole, and why there."""
        core = make_core()
        offer(core, "a", 1.0)
        call = only_call(core.poll(1.0))
        assert (call.replica_id, call.slice_end_tokens, call.waited_for) == ("r1", None, None)
        assert "fewest tokens" in call.why
        assert (core.num_queued, core.num_in_flight, core.in_flight_tokens("r1")) == (0, 1, 20)
        assert core.policy_name == "vtc+single+adaptive+fixed+bounds+least-tokens+slices"

    def test_holds_back_while_prefill_is_outstanding(self) -> None:
        """Past the prefill bound no call starts until the first token; then the waiting one says it waited for room."""
        core = make_core(FakeReplica(max_prefill_tokens=10))
        offer(core, "a", prompt_tokens=10)
        first = only_call(core.poll(0.0))
        offer(core, "b", 1.0)
        assert core.poll(1.0) == []
        core.first_token(first.call_id, 2.0)
        assert only_call(core.poll(2.0)).waited_for is Reason.CAPACITY

    def test_estimates_the_end_of_a_prefill_that_reports_no_first_token(self) -> None:
        """A whole answer holds the prefill bound for as long as the cost model says, not until it ends."""
        core = make_core(FakeReplica(max_prefill_tokens=10), options={"cost": {"prefill_s_per_token": 0.1}})
        offer(core, "a", prompt_tokens=10, streams=False)
        core.poll(0.0)
        offer(core, "b")
        assert core.poll(0.5) == []
        assert core.next_wakeup_s() == pytest.approx(1.0)
        assert calls(core.poll(1.0)) == [("b", "r1")]

    def test_an_estimated_prefill_may_outlive_its_call(self) -> None:
        """The timer of a call that has ended already does nothing."""
        core = make_core()
        offer(core, "a", streams=False)
        call = only_call(core.poll(0.0))
        core.call_ended(call.call_id, Outcome.SUCCESS, Sample(), 0.0)
        wakeup_s = core.next_wakeup_s()
        assert wakeup_s is not None
        assert core.poll(wakeup_s) == []
        assert core.next_wakeup_s() is None

    def test_caps_tokens_in_flight_but_never_an_idle_replica(self) -> None:
        """A request over the cap goes alone; with it running, even a small one waits."""
        core = make_core(FakeReplica(max_in_flight_tokens=50))
        offer(core, "big", prompt_tokens=500)
        call = only_call(core.poll(0.0))
        core.first_token(call.call_id, 0.0)
        offer(core, "small")
        assert core.poll(0.0) == []
        core.call_ended(call.call_id, Outcome.SUCCESS, Sample(), 1.0)
        assert calls(core.poll(1.0)) == [("small", "r1")]

    def test_a_slot_grows_with_what_is_generated_beyond_the_prediction(self) -> None:
        """Progress above the prediction counts against the cap; below it, the prediction stands."""
        core = make_core()
        offer(core, "a", max_output_tokens=None)
        call = only_call(core.poll(0.0))
        assert core.in_flight_tokens("r1") == 10 + 256
        core.progress(call.call_id, 100, 1.0)
        assert core.in_flight_tokens("r1") == 10 + 256
        core.progress(call.call_id, 300, 2.0)
        assert core.in_flight_tokens("r1") == 10 + 300

    def test_a_head_that_fits_nowhere_blocks_no_other_model(self) -> None:
        """Models are pools: one whose replica is full leaves the others alone."""
        core = make_core(FakeReplica("r1", max_prefill_tokens=1), FakeReplica("r2", frozenset({"n"})))
        offer(core, "a")
        offer(core, "b")
        offer(core, "c", model="n")
        assert calls(core.poll(0.0)) == [("a", "r1"), ("c", "r2")]

    def test_adapters_are_eligibility(self) -> None:
        """A request with an adapter goes only where that adapter is."""
        core = make_core(FakeReplica("r1"), FakeReplica("r2", frozenset({"m", "lora"})))
        offer(core, "a", adapter="lora")
        assert calls(core.poll(0.0)) == [("a", "r2")]

    def test_features_are_eligibility(self) -> None:
        """A request that needs a feature goes only where it is; a replica that loses it loses the request."""
        core = make_core(FakeReplica("r1"), FakeReplica("r2", features=frozenset({"embeddings"})))
        offer(core, "a", feature="embeddings")
        assert calls(core.poll(0.0)) == [("a", "r2")]
        assert core.can_serve("m", {"r2"})
        assert not core.can_serve("m", {"r2"}, feature="embeddings")
        core.replica_changed(FakeReplica("r2"), 0.0)
        offer(core, "b", feature="embeddings")
        assert calls(core.poll(0.0)) == []

    def test_background_runs_on_idle_capacity_only(self) -> None:
        """While anybody else waits for a replica, background work isn't started there."""
        core = make_core(FakeReplica(max_in_flight_tokens=100), FakeReplica("r2", frozenset({"n"})))
        offer(core, "running", prompt_tokens=60)
        call = only_call(core.poll(0.0))
        core.first_token(call.call_id, 0.0)
        offer(core, "batch", declared_lane=Lane.BACKGROUND)
        offer(core, "waits", prompt_tokens=60)
        offer(core, "other", declared_lane=Lane.BACKGROUND, model="n")
        assert calls(core.poll(0.0)) == [("other", "r2")]
        core.call_ended(call.call_id, Outcome.SUCCESS, Sample(), 1.0)
        assert calls(core.poll(1.0)) == [("waits", "r1"), ("batch", "r1")]

    def test_background_goes_ahead_once_it_has_waited_too_long(self) -> None:
        """Then the oldest goes first; the next one only after the others have had their part."""
        core = make_core(
            ONE_AT_A_TIME, options={"background": {"max_wait_s": 10.0, "max_share": 0.25}, "wait": {"max_wait_s": 99.0}}
        )
        offer(core, "running")
        call = only_call(core.poll(0.0))
        for name in ("batch-1", "batch-2"):
            offer(core, name, declared_lane=Lane.BACKGROUND)
        for number in range(8):
            offer(core, f"q{number}", 5.0)
        core.poll(5.0)
        assert core.next_wakeup_s() == pytest.approx(10.0)
        went = []
        for at_s in range(11, 20):
            core.call_ended(call.call_id, Outcome.SUCCESS, Sample(), float(at_s))
            call = only_call(core.poll(float(at_s)))
            went.append(call.request.request_id)
        assert went == ["batch-1", "q0", "q1", "q2", "batch-2", "q3", "q4", "q5", "q6"]

    def test_background_that_nobody_is_held_up_by_owes_nothing(self) -> None:
        """Overdue or not, on idle capacity one follows the other."""
        core = make_core(ONE_AT_A_TIME, options={"background": {"max_wait_s": 1.0, "max_share": 0.01}})
        for name in ("a", "b", "c"):
            offer(core, name, declared_lane=Lane.BACKGROUND)
        for at_s in (5.0, 6.0, 7.0):
            call = only_call(core.poll(at_s))
            core.call_ended(call.call_id, Outcome.SUCCESS, Sample(), at_s)
        assert core._policy.background.may_claim

    @pytest.mark.parametrize("lane", [Lane.STANDARD, Lane.BACKGROUND])
    def test_who_waits_alone_goes_whatever_its_lane_and_age(self, lane: Lane) -> None:
        """At once where there is room, and as soon as there is; in its turn, or past its time out of turn."""
        core = make_core(FakeReplica(max_in_flight_tokens=1), options={"wait": {"max_wait_s": 9.0}})
        offer(core, "first", declared_lane=lane)
        call = only_call(core.poll(0.0))
        for at_s, waits_s in ((10.0, 5.0), (20.0, 30.0)):
            offer(core, f"q{at_s}", at_s, declared_lane=lane)
            assert core.poll(at_s) == []
            core.call_ended(call.call_id, Outcome.SUCCESS, Sample(), at_s + waits_s)
            call = only_call(core.poll(at_s + waits_s))
            assert (call.request.request_id, call.lane) == (f"q{at_s}", lane)
            core.check_integrity()

    def test_an_overdue_background_request_reserves_its_replica_too(self) -> None:
        """However small the others are: otherwise one that needs an empty replica would never start."""
        core = make_core(
            FakeReplica(max_in_flight_tokens=100),
            options={"background": {"max_wait_s": 10.0}, "wait": {"max_wait_s": 99}},
        )
        offer(core, "running", prompt_tokens=50)
        call = only_call(core.poll(0.0))
        core.first_token(call.call_id, 0.0)
        offer(core, "batch", prompt_tokens=90, declared_lane=Lane.BACKGROUND)
        offer(core, "small", 11.0)
        assert core.poll(11.0) == []
        core.call_ended(call.call_id, Outcome.SUCCESS, Sample(), 12.0)
        assert calls(core.poll(12.0)) == [("batch", "r1")]

    def test_caps_requests_in_flight(self) -> None:
        """Where a replica takes only so many at a time, whatever their size."""
        core = make_core(FakeReplica(max_in_flight_requests=2))
        for name in ("a", "b", "c"):
            offer(core, name, prompt_tokens=1)
        assert calls(core.poll(0.0)) == [("a", "r1"), ("b", "r1")]
        core.call_ended(1, Outcome.SUCCESS, Sample(), 1.0)
        assert calls(core.poll(1.0)) == [("c", "r1")]

    def test_an_overdue_request_reserves_its_replica(self) -> None:
        """Too big for what is free and waiting too long: nothing else starts there until it fits."""
        core = make_core(FakeReplica(max_in_flight_tokens=100), options={"wait": {"max_wait_s": 10.0}})
        offer(core, "running", prompt_tokens=50)
        call = only_call(core.poll(0.0))
        core.first_token(call.call_id, 0.0)
        offer(core, "big", prompt_tokens=80)
        offer(core, "small", 1.0)
        assert calls(core.poll(1.0)) == []  # the same lane: the smaller cost is no reason to pass an older one for ever
        offer(core, "passes", 2.0, declared_lane=Lane.LONG)
        assert calls(core.poll(2.0)) == [("passes", "r1")]
        assert core.next_wakeup_s() == pytest.approx(10.0)
        core.call_ended(2, Outcome.SUCCESS, Sample(), 11.0)
        offer(core, "late", 11.0, declared_lane=Lane.LONG)
        assert core.poll(11.0) == []
        core.call_ended(call.call_id, Outcome.SUCCESS, Sample(), 12.0)
        assert calls(core.poll(12.0))[0] == ("big", "r1")

    def test_overdue_requests_of_one_replica_reserve_it_once(self) -> None:
        """Two pools with overdue heads on one replica: the older holds it, the younger reserves nothing of its own."""
        core = make_core(
            FakeReplica(models=frozenset({"m", "n"}), max_in_flight_tokens=100),
            flows="one-flow",
            options={"wait": {"max_wait_s": 1.0}},
        )
        offer(core, "running", prompt_tokens=80)
        call = only_call(core.poll(0.0))
        core.first_token(call.call_id, 0.0)
        offer(core, "older", 1.0, prompt_tokens=80)
        offer(core, "younger", 2.0, prompt_tokens=80, model="n")
        assert core.poll(9.0) == []
        core.call_ended(call.call_id, Outcome.SUCCESS, Sample(), 10.0)
        assert calls(core.poll(10.0)) == [("older", "r1")]

    def test_says_when_others_went_first(self) -> None:
        """A request passed by one that came later waited for its lane, not for capacity."""
        core = make_core(ONE_AT_A_TIME, ordering="aged-sjf")
        offer(core, "a")
        first = only_call(core.poll(0.0))
        offer(core, "long", 1.0, prompt_tokens=3000, max_output_tokens=250)
        offer(core, "short", 2.0)
        core.first_token(first.call_id, 3.0)
        second = only_call(core.poll(3.0))
        core.first_token(second.call_id, 4.0)
        third = only_call(core.poll(4.0))
        assert (second.request.request_id, second.waited_for) == ("short", Reason.CAPACITY)
        assert (third.request.request_id, third.waited_for) == ("long", Reason.LANE)


class TestFlows:
    def test_a_tenant_that_floods_is_passed_by_one_that_comes_now_and_then(self) -> None:
        """Tenants take turns; within a tenant short goes first."""
        core = make_core(ONE_AT_A_TIME, ordering="aged-sjf")
        offer(core, "running", tenant="a")
        call = only_call(core.poll(0.0))
        for index in range(4):
            offer(core, f"a{index}", 1.0, tenant="a", prompt_tokens=50 - index)
        offer(core, "b0", 2.0, tenant="b", prompt_tokens=60)
        offer(core, "b1", 2.0, tenant="b", prompt_tokens=40)
        went = []
        for at_s in range(3, 9):
            core.progress(call.call_id, 5, float(at_s))
            core.progress(call.call_id, 5, float(at_s))
            core.call_ended(call.call_id, Outcome.SUCCESS, Sample(output_tokens=10), float(at_s))
            call = only_call(core.poll(float(at_s)))
            went.append(call.request.request_id)
            core.check_integrity()
        assert went == ["b1", "a3", "b0", "a2", "a1", "a0"]

    def test_models_are_flows_of_their_own(self) -> None:
        """What a tenant used of one model is nothing to its turn at another."""
        core = make_core(FakeReplica(models=frozenset({"m", "n"}), max_prefill_tokens=1))
        offer(core, "a", tenant="a", prompt_tokens=5000)
        call = only_call(core.poll(0.0))
        offer(core, "an", 1.0, tenant="a", model="n")
        offer(core, "bm", 1.0, tenant="b")
        core.call_ended(call.call_id, Outcome.SUCCESS, Sample(output_tokens=10), 2.0)
        assert calls(core.poll(2.0)) == [("an", "r1")]

    def test_a_flood_that_has_waited_too_long_is_no_reason_to_go_before_others(self) -> None:
        """The oldest of a tenant goes first in that tenant's turn, before its shorter ones; others keep theirs."""
        core = make_core(ONE_AT_A_TIME, options={"wait": {"max_wait_s": 10.0}})
        offer(core, "running", tenant="a", prompt_tokens=500)
        call = only_call(core.poll(0.0))
        offer(core, "a-long", 1.0, tenant="a", prompt_tokens=900)
        offer(core, "a-short", 2.0, tenant="a")
        offer(core, "b", 20.0, tenant="b")
        went = []
        for at_s in (30.0, 31.0, 32.0):
            core.call_ended(call.call_id, Outcome.SUCCESS, Sample(output_tokens=10), at_s)
            call = only_call(core.poll(at_s))
            went.append(call.request.request_id)
        assert went == ["b", "a-long", "a-short"]

    def test_whose_turn_it_is_holds_up_its_own_lane_only(self) -> None:
        """A request that doesn't fit isn't passed by smaller ones of other tenants in its lane; other lanes go on."""
        core = make_core(FakeReplica(max_in_flight_tokens=100))
        offer(core, "running", tenant="c", prompt_tokens=50)
        call = only_call(core.poll(0.0))
        core.first_token(call.call_id, 0.0)
        offer(core, "large", tenant="a", prompt_tokens=90)
        offer(core, "small", tenant="b", prompt_tokens=20)
        offer(core, "passes", tenant="d", prompt_tokens=20, declared_lane=Lane.LONG)
        assert calls(core.poll(0.0)) == [("passes", "r1")]
        core.call_ended(call.call_id, Outcome.SUCCESS, Sample(), 1.0)
        core.call_ended(2, Outcome.SUCCESS, Sample(), 1.0)
        assert calls(core.poll(1.0)) == [("large", "r1")]

    def test_background_work_of_one_tenant_goes_while_another_waits_for_another_model(self) -> None:
        """Idle capacity is found whoever waits for what is busy."""
        core = make_core(FakeReplica("r1"), FakeReplica("r2", frozenset({"n"}), max_prefill_tokens=1))
        offer(core, "running", model="n")
        core.poll(0.0)
        offer(core, "waits", tenant="a", model="n")
        offer(core, "batch", tenant="b", declared_lane=Lane.BACKGROUND)
        assert calls(core.poll(0.0)) == [("batch", "r1")]

    def test_while_one_waits_alone_its_lane_is_known(self) -> None:
        """A lane is left when the one in it goes, and only then."""
        core = make_core(ONE_AT_A_TIME)
        offer(core, "running")
        core.poll(0.0)
        offer(core, "a", tenant="a")
        queue = core._books.queue
        assert queue.waits_in(("a", "m"), Lane.INTERACTIVE)
        assert [[job.request.request_id for job in queue.oldest_of((name, "m"))] for name in "ab"] == [["a"], []]
        assert not queue.waits_in(("b", "m"), Lane.INTERACTIVE)


class TestRecount:
    def test_a_waiting_request_is_put_into_a_lane_and_ordered_anew(self) -> None:
        """Estimated long and counted short, it goes before what is longer; its arrival and place in line stay."""
        core = make_core(ONE_AT_A_TIME, ordering="aged-sjf")
        offer(core, "running")
        first = only_call(core.poll(0.0))
        offer(core, "b", 1.0, prompt_tokens=5_000)
        assert offer(core, "a", 2.0, prompt_tokens=1_000_000).lane is Lane.LONG
        counted = core.recount(FakeRequest("a", 2.0, prompt_tokens=50), 3.0)
        assert counted is not None
        assert (counted.lane, counted.predicted_output_tokens) == (Lane.INTERACTIVE, 10)
        assert counted.budget_tokens == pytest.approx(10 + 50 * 0.0001 / 0.025)
        assert core.queued_by_lane()[Lane.LONG] == 0
        core.check_integrity()
        core.first_token(first.call_id, 3.0)
        call = only_call(core.poll(3.0))
        assert (call.request.request_id, call.lane, call.request.prompt_tokens) == ("a", Lane.INTERACTIVE, 50)

    def test_what_turns_out_longer_waits_for_its_turn(self) -> None:
        """The other way round, and a lane keeps its turn while something waits in it."""
        core = make_core(ONE_AT_A_TIME)
        offer(core, "running")
        first = only_call(core.poll(0.0))
        offer(core, "a", 1.0, prompt_tokens=50)
        offer(core, "b", 2.0, prompt_tokens=60)
        counted = core.recount(FakeRequest("a", 1.0, prompt_tokens=1_000_000), 3.0)
        assert counted is not None
        assert counted.lane is Lane.LONG
        core.first_token(first.call_id, 3.0)
        assert calls(core.poll(3.0)) == [("b", "r1")]
        core.check_integrity()

    def test_of_a_running_request_only_the_slot_changes(self) -> None:
        """It holds what it really takes, and gives back the same."""
        core = make_core()
        offer(core, "a", prompt_tokens=100)
        call = only_call(core.poll(0.0))
        assert core.recount(FakeRequest("a", prompt_tokens=300), 1.0) is None
        assert core.in_flight_tokens("r1") == 310
        core.check_integrity()
        core.call_ended(call.call_id, Outcome.SUCCESS, Sample(output_tokens=10), 2.0)
        assert core.in_flight_tokens("r1") == 0

    def test_between_calls_it_counts_for_the_next(self) -> None:
        """Failed on one replica, it waits with the tokens it really has."""
        core = make_core(FakeReplica("r1"), FakeReplica("r2"))
        offer(core, "a", prompt_tokens=100)
        call = only_call(core.poll(0.0))
        core.call_ended(call.call_id, Outcome.DROPPED, Sample(), 1.0)
        assert core.recount(FakeRequest("a", prompt_tokens=300), 1.0) is None
        core.requeue("a", {"r1"}, 1.0)
        core.check_integrity()
        assert calls(core.poll(1.0)) == [("a", "r2")]
        assert core.in_flight_tokens("r2") == 310

    def test_comes_too_late_for_a_request_that_has_ended(self) -> None:
        """Or that nobody knows."""
        core = make_core()
        assert core.recount(FakeRequest("a"), 0.0) is None
        offer(core, "a")
        core.cancel("a", 0.0)
        assert core.recount(FakeRequest("a"), 0.0) is None


class TestEnd:
    def test_gives_the_slot_back_once(self) -> None:
        """A second end of the same call raises and changes nothing."""
        core = make_core()
        offer(core, "a")
        call = only_call(core.poll(0.0))
        core.call_ended(call.call_id, Outcome.SUCCESS, Sample(), 1.0)
        assert (core.num_in_flight, core.in_flight_tokens("r1"), core.knows("a")) == (0, 0, False)
        with pytest.raises(LifecycleError, match="isn't running"):
            core.call_ended(call.call_id, Outcome.SUCCESS, Sample(), 1.0)
        core.check_integrity()

    def test_first_token_comes_once(self) -> None:
        """A second first token is a bug of the shell, and says what would have been possible."""
        core = make_core()
        offer(core, "a")
        call = only_call(core.poll(0.0))
        core.first_token(call.call_id, 1.0)
        with pytest.raises(LifecycleError, match="first-token is not possible while streaming"):
            core.first_token(call.call_id, 1.0)

    def test_learns_output_lengths(self) -> None:
        """After enough answers the prediction follows what was served, not the caller's bound."""
        core = make_core()
        for index in range(8):
            offer(core, f"q{index}", max_output_tokens=500)
            call = only_call(core.poll(float(index)))
            core.call_ended(call.call_id, Outcome.SUCCESS, Sample(output_tokens=40), float(index))
        assert offer(core, "next", max_output_tokens=500).predicted_output_tokens == 40

    def test_learns_how_fast_each_replica_is(self) -> None:
        """From what calls took, what ran beside them and what was to be computed before them; not from failures."""
        core = make_core()
        for index in range(40):
            offer(core, f"q{index}", prompt_tokens=100 + 50 * index)
            call = only_call(core.poll(float(index)))
            sample = Sample(100 + 50 * index, 50, 10, 0.01 * (50 + 50 * index), 0.2)
            core.call_ended(call.call_id, Outcome.SUCCESS, sample, float(index))
            offer(core, f"failed{index}", prompt_tokens=100)
            call = only_call(core.poll(float(index)))
            core.call_ended(call.call_id, Outcome.IGNORED, Sample(100, 0, 10, 99.0, 99.0), float(index))
        assert core.view("nobody") is None
        view = core.view("r1")
        assert view is not None
        timing = view.timing
        assert timing.prefill_s_per_token == pytest.approx(0.01, rel=0.1)
        assert timing.decode_s_per_token == pytest.approx(0.2, rel=0.05)

    def test_what_was_computed_beside_an_answer_is_no_slowness_of_its_own(self) -> None:
        """Two prompts are computed while it decodes, a token taking 0.2 s by itself and 0.01 s each of theirs.

        One that never came to its first token isn't counted, nor an answer with several choices: it has several tokens
        a step.
        """
        core = make_core()
        for index in range(40):
            now_s, beside_tokens = 100.0 * index, 100 + 10 * index
            offer(core, "long", now_s)
            long = only_call(core.poll(now_s))
            core.first_token(long.call_id, now_s)
            for name, tokens in (("a", beside_tokens), ("b", 50), ("fails", 5_000)):
                offer(core, name, now_s, prompt_tokens=tokens)
                call = only_call(core.poll(now_s))
                if name != "fails":
                    core.first_token(call.call_id, now_s)
                core.call_ended(call.call_id, Outcome.IGNORED, Sample(), now_s)
            took_s = 0.2 * 9 + 0.01 * (beside_tokens + 50)
            core.call_ended(long.call_id, Outcome.SUCCESS, Sample(10, 0, 10, None, took_s / 9), now_s)
            offer(core, "choices", now_s, num_choices=4)
            call = only_call(core.poll(now_s))
            core.call_ended(call.call_id, Outcome.SUCCESS, Sample(10, 0, 40, None, 0.01), now_s)
        view = core.view("r1")
        assert view is not None
        assert view.timing.tpot_s == pytest.approx(0.2, rel=0.1)

    def test_an_answer_that_cost_nothing_is_no_prediction_error(self) -> None:
        """All of the prompt cached and no output: there is no ratio to learn from."""
        core = make_core()
        offer(core, "a")
        call = only_call(core.poll(0.0))
        core.call_ended(call.call_id, Outcome.SUCCESS, Sample(10, 10, 0), 1.0)
        assert core._policy.traffic.load().log_error is None

    def test_a_failed_request_waits_again_elsewhere(self) -> None:
        """Requeued, it keeps its arrival and never goes back to the replica that failed it."""
        core = make_core(FakeReplica("r1"), FakeReplica("r2"))
        offer(core, "a")
        call = only_call(core.poll(0.0))
        core.call_ended(call.call_id, Outcome.DROPPED, Sample(), 1.0)
        assert core.num_in_flight == 0
        assert core.can_serve("m", {"r1"})
        assert not core.can_serve("m", {"r1", "r2"})
        core.requeue("a", {"r1"}, 1.0)
        assert calls(core.poll(1.0)) == [("a", "r2")]

    def test_a_failed_request_can_be_given_up(self) -> None:
        """Cancelled between calls, it is gone; to requeue it then raises."""
        core = make_core()
        offer(core, "a")
        call = only_call(core.poll(0.0))
        core.call_ended(call.call_id, Outcome.DROPPED, Sample(), 1.0)
        core.cancel("a", 1.0)
        assert not core.knows("a")
        with pytest.raises(LifecycleError, match="has ended"):
            core.requeue("a", (), 1.0)

    def test_only_a_failed_request_can_be_requeued(self) -> None:
        """A waiting request can't be made to wait twice."""
        core = make_core()
        offer(core, "a")
        with pytest.raises(LifecycleError, match="requeue is not possible while waiting"):
            core.requeue("a", (), 0.0)

    def test_cancel_takes_a_waiting_request_out(self) -> None:
        """Its place is free at once, and a second cancel is nothing."""
        core = make_core(ONE_AT_A_TIME)
        offer(core, "a")
        core.poll(0.0)
        offer(core, "b")
        core.cancel("b", 1.0)
        core.cancel("b", 1.0)
        assert core.num_queued == 0
        core.check_integrity()

    @pytest.mark.parametrize("outcome", list(Outcome))
    def test_cancel_leaves_the_slot_of_a_running_request_until_its_call_ends(self, outcome: Outcome) -> None:
        """The replica is still busy with it; whatever the end, nothing remains."""
        core = make_core()
        offer(core, "a")
        call = only_call(core.poll(0.0))
        core.cancel("a", 1.0)
        core.cancel("a", 1.0)
        core.first_token(call.call_id, 1.0)
        assert core.num_in_flight == 1
        core.call_ended(call.call_id, outcome, Sample(), 2.0)
        assert (core.num_in_flight, core.knows("a")) == (0, False)
        core.check_integrity()


class TestTime:
    def test_evicts_what_waited_past_its_deadline(self) -> None:
        """Undispatched by its deadline, a request leaves the queue with a reason."""
        core = make_core(ONE_AT_A_TIME)
        offer(core, "a")
        core.poll(0.0)
        offer(core, "gone", deadline_s=3.0)
        offer(core, "b", deadline_s=4.0)
        offer(core, "c", deadline_s=9.0)
        core.cancel("gone", 1.0)
        assert core.next_wakeup_s() == pytest.approx(4.0)
        assert core.poll(4.0) == [Evict("b", Reason.QUEUE_TIMEOUT, 1.0)]
        offer(core, "d", 4.0, deadline_s=5.0, first_token_by_s=5.0)
        assert core.poll(5.0) == [Evict("d", Reason.DEADLINE, 1.0)]
        assert core.queued_by_lane()[Lane.INTERACTIVE] == 1

    def test_gives_up_when_no_replica_comes_back(self) -> None:
        """With nobody to serve them, requests wait for the grace and leave; those that go say why they waited."""
        core = make_core(FakeReplica(is_available=False), options={"wait": {"no_replica_grace_s": 5.0}})
        offer(core, "a")
        assert core.poll(0.0) == []
        assert core.next_wakeup_s() == pytest.approx(5.0)
        assert core.poll(5.0) == [Evict("a", Reason.NO_REPLICA, 1.0)]
        offer(core, "b", 6.0)
        core.poll(6.0)
        core.replica_changed(FakeReplica(), 7.0)
        assert only_call(core.poll(7.0)).waited_for is Reason.NO_REPLICA

    def test_gives_up_only_those_without_a_replica(self) -> None:
        """Other models' requests stay."""
        core = make_core(
            FakeReplica("r1", is_available=False), FakeReplica("r2", frozenset({"n"}), max_prefill_tokens=1)
        )
        offer(core, "a")
        offer(core, "b", model="n")
        offer(core, "c", model="n")
        core.poll(0.0)
        assert core.poll(5.0) == [Evict("a", Reason.NO_REPLICA, 1.0)]
        assert core.num_queued == 1

    def test_nothing_to_do_needs_no_timer(self) -> None:
        """An idle core never wakes."""
        assert make_core().next_wakeup_s() is None


class TestReplicas:
    def test_a_removed_replica_gets_nothing_more_and_is_forgotten_when_empty(self) -> None:
        """Its running call ends normally; new requests go elsewhere."""
        core = make_core(FakeReplica("r1"), FakeReplica("r2"))
        offer(core, "a")
        call = only_call(core.poll(0.0))
        core.replica_removed("r1", 0.0)
        core.replica_removed("r2", 0.0)
        assert offer(core, "b") == Rejected(Reason.UNKNOWN_MODEL, None) or core.poll(0.0) == []
        assert core.in_flight_tokens("r1") == 20
        core.call_ended(call.call_id, Outcome.SUCCESS, Sample(), 1.0)
        assert core.in_flight_tokens("r1") == 0

    def test_a_replica_that_comes_back_serves_again(self) -> None:
        """Removed while busy and announced again before its call ended: its books go on."""
        core = make_core()
        offer(core, "a")
        core.poll(0.0)
        core.replica_removed("r1", 0.0)
        core.replica_changed(FakeReplica(), 1.0)
        offer(core, "b", 1.0)
        assert calls(core.poll(1.0)) == [("b", "r1")]
        assert core.in_flight_tokens("r1") == 40

    def test_dispatches_only_against_granted_capacity(self) -> None:
        """Without a grant it asks, once, for what the head needs; with it, the request goes."""
        core = make_core(FakeReplica(), grant=False)
        offer(core, "a")
        (want,) = core.poll(0.0)
        assert isinstance(want, WantCapacity)
        assert (want.replica_id, want.tokens) == ("r1", 20)
        assert core.poll(0.0) == []
        core.capacity_granted("r1", 30, 1.0)
        assert calls(core.poll(1.0)) == [("a", "r1")]
        offer(core, "b", 2.0)
        (want,) = core.poll(2.0)
        assert isinstance(want, WantCapacity)
        assert want.tokens == 40
        core.capacity_granted("r1", None, 3.0)
        assert calls(core.poll(3.0)) == [("b", "r1")]


class TestPolicyChange:
    def test_re_keys_what_waits(self) -> None:
        """Flipped from shortest-first to arrival order, the queue follows; what runs is settled by the old policy."""
        core = make_core(ONE_AT_A_TIME, lanes="single")
        offer(core, "a")
        running = only_call(core.poll(0.0))
        offer(core, "long", 1.0, prompt_tokens=3000)
        offer(core, "short", 2.0)
        core.set_policy(build_policy(PolicySpec(ordering="fcfs", lanes="single")), 3.0)
        assert core.policy_name == "vtc+single+fcfs+fixed+bounds+least-tokens+slices"
        core.call_ended(running.call_id, Outcome.SUCCESS, Sample(output_tokens=3), 3.0)
        assert calls(core.poll(3.0)) == [("long", "r1")]
        core.check_integrity()
