"""What the overload bar reads from the outcomes of a simulation."""

from dataclasses import replace

import numpy as np
import pytest

from loadtests.bars.overload import BOUNDS, NAMES, PHASES, Scene, bars_of, found, recovery
from loadtests.sim.gateway import RequestOutcome
from loadtests.sim.models import load_model
from loadtests.sim.request import SimRequest
from loadtests.workload import Costs
from policies.types import Lane

END_S = PHASES[0][0] + PHASES[1][0]


def _outcome(
    index: int, arrival_s: float, *, wait_s: float | None = 0.1, group: str = "other", lane: Lane = Lane.STANDARD
) -> RequestOutcome:
    """`wait_s` None: turned away on arrival. Its first token comes with the dispatch, a second one 50 ms later."""
    request = SimRequest(index, f"q{index}", arrival_s, 10, 2, group=group, body_bytes=40)
    if wait_s is None:
        return RequestOutcome(request, end_s=arrival_s, error="http-429")
    went_s = arrival_s + wait_s
    return RequestOutcome(request, went_s, lane=lane, token_s=[went_s, went_s + 0.05], end_s=went_s + 0.05)


def _scene(outcomes: list[RequestOutcome], work_s: float) -> Scene:
    requests = tuple(outcome.request for outcome in outcomes)
    return Scene(requests, np.full(len(requests), work_s), load_model("rtxpro6000-llama3.1-8b"), Costs(1.0, 1.0), 1.0)


def _before(count: int = 20) -> list[RequestOutcome]:
    return [_outcome(index, float(index)) for index in range(count)]


def test_what_is_shed_or_late_is_no_goodput() -> None:
    """Of four declared requests in the overload one is turned away and one waits too long; others don't count."""
    declared = [
        _outcome(20 + index, 200.0 + index, wait_s=wait_s, group="declared")
        for index, wait_s in enumerate([0.1, None, 4.9, 5.1])
    ]
    others = [_outcome(30, 250.0, wait_s=None), _outcome(31, 900.0, wait_s=0.1, group="declared")]
    outcomes = [*_before(), *declared, *others, _outcome(32, END_S - 1.0, wait_s=2.0)]
    run = found(_scene(outcomes, 1.0), outcomes)
    assert (run.goodput, run.others_served) == (0.5, 0.5)
    bars = {bar.name: bar for bar in bars_of([run, replace(run, goodput=1.0), replace(run, goodput=0.4)])}
    assert list(bars) == list(NAMES)
    assert bars[NAMES[0]].value == 0.5
    assert not bars[NAMES[0]].holds
    assert bars[NAMES[1]].value == 2 / BOUNDS["max_requests"]
    assert bars[NAMES[2]].value == 24 / BOUNDS["max_tokens"]
    assert bars[NAMES[3]].value == 80 / BOUNDS["max_bytes"]


@pytest.mark.parametrize(
    ("late_s", "lane", "recovered_s"), [(44.0, Lane.LONG, 45.0), (44.0, Lane.BACKGROUND, 0.0), (14.0, Lane.LONG, 15.0)]
)
def test_recovery(late_s: float, lane: Lane, recovered_s: float) -> None:
    """It ends with the first half minute whose waits are normal, what has no turns left out; the drain is of what was
    left."""
    left = [_outcome(20 + index, END_S - 1.0, wait_s=60.0, lane=Lane.BACKGROUND) for index in range(3)]
    slow_s = END_S + np.arange(0.0, late_s + 0.5)
    slow = [_outcome(23 + index, at_s, wait_s=1.0, lane=lane) for index, at_s in enumerate(slow_s.tolist())]
    outcomes = [*_before(), *left, *slow]
    found_s, drain_s = recovery(_scene(outcomes, 2.0), outcomes)
    assert found_s == recovered_s
    assert drain_s == pytest.approx(3 * 2.0 / 0.3)
