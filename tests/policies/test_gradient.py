"""The cap that follows how fast a replica is."""

import random

import pytest

from policies.admission.gradient import GradientCaps
from policies.admission.port import Answered
from policies.dispatch import DispatchCore
from policies.estimate.timing import CallTiming
from policies.types import Outcome, Sample
from tests.policies.support import FakeReplica, make_core, offer, only_call

START_TOKENS, MIN_TOKENS = 8000, 1000
SLOT_TOKENS = 500


class Teacher:
    """Ends calls on a replica; each took as long as its tokens, steps, batch and neighbours' prompts ask for, times
    `slow`, which is how a replica looks that has more than it can hold.
    """

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self.caps = GradientCaps(in_flight_tokens=START_TOKENS, min_tokens=MIN_TOKENS, tolerance=2.0, prefill_tokens=1)
        self.now_s = 0.0

    def teach(
        self,
        replica: FakeReplica,
        count: int,
        *,
        slow: float = 1.0,
        use: float = 1.0,
        longer: int = 1,
        took_s: float = 0.0,
    ) -> None:
        """`use`: share of the cap in flight, the ending call included; `longer`: prompts and answers, so many times."""
        for _ in range(count):
            self.now_s += 1.0
            tokens, steps, batch = self._rng.randint(50, 1000) * longer, self._rng.randint(10, 90) * longer, 8
            beside_tokens = self._rng.randint(0, 500) * longer
            noise = self._rng.uniform(0.9, 1.1)
            ttft_s = slow * noise * (0.02 + 1e-4 * tokens)
            decode_s = slow * noise * (steps * 0.02 + 1e-4 * beside_tokens)
            timing = CallTiming(tokens, batch, ttft_s, decode_s / steps, steps, beside_tokens)
            in_flight_tokens = int(use * self.caps.max_in_flight_tokens(replica))
            self.caps.answered(
                replica, Answered(timing, SLOT_TOKENS, in_flight_tokens, self.now_s - took_s, self.now_s)
            )

    def cap(self, replica: FakeReplica) -> int:
        return self.caps.max_in_flight_tokens(replica)


@pytest.fixture
def teacher() -> Teacher:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    return Teacher(random.Random(seed))


REPLICA = FakeReplica()


def test_grows_where_it_is_reached_and_calls_are_fast(teacher: Teacher) -> None:
    """And says so."""
    teacher.teach(REPLICA, 100)
    assert teacher.cap(REPLICA) > 1.5 * START_TOKENS
    assert "raised: reached" in teacher.caps.reasons["r1"]


def test_does_not_grow_where_nobody_needs_it(teacher: Teacher) -> None:
    """However fast calls are: a limit that grows without being reached is none when it would be needed."""
    teacher.teach(REPLICA, 500, use=0.5)
    assert teacher.cap(REPLICA) == START_TOKENS
    assert not teacher.caps.reasons


def test_shrinks_where_calls_take_longer_than_they_need(teacher: Teacher) -> None:
    """Below what was in flight meanwhile, also where the cap was far above that; and never below the lowest."""
    teacher.teach(REPLICA, 100, use=0.4)
    teacher.teach(REPLICA, 20, slow=4.0, use=0.4)
    assert MIN_TOKENS <= teacher.cap(REPLICA) <= 0.3 * START_TOKENS
    assert "lowered: calls took" in teacher.caps.reasons["r1"]
    teacher.teach(REPLICA, 100, slow=4.0)
    assert teacher.cap(REPLICA) == MIN_TOKENS


def test_long_prompts_and_answers_are_no_slowness(teacher: Teacher) -> None:
    """Ten times longer ones take ten times as long, and the cap stays what it is."""
    teacher.teach(REPLICA, 100, use=0.5)
    teacher.teach(REPLICA, 200, use=0.5, longer=10)
    assert teacher.cap(REPLICA) == START_TOKENS


