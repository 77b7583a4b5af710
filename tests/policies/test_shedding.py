"""Who is shed when more comes than can be served, and in what order."""

from dataclasses import replace
from typing import Any

import pytest

from policies.builtin import SHEDDINGS
from policies.dispatch import DispatchCore
from policies.shedding.ladder import Ladder
from policies.shedding.port import ADMIT, Backlog, Ruling
from policies.types import Call, Lane, Outcome, Reason, Sample
from policies.verdict import Admitted, Rejected
from tests.policies.support import FakeReplica, FakeRequest, calls, make_core, offer

NOTHING = Backlog(0.0, 0.0, 0.0)
DECLARED = FakeRequest(declared_lane=Lane.INTERACTIVE)
ONE_AT_A_TIME = FakeReplica(max_in_flight_requests=1)
COST = {"prefill_s_per_token": 1e-9, "decode_s_per_token": 0.1}
"""So a request of ten output tokens is a second of work."""


def _ladder(**options: float) -> Ladder:
    return Ladder(**{"step_s": 5.0, "interactive_step_s": 1.0, "defer_s": 10.0, "max_background_s": 3.0, **options})


def _rung(ruling: Ruling) -> str:
    if ruling.reason is not None:
        assert ruling.reason is Reason.OVERLOAD
        return "turned away"
    if ruling.lane is not None:
        assert ruling.lane is Lane.BACKGROUND
        return "downgraded"
    return "deferred" if ruling.defer_s else "admitted"


RUNGS = ("admitted", "deferred", "downgraded", "turned away")


@pytest.mark.parametrize(
    ("request_", "lane", "first_level"),
    [
        (FakeRequest(), Lane.OVERLONG, 1),
        (FakeRequest(), Lane.LONG, 1),
        (FakeRequest(), Lane.STANDARD, 2),
        (FakeRequest(), Lane.INTERACTIVE, 2),
        (DECLARED, Lane.LONG, 1),
        (DECLARED, Lane.INTERACTIVE, 3),
    ],
)
def test_the_rungs_of_each_class(request_: FakeRequest, lane: Lane, first_level: int) -> None:
    """One rung further with each level; declared interactive counts only where it was believed."""
    ladder = _ladder()
    for level in range(8):
        at = Backlog(turns_s=5.0 * level + 0.1, interactive_s=0.0, background_s=0.0)
        wanted = RUNGS[min(max(level - first_level + 1, 0), 3)]
        assert _rung(ladder.rule(request_, lane, at)) == wanted


def test_work_of_the_interactive_lane_sheds_the_others_sooner() -> None:
    """Seconds of it that are a level for others leave what is declared where it is."""
    ladder, at = _ladder(), Backlog(turns_s=3.5, interactive_s=3.5, background_s=0.0)
    assert _rung(ladder.rule(FakeRequest(), Lane.LONG, at)) == "turned away"
    assert _rung(ladder.rule(FakeRequest(), Lane.STANDARD, at)) == "downgraded"
    assert ladder.rule(DECLARED, Lane.INTERACTIVE, at) is ADMIT


def test_background_work() -> None:
    """It takes what is downgraded up to a bound; its own is turned away where long work is."""
    ladder = _ladder()
    full = Backlog(turns_s=10.0, interactive_s=0.0, background_s=3.0)
    assert _rung(ladder.rule(FakeRequest(), Lane.LONG, full)) == "turned away"
    assert _rung(ladder.rule(FakeRequest(), Lane.LONG, full._replace(background_s=2.9))) == "downgraded"
    assert ladder.rule(FakeRequest(), Lane.BACKGROUND, full) is ADMIT
    assert _rung(ladder.rule(FakeRequest(), Lane.BACKGROUND, full._replace(turns_s=15.0))) == "turned away"
    assert ladder.rule(FakeRequest(), Lane.BACKGROUND, NOTHING) is ADMIT


