"""The shape of a trace in a few lines: quantile tables of lengths, and how requests arrive.

A scenario ships shapes, not traces: they are small, readable, and free of anything but statistics. `tailgate-load shape
FILE` prints one, as the part of a lane that it is. Lengths are drawn from the quantile table by linear interpolation;
prompt and output lengths of one request are tied by their rank correlation through a Gaussian copula, so that both
tables stay exact.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .traces import Trace, attribution

QUANTILE_LEVELS = (0.0, 0.01, 0.05, *(round(0.1 * step, 1) for step in range(1, 10)), 0.95, 0.99, 0.999, 1.0)
BURST_GAP_RATIO = 3.0


@dataclass(frozen=True, slots=True)
class LengthShape:
    """Token counts at `QUANTILE_LEVELS`, and the rank correlation of prompt and output lengths (-1..1)."""

    prompt_tokens: tuple[int, ...]
    output_tokens: tuple[int, ...]
    rank_correlation: float

    def sample(self, count: int, rng: np.random.Generator) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """`count` pairs of prompt and output tokens, each array of shape [count]."""
        # A rank correlation r needs a normal correlation of 2 sin(pi r / 6) (Pearson's formula).
        normal_correlation = 2.0 * np.sin(np.pi * self.rank_correlation / 6.0)
        first = rng.standard_normal(count)
        second = normal_correlation * first + np.sqrt(1.0 - normal_correlation**2) * rng.standard_normal(count)
        prompts = np.interp(_normal_cdf(first), QUANTILE_LEVELS, self.prompt_tokens)
        outputs = np.interp(_normal_cdf(second), QUANTILE_LEVELS, self.output_tokens)
        return np.rint(prompts).astype(np.int64), np.rint(outputs).astype(np.int64)


@dataclass(frozen=True, slots=True)
class ArrivalShape:
    """How requests come, free of any rate: a run stretches time to the load it wants.

    `cv` is the coefficient of variation of the gaps (1 for Poisson), `idc_10s` variance over mean of the counts in
    bins of 10 s of the origin. Bursts are runs of requests whose gaps are at most `BURST_GAP_RATIO` mean gaps:
    `mean_burst` requests each, together `on_share` of the time.
    """

    cv: float
    idc_10s: float
    mean_burst: float
    on_share: float


@dataclass(frozen=True, slots=True)
class Shape:
    """What `tailgate-load shape` prints."""

    origin: str
    licence: str
    num_requests: int
    lengths: LengthShape
    arrivals: ArrivalShape | None

    def to_yaml(self) -> str:
        """`lengths` and `arrivals` of a scenario's lane; what only describes the trace is a comment."""
        prompts, outputs = self.lengths.prompt_tokens, self.lengths.output_tokens
        lines = [
            f"# {self.origin}, {self.licence}. {self.num_requests:,} requests.",
            f"# Quantiles at {', '.join(f'{level:g}' for level in QUANTILE_LEVELS)}.",
            "lengths:",
            f"  prompt_tokens: {list(prompts)}",
            f"  output_tokens: {list(outputs)}",
            f"  rank_correlation: {self.lengths.rank_correlation}",
            "  divisor: 1",
            f"  prompt_bounds: [{max(1, prompts[0])}, {max(1, prompts[-1])}]",
            f"  output_bounds: [{max(1, outputs[0])}, {max(1, outputs[-1])}]",
        ]
        if (arrivals := self.arrivals) is None:
            lines.append("# The trace has no arrivals.")
        else:
            lines += [
                f"# Counts in 10 s vary {arrivals.idc_10s:g} times as much as Poisson's. With bursts instead:",
                f"# arrivals: {{mean_burst: {arrivals.mean_burst}, on_share: {arrivals.on_share}}}",
            ]
            # Without any variation no such arrivals can be drawn.
            lines += [f"arrivals: {{cv: {arrivals.cv}}}"] if arrivals.cv > 0.0 else []
        return "\n".join(lines) + "\n"


def describe(trace: Trace) -> Shape:
    """The shape of a trace of at least two requests."""
    origin, licence = attribution(trace.format)
    return Shape(
        origin=origin,
        licence=licence,
        num_requests=len(trace),
        lengths=LengthShape(
            prompt_tokens=_quantiles(trace.prompt_tokens),
            output_tokens=_quantiles(trace.output_tokens),
            rank_correlation=round(_rank_correlation(trace.prompt_tokens, trace.output_tokens), 2),
        ),
        arrivals=None if trace.arrival_s is None else describe_arrivals(trace.arrival_s),
    )


def describe_arrivals(arrival_s: NDArray[np.float64]) -> ArrivalShape:
    """Gap and burst statistics of sorted instants [num_requests]; a trace without any gap counts as one burst."""
    gaps = np.diff(arrival_s)
    mean_gap_s = float(gaps.mean()) if len(gaps) else 0.0
    span_s = float(arrival_s[-1] - arrival_s[0])
    if mean_gap_s <= 0.0:
        return ArrivalShape(cv=0.0, idc_10s=1.0, mean_burst=float(len(arrival_s)), on_share=1.0)
    is_pause = gaps > BURST_GAP_RATIO * mean_gap_s
    num_bursts = int(is_pause.sum()) + 1
    bins = np.bincount((arrival_s / 10.0).astype(np.int64))
    return ArrivalShape(
        cv=round(float(gaps.std()) / mean_gap_s, 2),
        idc_10s=round(float(bins.var() / bins.mean()), 2),
        mean_burst=round(len(arrival_s) / num_bursts, 1),
        on_share=round(1.0 - float(gaps[is_pause].sum()) / span_s, 3),
    )


def _quantiles(values: NDArray[np.int64]) -> tuple[int, ...]:
    return tuple(int(value) for value in np.rint(np.quantile(values, QUANTILE_LEVELS)))


def _rank_correlation(left: NDArray[np.int64], right: NDArray[np.int64]) -> float:
    """Spearman's rho with average ranks for ties; 0 where one side is constant."""
    ranks = [_average_ranks(left), _average_ranks(right)]
    if len(left) < 2 or any(float(rank.std()) == 0.0 for rank in ranks):
        return 0.0
    return float(np.corrcoef(ranks[0], ranks[1])[0, 1])


def _average_ranks(values: NDArray[np.int64]) -> NDArray[np.float64]:
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    ends = np.cumsum(counts)
    averages: NDArray[np.float64] = ends - (counts - 1) / 2.0
    ranks: NDArray[np.float64] = averages[inverse]
    return ranks


def _normal_cdf(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Abramowitz and Stegun 26.2.17, error below 7.5e-8: enough for a table of 16 quantiles, and no scipy."""
    k = 1.0 / (1.0 + 0.2316419 * np.abs(values))
    poly = k * (0.319381530 + k * (-0.356563782 + k * (1.781477937 + k * (-1.821255978 + k * 1.330274429))))
    upper = 1.0 - np.exp(-0.5 * values**2) / np.sqrt(2.0 * np.pi) * poly
    result: NDArray[np.float64] = np.where(values >= 0.0, upper, 1.0 - upper)
    return result