def test_what_began_before_the_cap_shrank_does_not_shrink_it_again(teacher: Teacher) -> None:
    """A hundred calls that were there already, all of them slow, are one reason."""
    teacher.teach(REPLICA, 100, use=0.5)
    teacher.teach(REPLICA, 20, slow=4.0, use=0.9)
    lowered = teacher.cap(REPLICA)
    assert lowered < START_TOKENS
    teacher.teach(REPLICA, 100, slow=4.0, took_s=1000.0)
    assert teacher.cap(REPLICA) == lowered


def test_a_long_overload_does_not_become_usual(teacher: Teacher) -> None:
    """After 130 slow calls slow is still slow, so that the cap stays low."""
    teacher.teach(REPLICA, 100)
    teacher.teach(REPLICA, 130, slow=6.0)
    assert teacher.cap(REPLICA) == MIN_TOKENS


def test_never_exceeds_what_was_configured_or_the_kv_cache_holds(teacher: Teacher) -> None:
    """Begins there, and grows no further; a capacity that turns out lower holds at once."""
    own, known = FakeReplica("own", max_in_flight_tokens=3000), FakeReplica("known", kv_capacity_tokens=50_000)
    assert (teacher.cap(own), teacher.cap(known)) == (3000, 50_000)
    teacher.teach(own, 200)
    teacher.teach(known, 200)
    assert (teacher.cap(own), teacher.cap(known)) == (3000, 50_000)
    assert teacher.cap(FakeReplica("known", kv_capacity_tokens=20_000)) == 20_000


def test_replicas_are_told_apart_and_forgotten(teacher: Teacher) -> None:
    """The cap of a slow one says nothing of another; one that is gone begins anew when it comes again."""
    teacher.teach(REPLICA, 100)
    teacher.teach(REPLICA, 50, slow=4.0)
    assert teacher.cap(FakeReplica("r2")) == START_TOKENS > teacher.cap(REPLICA)
    for _ in range(2):
        teacher.caps.forget("r1")
    assert teacher.cap(REPLICA) == START_TOKENS
    assert not teacher.caps.reasons


def test_learns_nothing_from_calls_that_tell_nothing(teacher: Teacher) -> None:
    """Without times there is nothing to compare: no move, and no division by zero."""
    empty = CallTiming(0, 1.0, None, None, 0, 0)
    for index in range(200):
        teacher.caps.answered(REPLICA, Answered(empty, 10, START_TOKENS, float(index), float(index)))
    assert teacher.cap(REPLICA) == START_TOKENS


@pytest.mark.parametrize("outcome", [Outcome.IGNORED, Outcome.DROPPED])
def test_cancels_refusals_and_failures_move_nothing(outcome: Outcome) -> None:
    """Slow as they may have been: they tell of clients, of our own limits, or of a replica that is no replica."""
    core = make_core(admission="gradient")
    _serve(core, 100, Outcome.SUCCESS, 1.0)
    _serve(core, 100, outcome, 50.0)
    before = core.view("r1")
    assert before is not None
    assert (before.cap_tokens, before.cap_reason) == (262_144, None)
    _serve(core, 100, Outcome.SUCCESS, 50.0)
    after = core.view("r1")
    assert after is not None
    assert after.cap_tokens < before.cap_tokens
    assert after.cap_reason is not None


def _serve(core: DispatchCore, count: int, outcome: Outcome, slow: float) -> None:
    for index in range(count):
        prompt_tokens = 50 + index % 7 * 100
        offer(core, "a", float(index), prompt_tokens=prompt_tokens, max_output_tokens=20)
        call = only_call(core.poll(float(index)))
        core.first_token(call.call_id, float(index))
        core.call_ended(
            call.call_id, outcome, Sample(prompt_tokens, 0, 20, slow * 1e-3 * prompt_tokens, slow * 0.02), float(index)
        )
        if outcome is Outcome.DROPPED:
            core.cancel("a", float(index))
