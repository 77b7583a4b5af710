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
from .bar import Bar, at_least, at_most, skipped

CONVERSATIONS, REASONING = "azure2023_conv.csv.gz", "servegen_deepseek_r1_sampled.csv.gz"
ENGINE = "rtxpro6000-llama3.1-8b"
SHARES = (0.3, 0.35, 0.35)
PHASES = ((120.0, 0.7), (600.0, 2.0), (600.0, 0.7))
"""Seconds and load, of capacity: before, overload, after."""
OBJECTIVE_TTFT_S, OBJECTIVE_TPOT_S = 5.0, 0.1
GOODPUT_LIMIT, RECOVERY_LIMIT = 0.95, 2.0
NUM_TENANTS = 5
BYTES_PER_TOKEN = 4
BOUNDS = {"max_requests": 10_000, "max_tokens": 50_000_000, "max_bytes": 268_435_456}
WINDOW_S = 10.0
NORMAL_FACTOR = 1.5
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
    """One simulation of 22 minutes."""
    if traces is None or not all((traces / file).exists() for file in (CONVERSATIONS, REASONING)):
        for name in NAMES:
            report(skipped(name, f"no {CONVERSATIONS} and {REASONING}; name their folder with --traces"))
        return
    made = scene(traces)
    spec = PolicySpec(shedding="ladder", options={"queue": BOUNDS})
    for bar in judged(made, run(made, spec, on_step)):
        report(bar)


def scene(traces: Path, *, seed: int = 1) -> Scene:
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
            group="declared" if mixed.part[index] == 0 else "other",
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


def judged(made: Scene, outcomes: Sequence[RequestOutcome]) -> list[Bar]:
    """A bar each for goodput, what waited at most, and recovery."""
    from_s, to_s = PHASES[0][0], PHASES[0][0] + PHASES[1][0]
    declared = [
        outcome
        for outcome in outcomes
        if outcome.request.group == "declared" and from_s <= outcome.request.arrival_s < to_s
    ]
    goodput = sum(map(_is_good, declared)) / len(declared)
    others = [
        outcome
        for outcome in outcomes
        if outcome.request.group != "declared" and from_s <= outcome.request.arrival_s < to_s
    ]
    num_served = sum(outcome.error is None for outcome in others)
    note = (
        f"{len(declared)} requests, first token in {OBJECTIVE_TTFT_S:g} s and {OBJECTIVE_TPOT_S * 1e3:g} ms a token; "
        f"of {len(others)} others {num_served / len(others):.0%} served in the end, P95 first token of the declared "
        f"{_p95_ttft_s(declared):.2f} s"
    )
    peaks = _peaks(outcomes)
    recovery_s, drain_s = recovery(made, outcomes)
    return [
        at_least(NAMES[0], goodput, GOODPUT_LIMIT, note),
        *(
            at_most(name, peak / bound, 1.0, f"at most {peak:.0f} waited")
            for name, peak, bound in zip(NAMES[1:4], peaks, BOUNDS.values(), strict=True)
        ),
        at_most(
            NAMES[4],
            recovery_s / drain_s,
            RECOVERY_LIMIT,
            f"{recovery_s:.0f} s, and the work left took {drain_s:.0f} s to drain",
        ),
    ]


def _is_good(outcome: RequestOutcome) -> bool:
    if outcome.error is not None:
        return False
    token_s = outcome.token_s
    tpot_s = (token_s[-1] - token_s[0]) / (len(token_s) - 1) if len(token_s) > 1 else 0.0
    return token_s[0] - outcome.request.arrival_s <= OBJECTIVE_TTFT_S and tpot_s <= OBJECTIVE_TPOT_S


def _p95_ttft_s(outcomes: Sequence[RequestOutcome]) -> float:
    return float(np.percentile([one.token_s[0] - one.request.arrival_s for one in outcomes if one.error is None], 95))


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
    """Seconds from the end of the overload until waits are normal, and what the work left would take to drain.

    Normal: in this window of arrivals and all later ones, the P95 wait of what has turns is at most 1.5 times that of
    the time before. Left is all work that was accepted and not begun, and it drains with what the load leaves free.
    """
    to_s = PHASES[0][0] + PHASES[1][0]
    accepted = [
        (outcome, float(work_s))
        for outcome, work_s in zip(outcomes, made.work_s, strict=True)
        if outcome.error is None and outcome.dispatched_s is not None
    ]
    left_s = sum(
        work_s for outcome, work_s in accepted if outcome.request.arrival_s < to_s <= (outcome.dispatched_s or 0.0)
    )
    drain_s = left_s / (made.capacity * (1.0 - PHASES[2][1]))
    waits = [
        (outcome.request.arrival_s, (outcome.dispatched_s or 0.0) - outcome.request.arrival_s)
        for outcome, _ in accepted
        if outcome.lane is not Lane.BACKGROUND
    ]
    normal_s = NORMAL_FACTOR * max(
        0.1, float(np.percentile([wait_s for at_s, wait_s in waits if at_s < PHASES[0][0]], 95))
    )
    recovered_s = to_s
    for start_s in np.arange(to_s, sum(span_s for span_s, _ in PHASES), WINDOW_S):
        here = [wait_s for at_s, wait_s in waits if start_s <= at_s < start_s + WINDOW_S]
        if here and float(np.percentile(here, 95)) > normal_s:
            recovered_s = start_s + WINDOW_S
    return recovered_s - to_s, drain_s
