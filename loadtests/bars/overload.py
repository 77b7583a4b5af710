"""Twice the capacity for ten minutes, in the simulator: who is served, what waits, and how soon it is over.

An engine takes requests at 0.7 of its capacity, then at 2.0, then at 0.7 again. Of the offered work 30 % is declared
interactive, of the rest one half is conversations and the other reasoning; five tenants share all of it. Policy: the
default with the `ladder` and nothing tuned.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from policies.config import PolicySpec, build_policy
from policies.types import Lane

from ..compare import OnStep
from ..sim.gateway import RequestOutcome
from ..sim.model import ReplicaModel
from ..sim.models import load_model
from ..sim.request import SimRequest
from ..sim.simulation import Setup, simulate
from ..sim.study import capacity_work_per_s, prepared, typical_costs
from ..traces import load_trace
from ..traces.adjust import scaled, superposed, work_s
from ..workload import Costs, rng_for
from .bar import Bar, at_most, median_of_rounds, skipped

CONVERSATIONS, REASONING = "azure2023_conv.csv.gz", "servegen_deepseek_r1_sampled.csv.gz"
ENGINE = "rtxpro6000-llama3.1-8b"
SHARES = (0.3, 0.35, 0.35)
PHASES = ((120.0, 0.7), (600.0, 2.0), (600.0, 0.7))
"""Seconds and load, of capacity: before, overload, after."""
OBJECTIVE_TTFT_S, OBJECTIVE_TPOT_S = 5.0, 0.1
GOODPUT_LIMIT, RECOVERY_LIMIT = 0.95, 2.0
NUM_TENANTS = 5
SEEDS = (1, 2, 3)
DECLARED = "declared"
BYTES_PER_TOKEN = 4
BOUNDS = {"max_requests": 10_000, "max_tokens": 50_000_000, "max_bytes": 268_435_456}
WINDOW_S, WINDOW_STEP_S = 30.0, 5.0
NORMAL_FACTOR, NORMAL_SPAN_S = 1.5, 300.0
NAMES = (
    "overload-declared-interactive-goodput",
    "overload-queue-requests-of-bound",
    "overload-queue-tokens-of-bound",
    "overload-queue-bytes-of-bound",
    "overload-recovery-of-drain-time",
)


@dataclass(frozen=True, slots=True)
class Scene:
    """Requests in order of arrival, what each is expected to cost, and the engine with its capacity in work seconds."""

    requests: tuple[SimRequest, ...]
    work_s: NDArray[np.float64]
    model: ReplicaModel
    costs: Costs
    capacity: float


def overload_bars(traces: Path | None, on_step: OnStep, report: Callable[[Bar], None]) -> None:
    """Three simulations of 22 minutes each."""
    if traces is None or not all((traces / file).exists() for file in (CONVERSATIONS, REASONING)):
        for name in NAMES:
            report(skipped(name, f"no {CONVERSATIONS} and {REASONING}; name their folder with --traces"))
        return
    spec = PolicySpec(shedding="ladder", options={"queue": BOUNDS})
    runs = []
    for seed in SEEDS:
        made = scene(traces, seed=seed)
        runs.append(found(made, run(made, spec, on_step)))
    for bar in bars_of(runs):
        report(bar)


def scene(traces: Path, *, seed: int) -> Scene:
    """The workload that the module's docstring describes."""
    model = load_model(ENGINE)
    conversations, reasoning = (prepared(load_trace(traces / file), model) for file in (CONVERSATIONS, REASONING))
    costs = typical_costs(model, conversations)
    rng = rng_for("overload", seed)
    parts = [(conversations, SHARES[0]), (conversations, SHARES[1]), (reasoning, SHARES[2])]
    mixed = superposed(parts, costs, num_first=len(conversations) // 2, rng=rng)
    capacity = capacity_work_per_s(model, mixed.trace, costs)
    trace = scaled(mixed.trace, costs, work_per_s=capacity, rng=rng)
    assert trace.arrival_s is not None
    arrival_s = _warped(trace.arrival_s)
    count = int(np.searchsorted(arrival_s, sum(span_s for span_s, _ in PHASES)))
    tenants = rng.integers(0, NUM_TENANTS, count)
    requests = tuple(
        SimRequest(
            index=index,
            request_id=f"q{index}",
            arrival_s=float(arrival_s[index]),
            prompt_tokens=int(trace.prompt_tokens[index]),
            output_tokens=int(trace.output_tokens[index]),
            group=DECLARED if mixed.part[index] == 0 else "other",
            tenant=f"tenant-{tenants[index]}",
            declared_lane=Lane.INTERACTIVE if mixed.part[index] == 0 else None,
            body_bytes=BYTES_PER_TOKEN * int(trace.prompt_tokens[index]),
        )
        for index in range(count)
    )
    return Scene(requests, work_s(trace, costs)[:count], model, costs, capacity)


def _warped(load_1_s: NDArray[np.float64]) -> NDArray[np.float64]:
    """Arrivals at load 1, moved to where the phases have them."""
    ends_s = np.cumsum([0.0] + [span_s for span_s, _ in PHASES])
    done = np.cumsum([0.0] + [span_s * load for span_s, load in PHASES])
    moved: NDArray[np.float64] = np.interp(load_1_s, done, ends_s, right=np.inf)
    return moved


def run(made: Scene, spec: PolicySpec, on_step: OnStep) -> Sequence[RequestOutcome]:
    """What becomes of each request under this policy."""
    model, costs = made.model, made.costs
    cost = {"prefill_s_per_token": costs.prompt_token_s, "decode_s_per_token": costs.output_token_s}
    spec = replace(spec, options={"cost": cost, **spec.options})
    setup = Setup(
        model,
        network_s=2e-4,
        max_in_flight_tokens=model.capacity_tokens,
        max_in_flight_requests=model.max_num_seqs,
        max_prefill_tokens=2 * model.max_num_batched_tokens,
    )
    advance = on_step("serving twice the capacity", len(made.requests))
    return simulate(made.requests, lambda: build_policy(spec), setup, on_end=advance).outcomes


@dataclass(frozen=True, slots=True)
class Found:
    """Figures of one run: shares of 1, the most that waited (requests, tokens, bytes), seconds."""

    goodput: float
    others_served: float
    peaks: tuple[float, float, float]
    recovery_s: float
    drain_s: float


def found(made: Scene, outcomes: Sequence[RequestOutcome]) -> Found:
    """Goodput is of what was declared interactive and came during the overload."""
    from_s, to_s = PHASES[0][0], PHASES[0][0] + PHASES[1][0]
    during = [outcome for outcome in outcomes if from_s <= outcome.request.arrival_s < to_s]
    declared = [_is_good(outcome) for outcome in during if outcome.request.group == DECLARED]
    others = [outcome.error is None for outcome in during if outcome.request.group != DECLARED]
    recovery_s, drain_s = recovery(made, outcomes)
    return Found(sum(declared) / len(declared), sum(others) / len(others), _peaks(outcomes), recovery_s, drain_s)


def bars_of(runs: Sequence[Found]) -> list[Bar]:
    """Medians of goodput and recovery; of what waited, the most of all runs."""
    goodput = median_of_rounds(NAMES[0], ">=", [run.goodput for run in runs], GOODPUT_LIMIT)
    recovered = median_of_rounds(NAMES[4], "<=", [run.recovery_s / run.drain_s for run in runs], RECOVERY_LIMIT)
    served = ", ".join(f"{run.others_served:.0%}" for run in runs)
    within = f"first token in {OBJECTIVE_TTFT_S:g} s and {OBJECTIVE_TPOT_S * 1e3:g} ms a token"
    spans = ", ".join(f"{run.recovery_s:.0f} of {run.drain_s:.0f} s" for run in runs)
    most = [max(peaks) for peaks in zip(*(run.peaks for run in runs), strict=True)]
    return [
        replace(goodput, note=f"{within}; {goodput.note}; of the others served in the end: {served}"),
        *(
            at_most(name, peak / bound, 1.0, f"at most {peak:.0f} waited")
            for name, peak, bound in zip(NAMES[1:4], most, BOUNDS.values(), strict=True)
        ),
        replace(recovered, note=f"{recovered.note}; {spans}"),
    ]


def _is_good(outcome: RequestOutcome) -> bool:
    if outcome.error is not None:
        return False
    token_s = outcome.token_s
    tpot_s = (token_s[-1] - token_s[0]) / (len(token_s) - 1) if len(token_s) > 1 else 0.0
    return token_s[0] - outcome.request.arrival_s <= OBJECTIVE_TTFT_S and tpot_s <= OBJECTIVE_TPOT_S


def _peaks(outcomes: Sequence[RequestOutcome]) -> tuple[float, float, float]:
    """The most requests, tokens of prompt and answer, and bytes that waited at one time."""
    changes = []
    for outcome in outcomes:
        left_s = outcome.end_s if outcome.dispatched_s is None else outcome.dispatched_s
        request = outcome.request
        size = np.array([1.0, request.prompt_tokens + request.output_tokens, request.body_bytes])
        changes += [(request.arrival_s, 1.0, size), (left_s, 0.0, -size)]
    changes.sort(key=lambda change: change[:2])
    waiting = np.cumsum([size for _, _, size in changes], axis=0)
    most = waiting.max(axis=0)
    return float(most[0]), float(most[1]), float(most[2])


def recovery(made: Scene, outcomes: Sequence[RequestOutcome]) -> tuple[float, float]:
    """Seconds from the end of the overload until waits are normal again, and what the work left would take to drain.

    Normal: the P95 wait of what has turns, over half a minute of arrivals, is at most 1.5 times that of the last five
    minutes. Left is all work that was accepted and not begun, and it drains with what the load leaves free.
    """
    to_s, end_s = PHASES[0][0] + PHASES[1][0], sum(span_s for span_s, _ in PHASES)
    accepted = [
        (outcome.request.arrival_s, outcome.dispatched_s, float(work_s), outcome.lane)
        for outcome, work_s in zip(outcomes, made.work_s, strict=True)
        if outcome.error is None and outcome.dispatched_s is not None
    ]
    left_s = sum(work_s for at_s, went_s, work_s, _ in accepted if at_s < to_s <= went_s)
    drain_s = left_s / (made.capacity * (1.0 - PHASES[2][1]))
    waits = [(at_s, went_s - at_s) for at_s, went_s, _, lane in accepted if lane is not Lane.BACKGROUND]

    def p95_s(from_s: float, until_s: float) -> float:
        return float(np.percentile([wait_s for at_s, wait_s in waits if from_s <= at_s < until_s] or [0.0], 95))

    normal_s = NORMAL_FACTOR * max(0.1, p95_s(end_s - NORMAL_SPAN_S, end_s))
    windows_s = np.arange(to_s, end_s - WINDOW_S, WINDOW_STEP_S)
    normal_again = (at_s for at_s in windows_s if p95_s(at_s, at_s + WINDOW_S) <= normal_s)
    return float(next(normal_again, end_s)) - to_s, drain_s
