"""Long prompts through the core: whole while alone, stopped for others, in slices from there, one at a time."""

from typing import Any

import pytest

from policies.dispatch import DispatchCore
from policies.types import Call, Outcome, Sample, StopCall

from .support import FakeReplica, FakeRequest, calls, make_core, only_call

LONG = {"prompt_tokens": 16_000, "can_be_sliced": True}
SLICING = FakeReplica("r1", slice_block_tokens=16, max_prefill_tokens=8192, max_in_flight_tokens=100_000)
# A token takes a millisecond: 16,000 take 16 s, a slice of half a second ends after 496.
MILLISECOND = {"cost": {"prefill_s_per_token": 0.001}}


def _core(*replicas: FakeReplica, **options: Any) -> DispatchCore:
    return make_core(*(replicas or (SLICING,)), options=MILLISECOND | options)


def _offer(core: DispatchCore, request_id: str, now_s: float, **fields: Any) -> None:
    core.offer(FakeRequest(request_id, now_s, **fields), now_s)


def _stop(core: DispatchCore, now_s: float = 0.0) -> Call:
    """The long request "long" was sent whole, and stopped three seconds later when "short" came, which runs now."""
    _offer(core, "long", now_s, **LONG)
    whole = only_call(core.poll(now_s))
    assert whole.slice_end_tokens is None
    _offer(core, "short", now_s + 3.0)
    assert core.poll(now_s + 3.0) == [StopCall(whole.call_id, "long", "r1")]
    core.call_ended(whole.call_id, Outcome.IGNORED, Sample(), now_s + 3.0)
    short = only_call(core.poll(now_s + 3.0))
    assert short.request.request_id == "short"
    core.check_integrity()
    return short


def _ended(core: DispatchCore, call: Call, now_s: float, outcome: Outcome = Outcome.SUCCESS) -> None:
    core.call_ended(call.call_id, outcome, Sample(), now_s)
    core.check_integrity()


def test_a_long_prompt_that_is_alone_goes_whole() -> None:
    """One call, and nothing stops it while nobody comes."""
    core = _core()
    _offer(core, "long", 0.0, **LONG)
    assert only_call(core.poll(0.0)).slice_end_tokens is None
    assert core.poll(5.0) == []
    assert core.next_wakeup_s() is None


def test_it_is_stopped_for_others_and_goes_on_in_slices_when_they_have_their_first_token() -> None:
    """What 80 % of three seconds compute counts as cached; the slot is kept all the while."""
    core = _core()
    short = _stop(core)
    held = core.in_flight_tokens("r1")
    assert held == 16_000 + 10 + 10 + 10
    core.first_token(short.call_id, 3.1)
    first = only_call(core.poll(3.1))
    assert (first.request.request_id, first.slice_end_tokens) == ("long", 2400 + 496)
    assert core.in_flight_tokens("r1") == held
    _ended(core, first, 3.6)
    second = only_call(core.poll(3.6))
    assert second.slice_end_tokens == 2400 + 2 * 496
    assert core.in_flight_tokens("r1") == held


def test_between_slices_others_pass_but_not_for_ever() -> None:
    """While somebody waits for a first token the next slice waits, a second at most."""
    core = _core()
    _stop(core)
    assert core.next_wakeup_s() == 4.0
    assert core.poll(3.9) == []
    late = only_call(core.poll(4.0))
    assert (late.request.request_id, late.slice_end_tokens) == ("long", 2896)


def test_it_is_not_stopped_twice_without_progress() -> None:
    """Sent whole again after a stop, it stays until it is done; after a slice it may be stopped once more."""
    core = _core(slices={"quiet_s": 0.05})
    short = _stop(core)
    core.first_token(short.call_id, 3.1)
    whole = only_call(core.poll(3.1))
    assert whole.slice_end_tokens is None
    _offer(core, "second", 3.2, prompt_tokens=20)
    assert core.poll(3.2) == []


