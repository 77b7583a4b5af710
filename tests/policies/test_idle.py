"""Time during which somebody waits whom a replica has room for."""

import pytest

from policies.idle import Idle, IdleTime
from policies.types import Outcome, Sample
from tests.policies.support import FakeReplica, calls, make_core, offer


def test_adds_up_by_what_was_found() -> None:
    """What holds at the end of a poll holds until the next; a stretch is one event however often it is polled."""
    idle = IdleTime()
    for now_s, found in (
        (1.0, Idle.NOTHING),
        (2.0, Idle.KEPT),
        (3.0, Idle.KEPT),
        (5.0, Idle.VIOLATION),
        (6.0, Idle.NOTHING),
        (7.0, Idle.KEPT),
        (7.5, Idle.NOTHING),
    ):
        idle.polled(now_s, found)
    assert idle.seconds == pytest.approx({Idle.KEPT: 3.5, Idle.VIOLATION: 1.0})
    assert idle.num_times == {Idle.KEPT: 2, Idle.VIOLATION: 1}
    assert idle.since_s is None


def test_room_that_the_head_of_a_lane_does_not_fit_into_is_kept_for_it() -> None:
    """Whoever waited longest would fit, and is behind a cheaper one that doesn't: until that goes."""
    core = make_core(FakeReplica(max_in_flight_tokens=100), ordering="aged-sjf", flows="one-flow", lanes="single")
    offer(core, "running", prompt_tokens=50)
    core.poll(0.0)
    offer(core, "oldest", 1.0, prompt_tokens=10, max_output_tokens=20)
    offer(core, "head", 1.0, prompt_tokens=90, max_output_tokens=1)
    assert core.poll(1.0) == []
    core.call_ended(1, Outcome.SUCCESS, Sample(), 4.0)
    assert calls(core.poll(4.0)) == [("head", "r1")]
    assert core.idle.seconds == {Idle.KEPT: 3.0, Idle.VIOLATION: 0.0}
    assert core.idle.num_times == {Idle.KEPT: 1, Idle.VIOLATION: 0}


def test_a_policy_that_holds_a_request_back_for_nothing_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """It waits alone, and there is room: for as long as the policy lets it."""
    core = make_core()
    offer(core, "a", 1.0)
    with monkeypatch.context() as broken:
        broken.setattr(core._selection, "next", lambda _now_s: None)
        assert core.poll(1.0) == []
        assert core.poll(3.0) == []
    assert calls(core.poll(4.5)) == [("a", "r1")]
    assert core.idle.num_times == {Idle.KEPT: 0, Idle.VIOLATION: 1}
    assert core.idle.seconds[Idle.VIOLATION] == pytest.approx(3.5)
