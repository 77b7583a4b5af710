"""Boost: arrival order in which short requests count as having come earlier (Yu and Scully, SIGMETRICS 2024).

The boost is what makes the tail of the response time smallest where sizes are known and light-tailed. With predicted
sizes and several servers it is scaled down: see `factor`.
"""

import math
from collections.abc import Sequence

from ..traffic import Load

_MAX_UTILISATION = 0.9
"""At 1 and above the decay rate is 0, and near it what was measured of the load is mostly noise: more is treated as
this. In the slot model with noisy predictions, at a load of 0.85: 0.95 made the long wait up to 1.46 times as long as
first come, first served does on a trace on which 0.9 made it 1.25 times."""
_MAX_EXPONENT = 500.0
_PRECISION = 1e-4


class Boost:
    """Key `arrival − (b(cost) − b(mean cost))`, with `b(s) = ln(1 / (1 − e^(−γ s/k))) / γ` on k servers.

    γ is `factor` times γ₀, the rate at which the tail of the work in the queue decays: λ (E[e^(γ₀ S/k)] − 1) = γ₀ for
    what requests really cost, fitted anew with the traffic. A request of mean cost keeps its arrival, whatever γ is:
    so keys from before and after a fit stay comparable and nothing is re-sorted. (Without that a γ that falls moves
    all that come later before all that wait.) Keys are arrivals moved by at most half of `max_boost_s` either way: a
    request is passed only by those that come within `max_boost_s`.
    """

    name = "boost"
    lateness = None
    choice = None

    def __init__(self, *, factor: float, max_boost_s: float, prior_gamma_per_s: float) -> None:
        """`factor`: of γ₀, and may be set. `prior_gamma_per_s`: γ until traffic was seen. All above 0."""
        self.factor = factor
        self._max_move_s = max_boost_s / 2.0
        self._gamma_per_s = prior_gamma_per_s
        self._capacity = 1.0
        self._mean_boost_s = 0.0

    def key(self, *, arrival_s: float, cost_s: float, due_s: float | None = None) -> float:
        moved_s = self._boost_s(cost_s) - self._mean_boost_s if cost_s > 0.0 else self._max_move_s
        if moved_s > self._max_move_s:
            return arrival_s - self._max_move_s
        return arrival_s - (moved_s if moved_s > -self._max_move_s else -self._max_move_s)

    def _boost_s(self, cost_s: float) -> float:
        """Of a cost above 0."""
        # −expm1 keeps its precision where the cost is small.
        left = -math.expm1(-self._gamma_per_s * cost_s / self._capacity)
        return -math.log(left) / self._gamma_per_s if left > 0.0 else math.inf

    def refit(self, load: Load) -> bool:
        rate = decay_rate_per_s(load.rate_per_s, load.costs_s, load.capacity)
        if rate is not None:
            self._gamma_per_s = self.factor * rate
            self._capacity = load.capacity
            self._mean_boost_s = self._boost_s(load.mean_cost_s)
        return False

    def overtaking_bound_s(self, max_cost_s: float) -> float:
        return 2.0 * self._max_move_s


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
