"""A replica's step time and KV capacity from measured requests: those under which the simulator shows what was seen.

Levenberg and Marquardt's method, from several starts, on the logarithms of all values (each is positive, and an error
is a ratio), with derivatives by differences between simulations; where that comes to a halt, each value by itself is
moved up and down. Which steps an engine made is not measured: they follow from the composer that the simulator runs,
so what is fitted is the whole, time and scheduling together.
"""

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace

import numpy as np
from numpy.typing import NDArray

from policies.config import PolicySpec, build_policy
from policies.policy import Policy

from .gateway import RequestOutcome
from .measured import MeasuredRequest, peak_tokens
from .model import ReplicaModel
from .request import SimRequest
from .simulation import Setup, simulate
from .step_time import StepTime

_SLACK_S = 0.02
"""Added to both first-token times before their ratio: a millisecond at an idle engine is no error worth fitting."""
_TPOT_WEIGHT = 3.0
_DIFFERENCE = 0.04
_LONGEST_STEP = 0.6
_SCALES = (1.0, 6.0)
"""Of what context and prompts cost, against a typical GPU's proportions: where searches start."""
_CAPACITY_SHARES = (1.0, 0.85, 0.7)
"""Of the most that was seen between first and last tokens, preempted requests included."""
_TRIAL_ROUNDS = 4
_MOVES = (0.5, -0.5, 0.12, -0.12)
_NAMES = tuple(field.name for field in fields(StepTime))


@dataclass(frozen=True, slots=True)
class Fit:
    """`is_memory_bound`: the capacity is a finding; otherwise memory was never short, and it is only "enough"."""

    model: ReplicaModel
    is_memory_bound: bool
    num_fitted: int
    num_simulations: int
    median_error_ratio: float
    """Of the fitted first-token times and times per token, simulated against measured."""


class _EnoughError(Exception):
    """All that the fit looks at has ended."""


def pass_through() -> Policy:
    """A gateway that sends everything on at once: clients that speak to the engine itself."""
    caps = {"in_flight_tokens": 10**12, "prefill_tokens": 10**12}
    return build_policy(
        PolicySpec(ordering="fcfs", lanes="single", admission="fixed", routing="round-robin", options={"fixed": caps})
    )


def as_requests(measured: Sequence[MeasuredRequest]) -> list[SimRequest]:
    """The same lengths at the same instants."""
    start_s = min((request.queued_s for request in measured), default=0.0)
    return [
        SimRequest(
            index=index,
            request_id=f"{index}",
            arrival_s=request.queued_s - start_s,
            prompt_tokens=request.prompt_tokens,
            output_tokens=request.output_tokens,
        )
        for index, request in enumerate(measured)
    ]


def fit_model(
    measured: Sequence[MeasuredRequest],
    limits: ReplicaModel,
    *,
    num_fitted: int,
    max_rounds: int = 16,
    on_simulation: Callable[[object], None] | None = None,
) -> Fit:
    """Fits to what became of the first `num_fitted` requests; of the others only lengths and instants are used.

    `limits`: block size and the engine's flags (tokens and sequences a step); its speed and memory are ignored. Where
    fitted requests waited, memory may have been short or not: the search starts from several capacities, and from
    none. Where none waited, there is nothing to tell how large the memory is.
    """
    problem = _Problem(measured, limits, num_fitted, on_simulation)
    capacities: list[float | None] = [None]
    if problem.some_waited():
        peak = peak_tokens(measured[:num_fitted])
        capacities += [share * peak for share in _CAPACITY_SHARES]
    starts = [problem.start(scale, capacity) for capacity in capacities for scale in _SCALES]
    tried = [problem.solve(start, _TRIAL_ROUNDS) for start in starts]
    tried.sort(key=lambda found: found[1])
    values, _ = problem.solve(tried[0][0], max_rounds)
    median_error_ratio = problem.median_error_ratio(values)
    return Fit(
        model=problem.model(values),
        is_memory_bound=len(values) > len(_NAMES),
        num_fitted=num_fitted,
        num_simulations=problem.num_simulations,
        median_error_ratio=median_error_ratio,
    )


