"""Boost: arrival order in which short requests count as having come earlier (Yu and Scully, SIGMETRICS 2024).

The boost is what makes the tail of the response time smallest where sizes are known and light-tailed. With predicted
sizes and several servers it is scaled down: see `factor`.
"""

import math
from collections.abc import Sequence

from ..traffic import Load

_MAX_UTILISATION = 0.98
"""At 1 and above the decay rate is 0: more is treated as this."""
_MIN_CHANGE = 0.1
_MAX_EXPONENT = 500.0
_PRECISION = 1e-4


class Boost:
    """Key `arrival − min(max_boost_s, b(cost))`, with `b(s) = ln(1 / (1 − e^(−γ s/k))) / γ` on k servers.

    γ is `factor` times γ₀, the rate at which the tail of the work in the queue decays: λ (E[e^(γ₀ S/k)] − 1) = γ₀ for
    what requests really cost. It is fitted anew each minute. All keys are arrivals moved by at most `max_boost_s`,
    whatever γ was when they were given, so they stay comparable and nothing is re-sorted: a request is passed only by
    those that come within `max_boost_s`.
    """

    name = "boost"
    lateness = None

    def __init__(self, *, factor: float, max_boost_s: float, prior_gamma_per_s: float) -> None:
        """`factor`: of γ₀. `prior_gamma_per_s`: γ until traffic was seen. All above 0."""
        self._factor = factor
        self._max_boost_s = max_boost_s
        self._gamma_per_s = prior_gamma_per_s
        self._capacity = 1.0

    def key(self, *, arrival_s: float, cost_s: float, due_s: float | None = None) -> float:
        gamma_per_s = self._gamma_per_s
        # −expm1 keeps its precision where the cost is small; a cost of 0 has an endless boost.
        left = -math.expm1(-gamma_per_s * cost_s / self._capacity)
        boost_s = -math.log(left) / gamma_per_s if left > 0.0 else self._max_boost_s
        return arrival_s - (boost_s if boost_s < self._max_boost_s else self._max_boost_s)

    def refit(self, load: Load) -> bool:
        rate = decay_rate_per_s(load.rate_per_s, load.costs_s, load.capacity)
        if rate is not None:
            gamma_per_s = self._factor * rate
            if abs(gamma_per_s / self._gamma_per_s - 1.0) > _MIN_CHANGE:
                self._gamma_per_s = gamma_per_s
            self._capacity = load.capacity
        return False

    def overtaking_bound_s(self, max_cost_s: float) -> float:
        return self._max_boost_s


def decay_rate_per_s(rate_per_s: float, costs_s: Sequence[float], capacity: float) -> float | None:
    """γ₀ > 0 with λ (E[e^(γ₀ S/k)] − 1) = γ₀, S the costs given; None where there is none (no traffic, no cost).

    The difference of both sides is convex in γ and 0 at 0, so below full load there is exactly one other root. From a
    point beyond it Newton's steps come down to it without passing it.
    """
    sizes_s = [cost_s / capacity for cost_s in costs_s]
    mean_s = sum(sizes_s) / len(sizes_s) if sizes_s else 0.0
    if rate_per_s <= 0.0 or mean_s <= 0.0:
        return None
    rate_per_s = min(rate_per_s, _MAX_UTILISATION / mean_s)
    largest_s = max(sizes_s)
    gamma = 1.0 / largest_s
    while _excess(gamma, rate_per_s, sizes_s)[0] < 0.0:
        if gamma * largest_s > _MAX_EXPONENT:
            return gamma  # next to no traffic: the rate is somewhere above, and nobody waits
        gamma *= 2.0
    step = gamma
    while step > _PRECISION * gamma:
        excess, slope = _excess(gamma, rate_per_s, sizes_s)
        step = excess / slope
        gamma -= step
    return gamma


def _excess(gamma: float, rate_per_s: float, sizes_s: Sequence[float]) -> tuple[float, float]:
    """λ (E[e^(γ s)] − 1) − γ, and its slope."""
    total = slope = 0.0
    for size_s in sizes_s:
        grown = math.exp(gamma * size_s)
        total += grown - 1.0
        slope += size_s * grown
    return rate_per_s * total / len(sizes_s) - gamma, rate_per_s * slope / len(sizes_s) - 1.0
