"""How long parts of a prompt take: fitted to what was computed, a token dearer the more stand before it."""

import random

import pytest

from policies.dispatch import DispatchCore
from policies.estimate.prefill import PrefillTiming, PrefillTimings
from policies.types import Outcome, Sample

from .support import FakeReplica, FakeRequest, make_core, only_call


def _true_s(start: int, end: int) -> float:
    return (end - start) * (0.0003 + 2.5e-7 * (start + end) / 2)


def test_the_prior_stands_while_nothing_was_seen() -> None:
    """A token takes what was configured, wherever it stands."""
    timing = PrefillTiming(0.001)
    assert timing.seconds(1000, 3000) == pytest.approx(2.0)
    assert timing.end_tokens(1000, 0.5) == pytest.approx(1500)


def test_it_finds_what_tokens_cost_and_how_that_grows() -> None:
    """From slices with noise and an outlier; how far it comes is what how long it takes says."""
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    timing, start = PrefillTiming(0.0001), 0
    for number in range(60):
        end = start + rng.randint(150, 400)
        factor = 20.0 if number == 30 else rng.uniform(0.9, 1.1)
        timing.add(start, end, _true_s(start, end) * factor)
        start = end
    for first in (2000, 8000):
        assert timing.seconds(first, first + 500) == pytest.approx(_true_s(first, first + 500), rel=0.25)
        assert timing.seconds(first, int(timing.end_tokens(first, 0.5))) == pytest.approx(0.5, rel=0.02)


def test_short_parts_and_nonsense_teach_nothing() -> None:
    """A call's fixed cost isn't its tokens', and no clock runs backwards."""
    timing = PrefillTiming(0.001)
    timing.add(0, 63, 5.0)
    timing.add(0, 1000, 0.0)
    assert timing.seconds(0, 1000) == pytest.approx(1.0)


def test_a_replica_of_which_nothing_was_seen_is_as_all_are() -> None:
    """Until it has a line of its own; forgotten, it is as all are again."""
    timings = PrefillTimings(0.001)
    timings.add("r1", 0, 1000, 2.0)
    assert timings.of("r2").seconds(0, 1000) == timings.typical_s(1000) == pytest.approx(2.0)
    timings.add("r2", 0, 1000, 4.0)
    assert timings.of("r2").seconds(0, 1000) == pytest.approx(4.0)
    timings.forget("r2")
    assert timings.of("r2").seconds(0, 1000) == timings.typical_s(1000)


def _ended(core: DispatchCore, request: FakeRequest, ttft_s: float) -> None:
    core.offer(request, request.arrival_s)
    call = only_call(core.poll(request.arrival_s))
    core.first_token(call.call_id, request.arrival_s + ttft_s)
    core.call_ended(call.call_id, Outcome.SUCCESS, Sample(upstream_ttft_s=ttft_s), request.arrival_s + ttft_s)


def test_long_prompts_are_told_by_what_long_prompts_took() -> None:
    """Many short ones, whose time says nothing of their length, don't make a long one seem quick. One that was
    taken for a quick one, since the configured figure is another machine's, is the last."""
    core = make_core(
        FakeReplica("r1", slice_block_tokens=16, max_prefill_tokens=1 << 20, max_in_flight_tokens=1 << 20),
        options={"cost": {"prefill_s_per_token": 0.001}},
    )
    for number in range(100):
        _ended(core, FakeRequest(f"s{number}", float(number), prompt_tokens=60 + number % 3), 0.5 - 0.1 * (number % 3))
    core.offer(FakeRequest("long", 200.0, prompt_tokens=4000, can_be_sliced=True), 200.0)
    assert core._books.jobs["long"].long is not None
    core.cancel("long", 200.0)

    slow = make_core(FakeReplica("r1", slice_block_tokens=16), options={"cost": {"prefill_s_per_token": 0.0001}})
    _ended(slow, FakeRequest("first", 0.0, prompt_tokens=4000), 6.0)
    slow.offer(FakeRequest("second", 10.0, prompt_tokens=4000, can_be_sliced=True), 10.0)
    assert slow._books.jobs["second"].long is not None