class _Problem:
    """Values are logarithms: those of `StepTime`, then (where memory is short) that of the capacity in tokens."""

    def __init__(
        self,
        measured: Sequence[MeasuredRequest],
        limits: ReplicaModel,
        num_fitted: int,
        on_simulation: Callable[[object], None] | None,
    ) -> None:
        self.num_simulations = 0
        self._requests = as_requests(measured)
        self._limits = replace(limits, enable_prefix_caching=False)
        self._num_fitted = num_fitted
        self._on_simulation = on_simulation
        self._enough_tokens = sum(request.prompt_tokens + request.output_tokens for request in measured)
        self._largest_tokens = max(request.prompt_tokens + request.output_tokens for request in measured)
        seen = measured[:num_fitted]
        self._ttft_s = np.array([request.ttft_s for request in seen])
        self._tpot_s = np.array([np.nan if request.tpot_s is None else request.tpot_s for request in seen])

    def start(self, scale: float, capacity_tokens: float | None) -> NDArray[np.float64]:
        """A typical GPU's proportions, scaled to the time a token took."""
        step_s = float(np.nanmedian(self._tpot_s))
        guess = StepTime(
            base_s=step_s * 0.5,
            token_s=step_s * 5e-4,
            sequence_s=step_s * 5e-4,
            context_s=step_s * 2e-6 * scale,
            pair_s=step_s * 2e-8 * scale,
            prefill_token_s=step_s * 1e-3 * scale,
        )
        values = [getattr(guess, name) for name in _NAMES]
        return np.log(values if capacity_tokens is None else [*values, capacity_tokens])

    def some_waited(self) -> bool:
        """Whether a twentieth of the fitted requests had no token for as long as 40 tokens take."""
        return float(np.mean(self._ttft_s > 40.0 * np.nanmedian(self._tpot_s))) >= 0.05

    def model(self, values: NDArray[np.float64]) -> ReplicaModel:
        speeds = dict(zip(_NAMES, np.exp(values[: len(_NAMES)]).tolist(), strict=True))
        capacity = float(np.exp(values[-1])) if len(values) > len(_NAMES) else self._enough_tokens
        tokens = max(int(capacity), self._largest_tokens) + self._limits.block_size
        return replace(self._limits, step_time=StepTime(**speeds)).with_capacity(tokens)

    def solve(self, values: NDArray[np.float64], max_rounds: int) -> tuple[NDArray[np.float64], float]:
        """The best values found, and the cost there: residuals count by their square, large ones by themselves."""
        residuals = _softened(self._residuals(values))
        cost, damping = float(residuals @ residuals), 0.1
        for _ in range(max_rounds):
            slopes = np.empty((len(residuals), len(values)))
            for place in range(len(values)):
                moved = values.copy()
                moved[place] += _DIFFERENCE
                slopes[:, place] = (_softened(self._residuals(moved)) - residuals) / _DIFFERENCE
            normal, gradient = slopes.T @ slopes, slopes.T @ residuals
            scale = np.diag(normal) + 1e-4 * np.trace(normal) / len(values) + 1e-12
            before = cost
            for _ in range(5):
                step = np.linalg.solve(normal + damping * np.diag(scale), -gradient)
                tried = values + np.clip(step, -_LONGEST_STEP, _LONGEST_STEP)
                there = _softened(self._residuals(tried))
                if (new_cost := float(there @ there)) < cost:
                    values, residuals, cost, damping = tried, there, new_cost, max(damping / 4.0, 1e-4)
                    break
                damping = min(damping * 5.0, 1e3)
            if cost > 0.99 * before:
                values, residuals, cost = self._moved(values, residuals, cost)
                damping = 0.1
                if cost > 0.99 * before:
                    break
        return values, cost

    def _moved(
        self, values: NDArray[np.float64], residuals: NDArray[np.float64], cost: float
    ) -> tuple[NDArray[np.float64], NDArray[np.float64], float]:
        """Every value up and down by itself, keeping what is better: small steps see a rugged slope, these see past."""
        for place in range(len(values)):
            for move in _MOVES:
                tried = values.copy()
                tried[place] += move
                there = _softened(self._residuals(tried))
                if (new_cost := float(there @ there)) < cost:
                    values, residuals, cost = tried, there, new_cost
        return values, residuals, cost

    def median_error_ratio(self, values: NDArray[np.float64]) -> float:
        """Of both kinds of times."""
        weights = np.repeat([1.0, _TPOT_WEIGHT], self._num_fitted)
        return float(np.median(np.abs(np.expm1(self._residuals(values) / weights))))

    def _residuals(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        """Logarithms of simulated over measured: first-token times, then times per token."""
        self.num_simulations += 1
        if self._on_simulation is not None:
            self._on_simulation(self.num_simulations)
        ended: dict[int, RequestOutcome] = {}

        def note(outcome: RequestOutcome) -> None:
            if outcome.request.index < self._num_fitted:
                ended[outcome.request.index] = outcome
                if len(ended) == self._num_fitted:
                    raise _EnoughError

        with contextlib.suppress(_EnoughError):
            simulate(self._requests, pass_through, Setup(self.model(values)), on_end=note)
        outcomes = [ended[index] for index in range(self._num_fitted)]
        ttft_s = np.array([outcome.token_s[0] - outcome.request.arrival_s for outcome in outcomes])
        spans_s = np.array([outcome.token_s[-1] - outcome.token_s[0] for outcome in outcomes])
        gaps = np.array([outcome.request.output_tokens - 1 for outcome in outcomes])
        tpot_s = np.divide(spans_s, gaps, out=np.full(len(gaps), np.nan), where=gaps > 0)
        first = np.log((ttft_s + _SLACK_S) / (self._ttft_s + _SLACK_S))
        each = np.nan_to_num(_TPOT_WEIGHT * np.log(np.maximum(tpot_s, 1e-9) / np.maximum(self._tpot_s, 1e-9)))
        return np.concatenate([first, each])


def _softened(residuals: NDArray[np.float64]) -> NDArray[np.float64]:
    """Whose squares are pseudo-Huber's loss: one request that was preempted at another moment must not decide."""
    soft: NDArray[np.float64] = np.sign(residuals) * np.sqrt(2.0 * (np.sqrt(1.0 + residuals**2) - 1.0))
    return soft
