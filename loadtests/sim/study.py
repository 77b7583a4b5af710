"""Policies × loads on one workload, in the simulator: the same requests at the same instants for each."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np

from ..answer import Answer
from ..calibrate import work_done
from ..stats import percentile
from ..traces import Trace
from ..traces.adjust import Mixed, scaled, taken, usable, work_s
from ..workload import Costs, rng_for
from .contenders import Contender
from .fit import pass_through
from .gateway import RequestOutcome
from .model import ReplicaModel
from .request import SimRequest
from .simulation import Result, Setup, simulate

LEVELS = (50, 90, 95, 99)
SIZES = ("short", "middle", "long")
_SIZE_CUTS = (0.75, 0.95)
_TYPICAL_BATCH = 32
_SATURATION_REQUESTS = 600
_METRICS: Mapping[str, Callable[[Answer], float | None]] = {
    "ttft_s": lambda answer: answer.ttft_s,
    "tpot_s": lambda answer: answer.tpot_s,
    "e2e_s": lambda answer: answer.e2e_s,
}


@dataclass(frozen=True, slots=True)
class Workload:
    """Requests without a rate: `groups[i]` is what request i is reported under."""

    trace: Trace
    groups: tuple[str, ...]


def typical_costs(model: ReplicaModel, trace: Trace) -> Costs:
    """Seconds of the replica that a token takes in a step of 32 sequences with the trace's mean context."""
    time = model.step_time
    context = float(trace.prompt_tokens.mean() + trace.output_tokens.mean() / 2.0)
    prompt_s = time.token_s + time.prefill_token_s + time.base_s / model.max_num_batched_tokens
    output_s = time.base_s / _TYPICAL_BATCH + time.token_s + time.sequence_s + time.context_s * context
    return Costs(prompt_s, output_s)


def sized(trace: Trace, costs: Costs) -> Workload:
    """By true work: `short` the 75 % smallest, `long` the 5 % largest, `middle` the others."""
    work = work_s(trace, costs)
    cuts = np.quantile(work, _SIZE_CUTS)
    return Workload(trace, tuple(SIZES[int(place)] for place in np.searchsorted(cuts, work, side="left")))


def parted(mixed: Mixed, names: Sequence[str]) -> Workload:
    """By the trace that a request is from."""
    return Workload(mixed.trace, tuple(names[int(place)] for place in mixed.part))


def capacity_work_per_s(model: ReplicaModel, trace: Trace, costs: Costs) -> float:
    """What one replica gets done when it never runs out of requests: work seconds a second, its middle part counted."""
    count = min(len(trace), _SATURATION_REQUESTS)
    requests = make_requests(Workload(replace(taken(trace, np.arange(count)), arrival_s=None), ("all",) * count))
    result = simulate(requests, pass_through, Setup(model))
    answers = result.answers()
    ends_s = sorted(answer.end_s or 0.0 for answer in answers)
    from_s, to_s = 0.1 * ends_s[count // 2], ends_s[count // 2]
    return work_done(answers, costs, from_s, to_s, count).work_per_s


def make_requests(workload: Workload) -> list[SimRequest]:
    """As they are; those of a trace without arrivals all come at once."""
    trace = workload.trace
    return [
        SimRequest(
            index=index,
            request_id=f"q{index}",
            arrival_s=0.0 if trace.arrival_s is None else float(trace.arrival_s[index]),
            prompt_tokens=int(trace.prompt_tokens[index]),
            output_tokens=int(trace.output_tokens[index]),
            group=workload.groups[index],
            tenant="default" if trace.tenant is None else f"tenant-{trace.tenant[index]}",
            chunk_ids=() if trace.block_ids is None else trace.block_ids[index],
        )
        for index in range(len(trace))
    ]


@dataclass(frozen=True, slots=True)
class Study:
    """What `run` needs beside the loads."""

    workload: Workload
    contenders: tuple[Contender, ...]
    setup: Setup
    costs: Costs
    capacity_work_per_s: float
    """Of one replica."""
    seed: int

    def at_load(self, load: float) -> Workload:
        """The workload with time stretched to this share of all replicas' capacity."""
        per_s = load * self.capacity_work_per_s * self.setup.num_replicas
        trace = scaled(self.workload.trace, self.costs, work_per_s=per_s, rng=rng_for(self.seed, "arrivals"))
        return Workload(trace, self.workload.groups)

    def run(
        self, contender: Contender, load: float, *, on_end: Callable[[RequestOutcome], None] | None = None
    ) -> Result:
        """One policy at one load."""
        trace = self.workload.trace
        total = int(trace.prompt_tokens.sum() + trace.output_tokens.sum())
        return simulate(
            make_requests(self.at_load(load)),
            contender.make_policy,
            contender.on(self.setup, total),
            make_composer=contender.make_composer,
            on_end=on_end,
        )


def figures(result: Result) -> dict[str, Any]:
    """Percentiles by group, counts, and what the replicas did, as plain values."""
    answers = result.answers()
    groups = list(dict.fromkeys(answer.lane for answer in answers))
    known = [group for group in SIZES if group in groups] + [group for group in groups if group not in SIZES]
    return {
        "num_requests": len(answers),
        "num_failed": sum(not answer.is_ok for answer in answers),
        "span_s": result.span_s,
        "utilisation_ratio": result.utilisation_ratio,
        "num_steps": result.num_steps,
        "num_preempted": result.num_preempted,
        "num_policy_errors": result.num_policy_errors,
        "cached_prompt_ratio": _cached_ratio(result),
        "groups": {group: _group([answer for answer in answers if answer.lane == group]) for group in known},
    }


def timeline(result: Result, group: str, *, num_bins: int = 40) -> list[dict[str, float | None]]:
    """By time of arrival: P50 and P90 of a group's time to first token in each of `num_bins` spans."""
    points = sorted(
        (answer.sent_s, answer.ttft_s)
        for answer in result.answers()
        if answer.lane == group and answer.ttft_s is not None
    )
    if not points:
        return []
    edges = np.linspace(0.0, points[-1][0] + 1e-9, num_bins + 1)
    bins: list[dict[str, float | None]] = []
    for from_s, to_s in pairwise(edges.tolist()):
        waits = [wait_s for at_s, wait_s in points if from_s <= at_s < to_s]
        bins.append({"from_s": from_s, "to_s": to_s, "p50_s": percentile(waits, 50), "p90_s": percentile(waits, 90)})
    return bins


def first_token_times(result: Result, group: str) -> list[float]:
    """Sorted, of requests that were answered."""
    return sorted(answer.ttft_s for answer in result.answers() if answer.lane == group and answer.ttft_s is not None)


def prepared(trace: Trace, model: ReplicaModel) -> Trace:
    """Without what the engine could never hold or compute."""
    return usable(trace, max_tokens=model.capacity_tokens - model.block_size)


def _cached_ratio(result: Result) -> float:
    served = [outcome for outcome in result.outcomes if outcome.error is None]
    prompt_tokens = sum(outcome.request.prompt_tokens for outcome in served)
    return sum(outcome.cached_tokens for outcome in served) / prompt_tokens if prompt_tokens else 0.0


def _group(answers: Sequence[Answer]) -> dict[str, Any]:
    out: dict[str, Any] = {"num_requests": len(answers), "num_failed": sum(not answer.is_ok for answer in answers)}
    for name, read in _METRICS.items():
        values = [value for answer in answers if (value := read(answer)) is not None]
        out[name] = {str(level): percentile(values, level) for level in LEVELS}
    return out