def test_it_goes_whole_again_when_nobody_comes_any_more() -> None:
    """Two quiet seconds, and the rest is one call; after the slices before it, that one may be stopped again."""
    core = _core()
    short = _stop(core)
    core.first_token(short.call_id, 3.1)
    now_s, call = 3.1, only_call(core.poll(3.1))
    while call.slice_end_tokens is not None:
        now_s += 0.5
        _ended(core, call, now_s)
        call = only_call(core.poll(now_s))
    assert now_s == pytest.approx(5.1)
    _offer(core, "second", 6.0)
    assert core.poll(6.0) == [StopCall(call.call_id, "long", "r1")]


def test_slices_from_the_start_while_others_come() -> None:
    """Where somebody came in the last seconds, a long prompt isn't sent whole at first."""
    core = _core()
    _offer(core, "short", 0.0)
    short = only_call(core.poll(0.0))
    core.first_token(short.call_id, 0.1)
    _ended(core, short, 0.2)
    _offer(core, "long", 0.5, **LONG)
    assert only_call(core.poll(0.5)).slice_end_tokens == 496


def test_the_last_call_is_the_whole_request_and_ends_it() -> None:
    """Its answer is the request's, and its prompt counts no longer against the replica's prefill bound."""
    core = _core()
    _offer(core, "short", 0.0)
    core.poll(0.0)
    _offer(core, "long", 0.0, prompt_tokens=1300, can_be_sliced=True)
    ends, now_s = [], 0.0
    call = only_call(core.poll(1.0))  # the short one hasn't got its first token: a second of patience
    while call.slice_end_tokens is not None:
        ends.append(call.slice_end_tokens)
        now_s += 0.5
        _ended(core, call, now_s)
        call = only_call(core.poll(now_s + 1.0))
    assert ends == [496, 992]
    core.first_token(call.call_id, 3.0)
    _ended(core, call, 4.0)
    assert not core.knows("long")
    assert core.in_flight_tokens("r1") == 20


def test_one_long_prompt_at_a_time_on_each_replica() -> None:
    """The second goes to another replica, the third waits; ordinary requests pass it, also those of its lane."""
    other = FakeReplica("r2", slice_block_tokens=16, max_prefill_tokens=1 << 20, max_in_flight_tokens=100_000)
    core = _core(FakeReplica("r1", slice_block_tokens=16, max_prefill_tokens=1 << 20), other)
    for name in ("a", "b", "c"):
        _offer(core, name, 0.0, max_output_tokens=5000, **LONG)
    first = calls(core.poll(0.0))
    assert sorted(first) == [("a", "r1"), ("b", "r2")]
    _offer(core, "writer", 0.1, max_output_tokens=20_000)
    assert [name for name, _ in calls(core.poll(0.1))][:1] == ["writer"]


def test_a_replica_without_slices_takes_whole_prompts_side_by_side() -> None:
    """Nothing is stopped there, and nothing is held back."""
    core = _core(FakeReplica("r1", max_prefill_tokens=1 << 20, max_in_flight_tokens=100_000))
    _offer(core, "a", 0.0, **LONG)
    _offer(core, "b", 0.0, **LONG)
    _offer(core, "short", 0.0)
    assert [effect for effect in core.poll(0.0) if isinstance(effect, StopCall)] == []
    assert core.num_in_flight == 3


def test_what_can_not_be_sliced_is_not_stopped() -> None:
    """Images, several prompts: their calls run as they are."""
    core = _core()
    _offer(core, "opaque", 0.0, prompt_tokens=16_000)
    core.poll(0.0)
    _offer(core, "short", 1.0)
    assert core.poll(1.0) == []


def test_a_cancel_between_slices_is_the_end() -> None:
    """The client left: the slot is free at once, and no slice follows."""
    core = _core()
    short = _stop(core)
    core.cancel("long", 3.05)
    assert not core.knows("long")
    assert core.in_flight_tokens("r1") == 20
    core.first_token(short.call_id, 3.1)
    assert core.poll(9.0) == []
    core.check_integrity()


def test_a_cancel_during_a_slice_is_the_end_when_the_slice_ends() -> None:
    """The slot stays until the call is over."""
    core = _core()
    short = _stop(core)
    core.first_token(short.call_id, 3.1)
    slice_call = only_call(core.poll(3.1))
    core.cancel("long", 3.2)
    assert core.knows("long")
    _ended(core, slice_call, 3.3)
    assert not core.knows("long")
    assert core.poll(9.0) == []


