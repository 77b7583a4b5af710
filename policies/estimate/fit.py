"""A weighted sum of a few quantities, fitted to a stream of points, some of them far off."""

from collections.abc import Sequence

_GROWTH = 1.0 / 0.99
"""What a new point counts against the one before it: about the last hundred matter."""
_HUBER = 2.0
"""Points further off than so many typical distances count less, in proportion (Huber, 1964)."""
_ALWAYS_NEAR_RATIO = 0.05
"""Nobody's clock is better: without it, points that fit exactly would make all others outliers."""
_SCALE_WEIGHT = 1 / 16
_SOLVED_EACH, _SOLVE_EVERY = 32, 8
"""So many points are taken in one by one, later ones in batches: a hundred others count, and solving takes its time."""
_PRIOR_POINTS = 0.1
_LARGEST_WEIGHT = 1e9


class RobustFit:
    """Least squares of `y = Σ rate · x`, with forgetting and Huber's weights; no rate is below 0.

    The prior of every rate but the first counts as much as a tenth of a point: it matters while there are few points,
    or where the quantities hardly vary against each other, which says nothing of their rates. Points above what was
    expected count `above` times: less than 1, and the fit keeps to the lower ones (an expectile).
    """

    __slots__ = ("_above", "_moments", "_newest_weight", "_prior", "_scale", "_sum_w", "num_points", "rates")

    def __init__(self, *prior: float, above: float = 1.0) -> None:
        self._prior = prior
        self._above = above
        self.rates: tuple[float, ...] = prior
        self.num_points = 0
        self._scale: float | None = None  # typical distance of a point
        # Newer points weigh more, in place of forgetting what was added up.
        self._newest_weight = 1.0
        self._sum_w = 0.0
        # Weighted sums of x · x, the upper triangle row by row, and at the end of each row x · y.
        self._moments = [0.0] * (len(prior) * (len(prior) + 3) // 2)

    def add(self, x: Sequence[float], y: float) -> None:
        """A point: a value for each rate, none below 0, and what they came to."""
        expected = self.at(x)
        distance = abs(y - expected)
        scale = distance if self._scale is None else self._scale
        near = max(_HUBER * scale, _ALWAYS_NEAR_RATIO * abs(y))
        # A single outlier hardly moves the scale; a drift, whose every point is far off, soon does.
        self._scale = scale + (min(distance, 2.0 * near) - scale) * _SCALE_WEIGHT
        self._newest_weight *= _GROWTH
        weight = self._newest_weight if distance <= near else self._newest_weight * near / distance
        if y > expected:
            weight *= self._above
        self._sum_w += weight
        self.num_points += 1
        moments, values, at = self._moments, (*x, y), 0
        for row, value in enumerate(x):
            weighted = weight * value
            for other in values[row:]:
                moments[at] += weighted * other
                at += 1
        if self.num_points <= _SOLVED_EACH or not self.num_points % _SOLVE_EVERY:
            self._solve()

    def at(self, x: Sequence[float]) -> float:
        """What is to be expected there."""
        total = 0.0
        for rate, value in zip(self.rates, x, strict=True):
            total += rate * value
        return total

    def _solve(self) -> None:
        if self._newest_weight > _LARGEST_WEIGHT:
            self._moments = [moment / self._newest_weight for moment in self._moments]
            self._sum_w /= self._newest_weight
            self._newest_weight = 1.0
        equations = self._equations()
        rates = list(self._prior)
        # Of a quantity that was always 0 nothing is known but the prior.
        left = [place for place, row in enumerate(equations) if row[place] > 0.0]
        while left:
            solved = _solve([[*(equations[row][column] for column in left), equations[row][-1]] for row in left])
            if min(solved) >= 0.0:
                for place, rate in zip(left, solved, strict=True):
                    rates[place] = rate
                break
            rates[left.pop(solved.index(min(solved)))] = 0.0  # the best fit is one without that quantity
        self.rates = tuple(rates)

    def _equations(self) -> list[list[float]]:
        """The normal equations, a row each, their right side last."""
        size = len(self._prior)
        rows = [[0.0] * (size + 1) for _ in range(size)]
        moments = iter(self._moments)
        for place, row in enumerate(rows):
            for column in range(place, size):
                row[column] = rows[column][place] = next(moments)
            row[size] = next(moments)
            if place:
                pull = _PRIOR_POINTS * row[place] / self._sum_w
                row[place] += pull
                row[size] += pull * self._prior[place]
        return rows


def _solve(rows: list[list[float]]) -> list[float]:
    """By elimination, without pivots: the matrix is symmetric and positive definite."""
    size = len(rows)
    for place, pivot in enumerate(rows):
        for row in rows[place + 1 :]:
            factor = row[place] / pivot[place]
            for column in range(place, size + 1):
                row[column] -= factor * pivot[column]
    for place in reversed(range(size)):
        row = rows[place]
        known = sum(row[column] * rows[column][size] for column in range(place + 1, size))
        row[size] = (row[size] - known) / row[place]
    return [row[size] for row in rows]
