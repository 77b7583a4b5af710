"""Statistics against values worked out by hand."""

import numpy as np
import pytest

from loadtests.answer import Answer
from loadtests.calibrate import work_done
from loadtests.errors import TargetError
from loadtests.layers import check_layers, example_that_waited
from loadtests.scenario import Objectives, load_scenario
from loadtests.stats import makespan_s, meets, paired_ratio, paired_values, percentile, percentile_estimate
from loadtests.summary import compare_sides, summarise
from loadtests.workload import Costs


def _answer(
    index: int = 0,
    *,
    lane: str = "short",
    ttft_s: float = 0.5,
    gap_s: float = 0.1,
    tokens: int = 3,
    sent_s: float = 0.0,
) -> Answer:
    sent_s = 0.0
    chunks = [sent_s + ttft_s + gap_s * step for step in range(tokens)]
    usage = {"prompt_tokens": 10, "completion_tokens": tokens}
    return Answer(
        index, lane, 10, tokens, sent_s, sent_s, sent_s, chunks[-1], 200, usage=usage, chunk_s=chunks,
        headers={"x-tailgate-request-id": f"id{index}"},
    )  # fmt: skip


def _failed(index: int, error: str = "cut") -> Answer:
    return Answer(index, "short", 10, 3, 0.0, 0.0, end_s=1.0, error=error)


def test_percentiles_are_linear_between_order_statistics() -> None:
    """P50 of 1..4 is 2.5, P90 is 3.7; nothing has none."""
    assert percentile([4.0, 1.0, 3.0, 2.0], 50) == 2.5
    assert percentile([4.0, 1.0, 3.0, 2.0], 90) == pytest.approx(3.7)
    assert percentile([], 50) is None


def test_the_interval_of_a_median_covers_it_and_shrinks_with_the_sample() -> None:
    """For normal samples the width follows 1.25 x 2 x 1.96 / sqrt(n)."""
    rng = np.random.default_rng(1)
    estimates = [percentile_estimate(rng.normal(10.0, 1.0, n).tolist(), 50, rng) for n in (100, 1600)]
    for estimate, count in zip(estimates, (100, 1600), strict=True):
        assert estimate.low is not None
        assert estimate.high is not None
        assert estimate.low < 10.1
        assert estimate.high > 9.9
        assert estimate.high - estimate.low == pytest.approx(4.9 / count**0.5, rel=0.4)
    assert percentile_estimate([], 50, rng).value is None


def test_a_paired_ratio_of_halves_is_a_half_without_doubt() -> None:
    """Where every request takes half as long, ratio and interval are 0.5; unequal lengths are refused."""
    rng = np.random.default_rng(2)
    theirs = rng.exponential(1.0, 50).tolist()
    estimate = paired_ratio([value / 2 for value in theirs], theirs, 95, rng)
    assert (estimate.value, estimate.low, estimate.high) == pytest.approx((0.5, 0.5, 0.5))
    assert paired_ratio([], [], 95, rng).value is None
    assert paired_ratio([1.0], [0.0], 95, rng).value is None
    with pytest.raises(ValueError, match="length"):
        paired_ratio([1.0], [], 95, rng)


def test_pairs_leave_out_what_one_side_lacks() -> None:
    """Requests are matched by index; one that failed on a side is in neither list."""
    ours = [_answer(0, ttft_s=1.0), _answer(1), _answer(2, ttft_s=3.0)]
    theirs = [_failed(1), _answer(2, ttft_s=6.0), _answer(0, ttft_s=2.0)]
    assert paired_values(ours, theirs, lambda answer: answer.ttft_s) == ([1.0, 3.0], [2.0, 6.0])


@pytest.mark.parametrize(
    ("objectives", "is_good"),
    [
        (Objectives(), True),
        (Objectives(ttft_s=0.5, tpot_s=0.11, e2e_s=0.7), True),
        (Objectives(ttft_s=0.49), False),
        (Objectives(tpot_s=0.09), False),
        (Objectives(e2e_s=0.69), False),
    ],
)
def test_a_request_is_good_when_it_meets_every_objective(objectives: Objectives, is_good: bool) -> None:
    """TTFT 0.5, TPOT 0.1, E2E 0.7 against limits on either side; equality meets."""
    answer = _answer(ttft_s=0.5, gap_s=0.1, tokens=3)
    assert meets(answer, objectives) is is_good
    assert not meets(_failed(0), objectives)


