"""A straight line through a stream of points, some of them far off."""

_FORGETTING = 0.99
"""Of what is known, what a new point leaves: about the last hundred count."""
_HUBER = 2.0
"""Points further from the line than so many typical distances count less, in proportion (Huber, 1964)."""
_ALWAYS_NEAR_RATIO = 0.05
"""Nobody's clock is better: without it, points that lie on the line exactly would make all others outliers."""
_SCALE_WEIGHT = 1 / 16
_SOLVED_EACH, _SOLVE_EVERY = 32, 8
"""So many points are taken in one by one, later ones in batches: a hundred others count, and solving takes its time."""
_PRIOR_POINTS = 0.1


class RobustLine:
    """Least squares of `y = intercept + slope · x` with forgetting and Huber's weights; neither is below 0.

    The prior slope counts as much as a tenth of a point at a typical x: it matters while there are few points, or where
    x hardly varies, which says nothing of the slope.
    """

    __slots__ = (
        "_prior_slope",
        "_scale",
        "_sum_w",
        "_sum_x",
        "_sum_xx",
        "_sum_xy",
        "_sum_y",
        "intercept",
        "num_points",
        "slope",
    )

    def __init__(self, prior_slope: float, prior_intercept: float) -> None:
        self._prior_slope = self.slope = prior_slope
        self.intercept = prior_intercept
        self.num_points = 0
        self._scale: float | None = None  # typical distance of a point
        self._sum_w = self._sum_x = self._sum_y = self._sum_xx = self._sum_xy = 0.0

    def add(self, x: float, y: float) -> None:
        """A point; x above 0."""
        distance = abs(y - self.intercept - self.slope * x)
        scale = distance if self._scale is None else self._scale
        near = max(_HUBER * scale, _ALWAYS_NEAR_RATIO * abs(y))
        weight = 1.0 if distance <= near else near / distance
        # A single outlier hardly moves the scale; a drift, whose every point is far off, soon does.
        self._scale = scale + (min(distance, 2.0 * near) - scale) * _SCALE_WEIGHT
        self.num_points += 1
        self._sum_w = self._sum_w * _FORGETTING + weight
        self._sum_x = self._sum_x * _FORGETTING + weight * x
        self._sum_y = self._sum_y * _FORGETTING + weight * y
        self._sum_xx = self._sum_xx * _FORGETTING + weight * x * x
        self._sum_xy = self._sum_xy * _FORGETTING + weight * x * y
        if self.num_points <= _SOLVED_EACH or not self.num_points % _SOLVE_EVERY:
            self._solve()

    def at(self, x: float) -> float:
        return self.intercept + self.slope * x

    def _solve(self) -> None:
        mean_x, mean_y = self._sum_x / self._sum_w, self._sum_y / self._sum_w
        prior = _PRIOR_POINTS * self._sum_xx / self._sum_w
        spread = self._sum_xx - self._sum_x * mean_x
        slope = (self._sum_xy - self._sum_x * mean_y + prior * self._prior_slope) / (spread + prior)
        intercept = mean_y - slope * mean_x
        if intercept < 0.0:  # then the best line is one through the origin
            slope, intercept = self._sum_xy / self._sum_xx, 0.0
        elif slope < 0.0:
            slope, intercept = 0.0, mean_y
        self.slope, self.intercept = slope, intercept
