"""What came lately and how it was served: what orderings are fitted to, and what the choice among them looks at."""

import math
from collections import deque
from typing import NamedTuple

from .estimate.calibration import Calibration

_RECENT = 512
"""Requests that rate and variability of cost are taken from."""
_MEMORY_S = 300.0
"""Of what is known about capacity: older time counts for half or less."""
_MIN_BACKLOG_S = 5.0
_ERROR_WEIGHT = 1 / 128


class Load(NamedTuple):
    """The traffic at one instant. `costs_s`: what the requests that ended last really cost, oldest first."""

    rate_per_s: float
    """Requests a second; 0.0 before two have come."""
    costs_s: tuple[float, ...]
    capacity: float
    """Seconds of cost that are served in a second, as seen while somebody waited: the number of servers, in the unit
    that costs are counted in. Before that is known, the most calls that were in flight at once, at least 1."""
    log_error: float | None
    """Root mean square of ln(actual / predicted cost); None before anything ended."""
    num_queued: int = 0
    num_in_flight: int = 0

    @property
    def mean_cost_s(self) -> float:
        return sum(self.costs_s) / len(self.costs_s) if self.costs_s else 0.0

    @property
    def scv(self) -> float:
        """Squared coefficient of variation of cost; 0.0 where nothing ended."""
        mean_s = self.mean_cost_s
        if mean_s <= 0.0:
            return 0.0
        return sum((cost_s - mean_s) ** 2 for cost_s in self.costs_s) / len(self.costs_s) / mean_s**2

    @property
    def spread(self) -> float:
        """The median of cost over its 10th percentile; 1.0 where nothing ended, or that percentile is 0."""
        ascending = sorted(self.costs_s)
        smallest_tenth_s = ascending[len(ascending) // 10] if ascending else 0.0
        return ascending[len(ascending) // 2] / smallest_tenth_s if smallest_tenth_s > 0.0 else 1.0

    @property
    def crowd(self) -> float:
        """Requests that wait for each that runs."""
        return self.num_queued / max(self.num_in_flight, 1)

    @property
    def utilisation(self) -> float:
        """Cost that comes in a second, of what can be served in a second; above 1 the queue grows."""
        return self.rate_per_s * self.mean_cost_s / self.capacity


class Traffic:
    """Told of every arrival, poll and end by the core; everything in it is O(1), but for `load`."""

    def __init__(self) -> None:
        self._arrivals_s: deque[float] = deque(maxlen=_RECENT)
        self._costs_s: deque[float] = deque(maxlen=_RECENT)
        self._most_in_flight = 1
        self._num_queued = self._num_in_flight = 0
        self._backlogged_since_s: float | None = None
        self._backlogged_s = 0.0
        self._served_s = 0.0  # cost of what ended while somebody waited
        self._square_error: float | None = None
        self.calibration = Calibration()

    def arrived(self, now_s: float) -> None:
        self._arrivals_s.append(now_s)

    def polled(self, now_s: float, num_queued: int, num_in_flight: int) -> None:
        """The core has decided everything that it could."""
        since_s = self._backlogged_since_s
        if since_s is not None:
            self._backlogged_s += now_s - since_s
            if self._backlogged_s > _MEMORY_S:
                self._backlogged_s /= 2.0
                self._served_s /= 2.0
        self._backlogged_since_s = now_s if num_queued else None
        self._num_queued, self._num_in_flight = num_queued, num_in_flight
        if num_in_flight > self._most_in_flight:
            self._most_in_flight = num_in_flight

    def ended(self, cost_s: float) -> None:
        """A request ended that really cost so much."""
        self._costs_s.append(cost_s)
        if self._backlogged_since_s is not None:
            self._served_s += cost_s

    def erred(self, predicted_s: float, actual_s: float) -> None:
        """What a request was predicted to cost, and what it cost; both above 0."""
        square = math.log(actual_s / predicted_s) ** 2
        before = square if self._square_error is None else self._square_error
        self._square_error = before + (square - before) * _ERROR_WEIGHT

    @property
    def capacity(self) -> float:
        """As `Load.capacity`; O(1)."""
        if self._backlogged_s >= _MIN_BACKLOG_S and self._served_s > 0.0:
            return self._served_s / self._backlogged_s
        return float(self._most_in_flight)

    def load(self) -> Load:
        """O(512)."""
        arrivals_s = self._arrivals_s
        span_s = arrivals_s[-1] - arrivals_s[0] if arrivals_s else 0.0
        return Load(
            rate_per_s=(len(arrivals_s) - 1) / span_s if span_s > 0.0 else 0.0,
            costs_s=tuple(self._costs_s),
            capacity=self.capacity,
            log_error=None if self._square_error is None else math.sqrt(self._square_error),
            num_queued=self._num_queued,
            num_in_flight=self._num_in_flight,
        )
