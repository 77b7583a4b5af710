"""How fast the queue drains, for Retry-After."""


class DrainRate:
    """An exponentially weighted mean of the time between ends of calls (weight 1/8 a sample)."""

    def __init__(self) -> None:
        self._last_s: float | None = None
        self._interval_s: float | None = None

    def ended(self, now_s: float) -> None:
        if self._last_s is not None:
            interval_s = now_s - self._last_s
            old_s = interval_s if self._interval_s is None else self._interval_s
            self._interval_s = old_s + (interval_s - old_s) / 8
        self._last_s = now_s

    def seconds_for(self, num_requests: int) -> float:
        """Seconds until so many requests have drained; at least 1, and 1 while nothing is known."""
        return max(1.0, num_requests * (self._interval_s or 0.0))
