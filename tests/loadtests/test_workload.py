"""Plans: deterministic, with the work shares and the load that were asked for."""

import itertools
from pathlib import Path

import numpy as np
import pytest

from loadtests.errors import ScenarioError
from loadtests.scenario import Arrivals, bundled_scenarios, load_scenario
from loadtests.workload import Costs, draw_arrivals, make_plan, rng_for, stream_of_mix

COSTS = Costs(prompt_token_s=0.0016, output_token_s=0.0042)


def test_the_same_seed_gives_the_same_plan_and_another_seed_another() -> None:
    """Equal bit by bit; a different seed moves lengths and arrivals."""
    scenario = load_scenario("short-behind-long")
    plans = [make_plan(scenario, COSTS, capacity_work_per_s=1.1, seed=seed) for seed in (5, 5, 6)]
    assert plans[0] == plans[1]
    assert plans[0].requests != plans[2].requests


@pytest.mark.parametrize("seed", range(5))
def test_load_and_work_shares_are_as_asked(seed: int) -> None:
    """Work over span is the load times the capacity; the first lane has its count; shares are near 70/30."""
    scenario = load_scenario("short-behind-long")
    plan = make_plan(scenario, COSTS, capacity_work_per_s=1.3, seed=seed)
    assert plan.work_s / plan.duration_s == pytest.approx(0.85 * 1.3)
    assert len(plan.lane("short")) == 300
    long_s = sum(COSTS.work_s(r.prompt_tokens, r.output_tokens) for r in plan.lane("long"))
    assert long_s / plan.work_s == pytest.approx(0.3, abs=0.02)
    instants = [request.arrival_s for request in plan.requests]
    assert instants == sorted(instants)
    assert instants[0] > 0.0
    assert instants[-1] < plan.duration_s
    assert [request.index for request in plan.requests] == list(range(len(plan.requests)))


def test_lengths_stay_inside_the_stated_bounds() -> None:
    """No prompt or output leaves the bounds of its lane."""
    scenario = load_scenario("short-behind-long")
    for request in itertools.islice(stream_of_mix(scenario, COSTS, seed=1), 500):
        lane = scenario.lane(request.lane)
        assert lane.prompt_bounds_tokens[0] <= request.prompt_tokens <= lane.prompt_bounds_tokens[1]
        assert lane.output_bounds_tokens[0] <= request.output_tokens <= lane.output_bounds_tokens[1]


def test_the_stream_keeps_the_shares_at_every_moment() -> None:
    """After any prefix the long lane is within one long request of its share."""
    scenario = load_scenario("short-behind-long")
    work_s = {"short": 0.0, "long": 0.0}
    largest_s = COSTS.work_s(1024, 32)
    for request in itertools.islice(stream_of_mix(scenario, COSTS, seed=2), 400):
        work_s[request.lane] += COSTS.work_s(request.prompt_tokens, request.output_tokens)
        assert abs(work_s["long"] - 0.3 * sum(work_s.values())) <= largest_s


def test_bursts_are_burstier_than_poisson() -> None:
    """On/off arrivals have gaps of a much larger variation than renewal arrivals of CV 1."""
    bursts = draw_arrivals(Arrivals(mean_burst=10.0, on_share=0.1), 1000, 100.0, rng_for(1, "bursts"))
    poisson = draw_arrivals(Arrivals(cv=1.0), 1000, 100.0, rng_for(1, "poisson"))
    cvs = [float(np.diff(instants).std() / np.diff(instants).mean()) for instants in (bursts, poisson)]
    assert cvs[0] > 2.0
    assert 0.85 < cvs[1] < 1.15


def test_a_single_request_in_a_burst_lane_has_an_arrival() -> None:
    """One request is one burst."""
    instants = draw_arrivals(Arrivals(mean_burst=5.0, on_share=0.2), 1, 10.0, rng_for(0))
    assert 0.0 < instants[0] < 10.0


def test_every_bundled_scenario_can_be_read() -> None:
    """What ships parses, and says what it is about."""
    assert "short-behind-long" in bundled_scenarios()
    for name in bundled_scenarios():
        assert load_scenario(name).about


