"""The choice among orderings: which one suits the traffic at present, and why.

Thresholds come from the slot model of `loadtests/slot_model.py` on seven public traces (P99 wait of the 75 % smallest
requests, P99 response of the 5 % largest, against first come, first served; predictions times lognormal noise of
σ = 0.8, loads 0.85 and 0.92). Figures beside them are the gain of the short / how much longer the long take.
"""

from typing import NamedTuple

from .traffic import Load


class Choice(NamedTuple):
    """`name`: of `CHOICES`. `factor`: of the boost's decay rate; None: arrival alone decides. `why`: in a few words."""

    name: str
    factor: float | None
    why: str


FCFS, BOOST, GENTLE_BOOST = "fcfs", "boost", "gentle-boost"
CHOICES = (FCFS, BOOST, GENTLE_BOOST)

_MIN_COSTS = 32
"""Fewer finished requests say nothing of how costs vary."""
_SCV = (0.9, 1.1)
"""Under it, costs are alike; over it, they differ much. Measured: 0.4 to 0.7 on chat, 2.8 to 5 on code, reasoning and
mixes. Here and in the other pairs, what lies between leaves things as they are."""
_SPREAD = (6.5, 7.5)
"""Median over 10th percentile of cost. Where costs are alike but for many that are next to nothing, those would pass
all others over and over, and the P99 of the short is that of the largest among them: a gain of 0.65 to 0.8 on a trace
with 10 to 14, where those with 2 to 6 gain 1.1 to 1.6."""
_BUSY, _CROWDED = (0.5, 0.8), (0.6, 1.6)
"""Requests that wait for each that runs. While few wait, it takes little to let the short go first, and more makes
those of them that are predicted long wait longer than in order of arrival (gains of 0.7 to 0.9 on three of four chat
traces). In a long queue they wait for very long, whatever the order gains the others (0.5 to 0.6 on one at 0.92)."""
_LOG_ERROR = (1.1, 1.3)
"""Root mean square of ln(actual / predicted cost). Gains at 0.85 without this rule: at 1.1 they are 1.1 to 2.3 on four
traces, at 1.4 still 1.1 to 1.5, at 1.8 one is 0.95."""

_FACTORS_ALIKE = {GENTLE_BOOST: 1.0, BOOST: 0.2}
"""Of the boost's decay rate: costs alike."""
_FACTORS_DIFFERENT = {GENTLE_BOOST: 0.5, BOOST: 0.15}


def choose(load: Load, before: Choice | None) -> Choice:
    """What suits this traffic. `before`: the present choice, which borderline cases don't change."""
    name = FCFS if before is None else before.name
    if len(load.costs_s) < _MIN_COSTS:
        return Choice(FCFS, None, f"{len(load.costs_s)} requests have ended, too few to judge by")
    error = load.log_error or 0.0
    if _is_over(error, _LOG_ERROR, name == FCFS):
        return Choice(FCFS, None, f"predictions are off by a factor of e^{error:.1f}")
    differ = _is_over(load.scv, _SCV, before is not None and before.factor in _FACTORS_DIFFERENT.values())
    costs = f"squared variation of cost {load.scv:.1f}"
    crowd = f"{costs}, {load.crowd:.1f} wait for each that runs"
    if differ:
        is_crowded = _is_over(load.crowd, _CROWDED, name == GENTLE_BOOST)
        chosen = GENTLE_BOOST if is_crowded else BOOST
        return Choice(chosen, _FACTORS_DIFFERENT[chosen], crowd)
    if _is_over(load.spread, _SPREAD, name == FCFS):
        return Choice(FCFS, None, f"{costs}, the median is {load.spread:.1f} times the smallest tenth")
    if _is_over(load.crowd, _CROWDED, name == FCFS):
        return Choice(FCFS, None, crowd)
    chosen = BOOST if _is_over(load.crowd, _BUSY, name == BOOST) else GENTLE_BOOST
    return Choice(chosen, _FACTORS_ALIKE[chosen], crowd)


def _is_over(value: float, bounds: tuple[float, float], was_over: bool) -> bool:
    """Whether it is over the higher bound, or still over the lower one."""
    return value > bounds[0 if was_over else 1]