def test_an_answer_quicker_than_the_stop_is_the_end() -> None:
    """A stopped call that was answered after all ends its request."""
    core = _core()
    _offer(core, "long", 0.0, **LONG)
    whole = only_call(core.poll(0.0))
    _offer(core, "short", 1.0)
    core.poll(1.0)
    core.first_token(whole.call_id, 1.1)
    _ended(core, whole, 1.2)
    assert not core.knows("long")


def test_a_slice_that_the_replica_refuses_is_the_last_one() -> None:
    """A 4xx to a slice: the request goes whole from there, and isn't stopped again."""
    core = _core()
    short = _stop(core)
    core.first_token(short.call_id, 3.1)
    _ended(core, only_call(core.poll(3.1)), 3.2, Outcome.IGNORED)
    whole = only_call(core.poll(3.2))
    assert whole.slice_end_tokens is None
    _offer(core, "second", 3.3, prompt_tokens=8000)
    assert core.poll(3.3) == []


def test_a_dropped_slice_is_left_to_the_shell_and_starts_over() -> None:
    """What lay in the replica's cache counts for nothing elsewhere."""
    core = _core(SLICING, FakeReplica("r2", is_available=False, slice_block_tokens=16))
    short = _stop(core)
    core.first_token(short.call_id, 3.1)
    _ended(core, only_call(core.poll(3.1)), 3.2, Outcome.DROPPED)
    core.replica_changed(FakeReplica("r2", slice_block_tokens=16), 3.2)
    core.requeue("long", {"r1"}, 3.2)
    again = only_call(core.poll(3.2))
    assert (again.replica_id, again.slice_end_tokens) == ("r2", 496)
    core.check_integrity()


def test_a_parked_request_starts_over_when_its_replica_is_lost() -> None:
    """It waits again, with its old arrival, for any replica."""
    core = _core(SLICING, FakeReplica("r2", is_available=False, slice_block_tokens=16))
    _stop(core)
    core.replica_changed(FakeReplica("r2", slice_block_tokens=16), 3.05)
    core.replica_changed(FakeReplica("r1", is_available=False, slice_block_tokens=16), 3.05)
    assert calls(core.poll(3.05)) == [("long", "r2")]
    core.check_integrity()


def test_a_removed_replica_is_forgotten_after_its_parked_request() -> None:
    """The ledger goes when the last that held something there has gone."""
    core = _core()
    short = _stop(core)
    core.replica_removed("r1", 3.05)
    _ended(core, short, 3.1)
    core.poll(3.1)
    assert core.num_queued == 1
    assert core.in_flight_tokens("r1") == 0
    core.check_integrity()


def test_a_recount_between_slices_changes_what_is_held() -> None:
    """The prompt is shorter than was thought: the slot too, and no more counts as computed than there is."""
    core = _core()
    short = _stop(core)
    assert core.recount(FakeRequest("long", 0.0, prompt_tokens=2000, can_be_sliced=True), 3.05) is None
    assert core.in_flight_tokens("r1") == 2010 + 20
    core.first_token(short.call_id, 3.1)
    assert only_call(core.poll(3.1)).slice_end_tokens is None
    core.check_integrity()


def test_near_its_deadline_it_goes_whole() -> None:
    """No time to let others pass: it isn't stopped, and isn't cut."""
    core = _core()
    _offer(core, "short", 0.0)
    core.poll(0.0)
    core.first_token(1, 0.1)
    _offer(core, "long", 0.2, deadline_s=20.0, **LONG)
    assert only_call(core.poll(0.2)).slice_end_tokens is None
    _offer(core, "second", 1.0)
    assert core.poll(1.0) == []


def test_a_new_policy_without_slices_lets_what_is_parked_go_whole() -> None:
    """Nothing that waits between slices is lost when the policy changes."""
    from policies.config import PolicySpec, build_policy

    core = _core()
    short = _stop(core)
    core.set_policy(build_policy(PolicySpec(slicing="whole")), 3.05)
    core.first_token(short.call_id, 3.1)
    assert only_call(core.poll(3.1)).slice_end_tokens is None