def test_one_token_has_no_tpot_and_misses_nothing_by_it() -> None:
    """A TPOT objective says nothing about an answer of one token."""
    answer = _answer(tokens=1)
    assert answer.tpot_s is None
    assert meets(answer, Objectives(tpot_s=0.001))


def test_summary_counts_rates_and_failures() -> None:
    """Two complete of three requests over 2 s: rates, errors and goodput by hand."""
    scenario = load_scenario("short-behind-long")
    answers = [_answer(0), _answer(1, ttft_s=1.8), _failed(2)]
    summary = summarise(answers, scenario.objectives)
    assert summary["makespan_s"] == pytest.approx(2.0)
    assert (summary["num_ok"], summary["errors"]) == (2, {"cut": 1})
    assert summary["output_tokens_per_s"] == pytest.approx(3.0)
    assert summary["tokens_per_s"] == pytest.approx(13.0)
    assert summary["goodput_ratio"] == pytest.approx(2 / 3)
    assert summary["lanes"]["short"]["ttft_s"]["50"]["value"] == pytest.approx(1.15)
    assert summary["lanes"]["long"]["ttft_s"]["50"]["value"] is None
    empty = summarise([], scenario.objectives)
    assert (empty["tokens_per_s"], empty["goodput_ratio"], makespan_s([])) == (None, None, 0.0)


def test_sides_are_compared_by_lane_with_the_harm_of_the_last_one() -> None:
    """Shorts at half the TTFT, longs at twice the E2E: ratios 0.5 and 2, harm 2."""
    scenario = load_scenario("short-behind-long")
    direct = [_answer(0, ttft_s=2.0), _answer(1, lane="long", ttft_s=1.0, tokens=1)]
    gateway = [_answer(0, ttft_s=1.0), _answer(1, lane="long", ttft_s=2.0, tokens=1)]
    ratios = compare_sides(direct, gateway, scenario)
    assert ratios["lanes"]["short"]["ttft_s"]["95"]["value"] == pytest.approx(0.5)
    assert ratios["harm_ratio"]["value"] == pytest.approx(2.0)
    assert ratios["tokens_per_s_ratio"] == pytest.approx(2.2 / 2.0)


def test_work_is_counted_where_it_was_done() -> None:
    """Prompt work at the first token, output work token by token, both only inside the window."""
    answers = [_answer(0, ttft_s=1.0, gap_s=1.0, tokens=3), _answer(1, ttft_s=5.0, tokens=1)]
    capacity = work_done(answers, Costs(0.1, 1.0), 0.5, 2.5, num_clients=2)
    assert capacity.prompt_tokens_per_s == 5.0
    assert capacity.output_tokens_per_s == 1.0
    assert capacity.work_per_s == pytest.approx(0.1 * 5.0 + 1.0)
    with pytest.raises(TargetError, match="nothing was answered"):
        work_done(answers, Costs(0.1, 1.0), 10.0, 11.0, num_clients=2)


def test_layers_are_held_against_the_clients_clock() -> None:
    """Of four answers one has a large `other`, one a total that is off by 10 ms, one no record at all."""
    answers = [_answer(index) for index in range(4)]  # 700 ms each
    records = {
        0: {"total_ms": 701.0, "layers_ms": {"queue": 20.0, "other": 7.0}},
        1: {"total_ms": 700.0, "layers_ms": {"queue": 40.0, "other": 7.2}},
        2: {"total_ms": 715.0, "layers_ms": {"queue": 30.0}},
    }
    check = check_layers(answers, records)
    assert (check.found_ratio, check.small_other_ratio, check.total_agrees_ratio) == (0.75, 0.5, 0.5)
    assert check.worst_other_ms == 7.2
    assert check.worst_total_gap_ms == pytest.approx(15.0)
    assert example_that_waited(answers, records, "short") is records[2]
    assert example_that_waited(answers, {}, "short") == {}
