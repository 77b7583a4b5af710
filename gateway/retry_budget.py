"""How many calls may be repeated: a share of recent requests, so that an outage isn't multiplied by retries.

Every request that fails could be sent again; when all replicas fail, that doubles the load on what is left of them. So
retries in all are bounded by a share of the requests (after Finagle's and Envoy's retry budgets), and a few a second
are always allowed, or a quiet gateway could never retry.
"""

import math

WINDOW_S = 10.0
"""Requests and retries count with a weight that fades with this time constant."""


class RetryBudget:
    """`ratio` is of retries to requests, `min_per_s` what is allowed besides. Instants are of a monotonic clock."""

    def __init__(self, *, ratio: float, min_per_s: float) -> None:
        self._ratio = ratio
        self._free = min_per_s * WINDOW_S
        self._num_requests = 0.0
        self._num_retries = 0.0
        self._as_of_s = 0.0

    def requested(self, now_s: float) -> None:
        """A request is sent for the first time."""
        self._fade(now_s)
        self._num_requests += 1.0

    def take(self, now_s: float) -> bool:
        """Whether one may be sent again; if so, it counts."""
        self._fade(now_s)
        if self._num_retries + 1.0 > self._ratio * self._num_requests + self._free:
            return False
        self._num_retries += 1.0
        return True

    def _fade(self, now_s: float) -> None:
        elapsed_s = now_s - self._as_of_s
        if elapsed_s > 0.0:
            weight = math.exp(-elapsed_s / WINDOW_S)
            self._num_requests *= weight
            self._num_retries *= weight
            self._as_of_s = now_s