@pytest.mark.parametrize("name", SHEDDINGS.names())
@pytest.mark.parametrize("lane", list(Lane))
def test_nobody_is_shed_where_nothing_waits(name: str, lane: Lane) -> None:
    """Whatever the part."""
    part = SHEDDINGS.get(name)
    assert part.make(**part.filled({})).rule(FakeRequest(), lane, NOTHING) is ADMIT


def _busy_core(**options: Any) -> DispatchCore:
    """Its replica runs one call; declared requests of three seconds of work wait."""
    core = make_core(ONE_AT_A_TIME, shedding="ladder", options={"cost": COST, **options})
    for index in range(4):
        offer(core, f"d{index}", declared_lane=Lane.INTERACTIVE)
        core.poll(0.0)
    return core


def test_a_request_is_turned_away_with_the_time_that_the_backlog_takes() -> None:
    """Retry-After is the work that waits over the rate; the core knows nothing of it."""
    core = _busy_core()
    rejected = offer(core, "x", max_output_tokens=1)
    assert isinstance(rejected, Rejected)
    assert (rejected.reason, rejected.lane) == (Reason.OVERLOAD, Lane.INTERACTIVE)
    assert rejected.retry_after_s == pytest.approx(3.0)
    assert not core.knows("x")


def test_what_need_not_wait_is_not_shed() -> None:
    """Another pool's backlog is no reason to turn away what has a replica free."""
    core = _busy_core()
    core.replica_changed(FakeReplica("r2", frozenset({"n"})), 0.0)
    core.capacity_granted("r2", None, 0.0)
    admitted = offer(core, "x", model="n")
    assert isinstance(admitted, Admitted)
    assert admitted.lane is admitted.own_lane
    assert calls(core.poll(0.0)) == [("x", "r2")]


def test_what_waits_for_another_model_sheds_nobody() -> None:
    """It has replicas of its own, and where one has to wait for those, only their backlog counts."""
    core = _busy_core()
    core.replica_changed(FakeReplica("r2", frozenset({"n"}), max_in_flight_requests=1), 0.0)
    core.capacity_granted("r2", None, 0.0)
    offer(core, "x", model="n")
    core.poll(0.0)
    admitted = offer(core, "y", model="n")
    assert isinstance(admitted, Admitted)
    assert admitted.lane is admitted.own_lane
    core.check_integrity()


def test_what_is_downgraded_goes_last_and_stays_so() -> None:
    """It keeps the lane of its own beside the one it waits in, also when it is counted anew or the policy changes."""
    core = _busy_core(ladder={"interactive_step_s": 1.0})
    admitted = offer(core, "x")
    assert isinstance(admitted, Admitted)
    assert (admitted.lane, admitted.own_lane) == (Lane.BACKGROUND, Lane.INTERACTIVE)
    assert "downgraded" in admitted.lane_why
    again = core.recount(replace(FakeRequest(), request_id="x", prompt_tokens=11), 0.0)
    assert again is not None
    assert (again.lane, again.own_lane) == (Lane.BACKGROUND, Lane.INTERACTIVE)
    went = []
    for call_id in range(1, 6):
        core.call_ended(call_id, Outcome.SUCCESS, Sample(output_tokens=10), float(call_id))
        went += [effect.request.request_id for effect in core.poll(float(call_id)) if isinstance(effect, Call)]
        core.check_integrity()
    assert went == ["d1", "d2", "d3", "x"]


def test_what_is_deferred_is_passed_by_who_comes_soon_after() -> None:
    """It is ordered as if it had come later, and stays in its lane."""
    core = _busy_core(ladder={"interactive_step_s": 1.4, "defer_s": 30.0})
    deferred = offer(core, "x")
    assert isinstance(deferred, Admitted)
    assert deferred.lane is deferred.own_lane is Lane.INTERACTIVE
    offer(core, "later", 20.0, declared_lane=Lane.INTERACTIVE)
    went = []
    for call_id in range(1, 6):
        core.call_ended(call_id, Outcome.SUCCESS, Sample(output_tokens=10), 20.0)
        went += [effect.request.request_id for effect in core.poll(20.0) if isinstance(effect, Call)]
    assert went == ["d1", "d2", "d3", "later", "x"]
