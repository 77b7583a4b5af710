"""Percentiles with bootstrap intervals, goodput, ratios between two sides of one run."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .answer import Answer
from .scenario import Objectives

NUM_RESAMPLES = 1000


@dataclass(frozen=True, slots=True)
class Estimate:
    """A figure and its 95 % bootstrap interval; None for all three where there are no data."""

    value: float | None
    low: float | None = None
    high: float | None = None

    def to_dict(self) -> dict[str, float | None]:
        """Plain values."""
        return {"value": self.value, "low": self.low, "high": self.high}


def percentile(values: Sequence[float], level: float) -> float | None:
    """The `level` (0..100) percentile, linear between order statistics; None for no values."""
    return float(np.percentile(np.asarray(values), level)) if values else None


def percentile_estimate(values: Sequence[float], level: float, rng: np.random.Generator) -> Estimate:
    """A percentile with its percentile-bootstrap interval (Efron), over `NUM_RESAMPLES` resamples."""
    if not values:
        return Estimate(None)
    array = np.asarray(values)
    picks = rng.integers(0, len(array), size=(NUM_RESAMPLES, len(array)))
    low, high = np.percentile(np.percentile(array[picks], level, axis=1), [2.5, 97.5])
    return Estimate(float(np.percentile(array, level)), float(low), float(high))


def paired_ratio(ours: Sequence[float], theirs: Sequence[float], level: float, rng: np.random.Generator) -> Estimate:
    """Percentile of `ours` over that of `theirs`, where item i of both is the same request.

    The interval resamples requests, so what both sides share does not widen it. None where a side is empty or its
    percentile is 0. Raises ValueError for unequal lengths.
    """
    if len(ours) != len(theirs):
        raise ValueError("paired samples differ in length")
    if not ours:
        return Estimate(None)
    above, below = np.asarray(ours), np.asarray(theirs)
    base = float(np.percentile(below, level))
    if base <= 0.0:
        return Estimate(None)
    picks = rng.integers(0, len(above), size=(NUM_RESAMPLES, len(above)))
    bases = np.percentile(below[picks], level, axis=1)
    ratios: NDArray[np.float64] = np.percentile(above[picks], level, axis=1)[bases > 0] / bases[bases > 0]
    low, high = np.percentile(ratios, [2.5, 97.5])
    return Estimate(float(np.percentile(above, level)) / base, float(low), float(high))


def paired_values(
    ours: Sequence[Answer], theirs: Sequence[Answer], read: Callable[[Answer], float | None]
) -> tuple[list[float], list[float]]:
    """The figure of every request (by index) that has it on both sides."""
    other = {answer.index: read(answer) for answer in theirs}
    pairs = [(read(answer), other.get(answer.index)) for answer in ours]
    whole = [(left, right) for left, right in pairs if left is not None and right is not None]
    return [left for left, _ in whole], [right for _, right in whole]


def meets(answer: Answer, objectives: Objectives) -> bool:
    """Whether a request is good: complete, and within every objective that is set. Failed ones are misses."""
    if not answer.is_ok:
        return False
    checks = (
        (answer.ttft_s, objectives.ttft_s),
        (answer.tpot_s, objectives.tpot_s),
        (answer.e2e_s, objectives.e2e_s),
    )
    return all(limit is None or value is None or value <= limit for value, limit in checks)


def makespan_s(answers: Sequence[Answer]) -> float:
    """From the first sending to the last end; 0 for no answers."""
    if not answers:
        return 0.0
    return max(answer.end_s or answer.sent_s for answer in answers) - min(answer.sent_s for answer in answers)
