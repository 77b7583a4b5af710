"""Quantiles of the most recent values."""

import math
from bisect import bisect_left, insort
from collections import deque


class RecentQuantiles:
    """The last `size` values, kept sorted: O(log n) search, O(n) move of a few kilobytes for an update."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._recent: deque[float] = deque()
        self._sorted: list[float] = []

    def __len__(self) -> int:
        return len(self._recent)

    def add(self, value: float) -> None:
        if len(self._recent) == self._size:
            del self._sorted[bisect_left(self._sorted, self._recent.popleft())]
        self._recent.append(value)
        insort(self._sorted, value)

    def quantile(self, q: float) -> float:
        """The smallest value with a share `q` of all (0 < q ≤ 1) at or below it; raises IndexError when empty."""
        return self._sorted[math.ceil(q * len(self._sorted)) - 1]