@pytest.mark.parametrize(
    ("change", "key"),
    [
        (("work_share: 0.7", "work_share: 0.8"), "lanes"),
        (("divisor: 16", "divisor: 0"), "lanes.short.lengths.divisor"),
        (("cv: 1.09", "cv: fast"), "lanes.short.arrivals.cv"),
        (("prompt_bounds: [34, 512]", "prompt_bounds: [512, 34]"), "lanes.short.lengths.prompt_bounds"),
        (("load: 0.85", "laod: 0.85"), "laod"),
        (("[2, 29, 181", "[2, 29, 1"), "lanes.short.lengths.prompt_tokens"),
        (("rank_correlation: 0.07", "rank_correlation: 7"), "lanes.short.lengths.rank_correlation"),
        (("on_share: 0.24", "on_share: 1.5"), "lanes.long.arrivals.on_share"),
        (("cv: 1.09", "cvv: 1.09"), "lanes.short.arrivals.cvv"),
        (("cv: 1.09", "cv: 1.09, mean_burst: 5, on_share: 0.2"), "lanes.short.arrivals"),
        (("{mean_burst: 5, on_share: 0.24}", "{mean_burst: 5}"), "lanes.long.arrivals"),
        (("cv: 1.09", "cv: 1.09, idc_10s: 2"), "lanes.short.arrivals.idc_10s"),
        (("divisor: 16", "divsor: 16"), "lanes.short.lengths.divsor"),
        (("      divisor: 16", "      divisor: 16\n      quantile_levels: [0]"), "lanes.short.lengths.quantile_levels"),
        (("ttft_s: 2.0", "ttft: 2.0"), "lanes.short.objectives.ttft"),
        (("work_share: 0.7", "work_share: 0.7\n    declare_lane: fast"), "lanes.short.declare_lane"),
        (("num_first_lane: 300", "num_first_lane: -1"), "num_first_lane"),
        (("num_first_lane: 300\n", ""), "num_first_lane"),
    ],
)
def test_a_bad_scenario_names_file_and_key(tmp_path: Path, change: tuple[str, str], key: str) -> None:
    """Each planted mistake is reported by its dotted key."""
    import loadtests

    text = (Path(loadtests.__path__[0]) / "scenarios" / "short-behind-long.yaml").read_text(encoding="utf-8")
    assert change[0] in text
    path = tmp_path / "mine.yaml"
    path.write_text(text.replace(*change, 1), encoding="utf-8")
    with pytest.raises(ScenarioError) as caught:
        load_scenario(str(path))
    assert caught.value.key == key
    assert "mine.yaml" in str(caught.value)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (("cv: 1.09", "cvv: 1.09"), "unknown key; allowed: cv, mean_burst, on_share"),
        (
            ("work_share: 0.7", "work_share: 0.7\n    declare_lane: fast"),
            "allowed: interactive, standard, long, background",
        ),
        (("cv: 1.09", "cv: 1.09, idc_10s: 2"), "only describes a trace, remove it"),
        (("load: 0.85", "load: ["), "(line 7, column 6)"),
        (("load: 0.85", "load: 2026-99-99"), "not YAML"),
    ],
)
def test_a_bad_scenario_says_what_would_be_right(tmp_path: Path, change: tuple[str, str], said: str) -> None:
    """The choices there are, what to take out, or the line that isn't YAML."""
    import loadtests

    text = (Path(loadtests.__path__[0]) / "scenarios" / "short-behind-long.yaml").read_text(encoding="utf-8")
    path = tmp_path / "mine.yaml"
    path.write_text(text.replace(*change, 1), encoding="utf-8")
    with pytest.raises(ScenarioError) as caught:
        load_scenario(str(path))
    assert said in str(caught.value)


def test_a_file_that_is_no_text_is_named(tmp_path: Path) -> None:
    """As is one that isn't there, in words."""
    path = tmp_path / "mine.yaml"
    with pytest.raises(ScenarioError, match=r"cannot be read: No such file or directory$"):
        load_scenario(str(path))
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(ScenarioError, match="UTF-8"):
        load_scenario(str(path))


def test_an_unknown_scenario_lists_those_there_are() -> None:
    """A wrong name is answered with the right ones."""
    with pytest.raises(ScenarioError, match="short-behind-long"):
        load_scenario("nonsense")