def test_slices_get_shorter_as_the_prompt_goes_on() -> None:
    """A token costs more the more stand before it: slices of the same time have fewer of them."""
    core = _core()
    _offer(core, "short", 0.0)
    short = only_call(core.poll(0.0))
    core.first_token(short.call_id, 0.1)
    _offer(core, "long", 0.2, **LONG)
    now_s, sizes, start = 0.2, [], 0
    while (call := only_call(core.poll(now_s))).slice_end_tokens is not None:
        end = call.slice_end_tokens
        took_s = (end - start) * (0.0005 + 1e-7 * (start + end) / 2)
        core.call_ended(call.call_id, Outcome.SUCCESS, Sample(upstream_ttft_s=took_s), now_s + took_s)
        core.check_integrity()
        sizes.append(end - start)
        now_s, start = now_s + took_s, end
        core.offer(FakeRequest(f"s{start}", now_s), now_s)
        core.cancel(f"s{start}", now_s)
    later = sizes[len(sizes) // 2 :]
    assert later == sorted(later, reverse=True)
    assert later[-1] < sizes[1]


def test_long_prompts_take_their_turns_in_order_and_each_comes_to_its_end() -> None:
    """Three of them and a stream of others on one replica: the second begins when the first has been computed."""
    core = _core()
    for name in ("a", "b", "c"):
        _offer(core, name, 0.0, **LONG)
    now_s = 0.0
    begun: list[str] = []
    waiting: list[tuple[float, Call]] = []
    while len(begun) < 3 and now_s < 1000.0:
        now_s += 0.25
        _offer(core, f"short-{now_s}", now_s)
        for effect in core.poll(now_s):
            if isinstance(effect, StopCall):
                core.call_ended(effect.call_id, Outcome.IGNORED, Sample(), now_s)
            elif isinstance(effect, Call):
                waiting.append((now_s + 0.5, effect))
        for due_s, call in [each for each in waiting if each[0] <= now_s]:
            waiting.remove((due_s, call))
            if not core.knows(call.request.request_id) or call.call_id not in core._books.calls:
                continue
            if call.slice_end_tokens is None:
                core.first_token(call.call_id, now_s)
                begun += [call.request.request_id] if call.request.prompt_tokens == 16_000 else []
            core.call_ended(call.call_id, Outcome.SUCCESS, Sample(), now_s)
        core.check_integrity()
    assert begun == ["a", "b", "c"]


def _sliced(core: DispatchCore, name: str, now_s: float, *, cached: int | None, ttft_s: float) -> float:
    """A request of 2,000 tokens in slices while others come, to its end; the instant of it."""
    _offer(core, f"other-{name}", now_s)
    other = only_call(core.poll(now_s))
    core.first_token(other.call_id, now_s)
    core.call_ended(other.call_id, Outcome.SUCCESS, Sample(), now_s)
    _offer(core, name, now_s, prompt_tokens=2000, can_be_sliced=True)
    while (call := only_call(core.poll(now_s))).slice_end_tokens is not None:
        now_s += 0.5
        core.call_ended(call.call_id, Outcome.SUCCESS, Sample(upstream_ttft_s=0.5), now_s)
    core.first_token(call.call_id, now_s)
    core.call_ended(call.call_id, Outcome.SUCCESS, Sample(cached_tokens=cached, upstream_ttft_s=ttft_s), now_s + 1.0)
    return now_s + 1.0


@pytest.mark.parametrize(("cached", "ttft_s"), [(0, 0.1), (None, 2.0)], ids=["told", "judged by its first token"])
def test_slices_that_are_not_found_in_the_cache_end_slicing_for_a_while(cached: int | None, ttft_s: float) -> None:
    """Twice in a row in vain, as the replica says or as long as the first token took: prompts go whole, then not."""
    core = _core(slices={"min_prefill_s": 0.01})
    now_s = _sliced(core, "a", 0.0, cached=cached, ttft_s=ttft_s)
    now_s = _sliced(core, "b", now_s, cached=cached, ttft_s=ttft_s)
    assert core.slice_counts.num_in_vain == core.slice_counts.num_sliced == 2
    sliced = core.slice_counts.num_slices
    now_s = _sliced(core, "c", now_s, cached=cached, ttft_s=ttft_s)
    assert core.slice_counts.num_slices == sliced
    _sliced(core, "d", now_s + 301.0, cached=cached, ttft_s=ttft_s)
    assert core.slice_counts.num_slices > sliced


@pytest.mark.parametrize(("cached", "ttft_s"), [(1900, 2.0), (None, 0.4)], ids=["told", "judged by its first token"])
def test_slices_that_are_found_go_on(cached: int | None, ttft_s: float) -> None:
    """One that missed between others that hit changes nothing."""
    core = _core(slices={"min_prefill_s": 0.01})
    now_s = 0.0
    for number in range(6):
        misses = number % 2 == 1
        now_s = _sliced(core, f"{number}", now_s, cached=0 if misses else cached, ttft_s=3.0 if misses else ttft_s)
    assert core.slice_counts.num_sliced == 6
    assert core.slice_counts.num_in_vain == 3


def test_an_answer_that_is_not_streamed_is_not_stopped_while_it_is_written() -> None:
    """Its prompt is thought to be computed: closing the call would throw the answer away, and the next may begin."""
    core = _core()
    _offer(core, "long", 0.0, streams=False, **LONG)
    only_call(core.poll(0.0))
    core.poll(20.0)
    _offer(core, "short", 30.0, prompt_tokens=20)
    assert calls(core.poll(30.0)) == [("short", "r1")]
    _offer(core, "next", 31.0, **LONG)
    assert calls(core.poll(31.0)) == [("next", "r1")]
    core.check_integrity()


def test_a_replica_removed_during_a_slice_is_left_when_the_slice_ends() -> None:
    """The request waits again, for any replica, and the ledger is forgotten."""
    core = _core()
    short = _stop(core)
    core.first_token(short.call_id, 3.1)
    slice_call = only_call(core.poll(3.1))
    _ended(core, short, 3.2)
    core.replica_removed("r1", 3.2)
    _ended(core, slice_call, 3.6)
    core.poll(3.6)
    assert core.num_queued == 1
    assert core.view("r1") is None
    core.check_integrity()


def test_where_calls_are_bounded_others_pass_but_not_for_ever() -> None:
    """One call at a time and always somebody in the queue: after its patience the next slice goes first."""
    core = _core(FakeReplica("r1", slice_block_tokens=16, max_in_flight_requests=1, max_in_flight_tokens=100_000))
    short = only_call(_begun(core))
    now_s = 0.0
    while now_s < 5.0 and short.request.request_id != "long":
        _offer(core, f"behind-{now_s}", now_s)
        now_s += 0.5
        _ended(core, short, now_s)
        short = only_call(core.poll(now_s))
    assert short.request.request_id == "long"
    assert now_s <= 2.0


def test_without_a_place_the_end_of_patience_is_no_instant_to_wake_at() -> None:
    """A shell that is woken at an instant that has passed would be woken again and again."""
    core = _core(FakeReplica("r1", slice_block_tokens=16, max_in_flight_requests=1, max_in_flight_tokens=100_000))
    only_call(_begun(core))
    assert core.next_wakeup_s() == 1.0
    assert core.poll(1.5) == []
    assert core.next_wakeup_s() is None


def _begun(core: DispatchCore) -> list[Any]:
    """A long request that is parked, and a short call that runs in the only place."""
    _offer(core, "first", 0.0)
    first = only_call(core.poll(0.0))
    _offer(core, "long", 0.0, **LONG)
    _ended(core, first, 0.0)
    slice_call = only_call(core.poll(0.0))
    assert slice_call.slice_end_tokens is not None
    _offer(core, "short", 0.0)
    _ended(core, slice_call, 0.0)
    return core.poll(0.0)


def test_a_recount_during_a_slice_leaves_nothing_below_zero() -> None:
    """The whole prompt is shorter than the slice: no more counts as computed than there is."""
    core = _core()
    short = _stop(core)
    core.first_token(short.call_id, 3.1)
    slice_call = only_call(core.poll(3.1))
    core.recount(FakeRequest("long", 0.0, prompt_tokens=1000, can_be_sliced=True), 3.2)
    _ended(core, slice_call, 3.6)
    whole = only_call(core.poll(3.6))
    assert whole.slice_end_tokens is None
    view = core._books.replicas["r1"]
    assert view.prefill_tokens >= 0
    core.check_integrity()
