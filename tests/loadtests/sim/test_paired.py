"""Paired differences: exact where one policy is the other plus a constant, and honest where there is too little."""

import random

import pytest

from loadtests.sim.gateway import RequestOutcome
from loadtests.sim.paired import paired_differences
from loadtests.sim.request import SimRequest
from loadtests.sim.simulation import Result


def _result(waits_s: list[float], group: str = "short") -> Result:
    outcomes = tuple(
        RequestOutcome(
            SimRequest(index, f"q{index}", float(index), 5, 1, group), token_s=[index + wait], end_s=index + wait
        )
        for index, wait in enumerate(waits_s)
    )
    return Result(outcomes, float(len(waits_s)), (1.0,), 0, 0, 0, 0)


def test_a_constant_gain_is_found_in_every_segment() -> None:
    """Half a second less for everybody, whatever the waits are; the interval has no width."""
    rng = random.Random(1)
    waits = [rng.expovariate(0.1) + 1.0 for _ in range(400)]
    found = paired_differences(_result([wait - 0.5 for wait in waits]), _result(waits), "short")
    for level in ("50", "90"):
        assert found[level]["mean_s"] == pytest.approx(-0.5)
        assert found[level]["low_s"] == pytest.approx(found[level]["high_s"])
        assert found[level]["num_better"] == 20
    assert found["99"] == {"needed_requests": 2000}


def test_equal_policies_differ_by_nothing_and_noise_has_an_interval_around_it() -> None:
    """Noise that favours nobody: the interval holds zero."""
    rng = random.Random(2)
    waits = [rng.expovariate(1.0) for _ in range(2000)]
    noisy = [max(0.0, wait + rng.gauss(0.0, 0.3)) for wait in waits]
    other = [max(0.0, wait + rng.gauss(0.0, 0.3)) for wait in waits]
    assert paired_differences(_result(waits), _result(waits), "short")["99"]["mean_s"] == 0.0
    found = paired_differences(_result(noisy), _result(other), "short")["90"]
    assert found["low_s"] < 0.0 < found["high_s"]


def test_other_requests_are_no_pair() -> None:
    """Results of different traces can't be compared."""
    with pytest.raises(ValueError, match="same requests"):
        paired_differences(_result([1.0] * 50), _result([1.0] * 49), "short")
    assert paired_differences(_result([1.0] * 5), _result([1.0] * 5), "short")["50"] == {"needed_requests": 40}
