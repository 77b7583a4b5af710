"""Tenants in the slot model: what one that floods does to the others, and the trace of the paper that vtc is from."""

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from policies.config import PolicySpec

from ..compare import OnStep
from ..slot_model import DECODE_S, NUM_SLOTS, SlotRequest, serve, workload
from ..traces import Trace, load_trace
from ..traces.adjust import usable
from ..workload import rng_for
from .bar import Bar, median_of_rounds, skipped

CONVERSATIONS, ARENA = "azure2023_conv.csv.gz", "vtc_arena27.csv.gz"
SEEDS = (1, 2, 3, 4, 5)
NOISE_SIGMA = 0.8
_PREFILL_S = 1e-4
_UNBOUNDED = {"queue": {"max_requests": 10**9, "max_tokens": 10**12}}
DEFAULT = PolicySpec(options=_UNBOUNDED)
FCFS = PolicySpec(ordering="fcfs", flows="one-flow", lanes="single", options=_UNBOUNDED)

NUM_TENANTS, FLOOD_FACTOR, LOAD = 8, 10.0, 0.8
NUM_REQUESTS = 6000
FLOOD_LIMIT = 1.1
ARENA_LOAD = 1.8
"""At which FCFS's waits are about those that the authors measured on a GPU: median 39 s, P90 113 s, P99 137 s."""
ARENA_P50_LIMIT, ARENA_P99_LIMIT = 0.25, 1.1
NAMES = ("flood-others-p99-of-no-flood", "arena-vtc-p50-of-fcfs", "arena-vtc-p99-of-fcfs")


def fairness_bars(traces: Path | None, on_step: OnStep, report: Callable[[Bar], None]) -> None:
    """The median of five seeds of noise each, with the default policy."""
    needed = {NAMES[0]: CONVERSATIONS, NAMES[1]: ARENA, NAMES[2]: ARENA}
    if traces is None or not all((traces / file).exists() for file in needed.values()):
        for name, file in needed.items():
            report(skipped(name, f"no {file}; name its folder with --traces"))
        return
    conversations = usable(load_trace(traces / CONVERSATIONS))
    advance = on_step("one tenant floods, seeds", len(SEEDS))
    ratios = []
    for seed in SEEDS:
        without, flooded = (others_p99_s(flood(conversations, factor, seed)) for factor in (1.0, FLOOD_FACTOR))
        ratios.append(flooded / without)
        advance(None)
    report(median_of_rounds(NAMES[0], "<=", ratios, FLOOD_LIMIT))
    _arena_bars(load_trace(traces / ARENA), on_step, report)


def flood(lengths: Trace, factor: float, seed: int) -> list[SlotRequest]:
    """Tenants that each send Poisson arrivals, together 0.8 of what the slots can do; lengths are the trace's.

    The first sends `factor` times its part, and the others the very same whatever it does.
    """
    service_s = _PREFILL_S * lengths.prompt_tokens + DECODE_S * lengths.output_tokens
    rate_per_s = LOAD * NUM_SLOTS / float(service_s.mean()) / NUM_TENANTS
    span_s = NUM_REQUESTS / (rate_per_s * NUM_TENANTS)
    sent: list[tuple[float, int, int, int, int]] = []
    for tenant in range(NUM_TENANTS):
        rng = rng_for("flood", seed, tenant)
        count = rng.poisson(rate_per_s * span_s * (factor if tenant == 0 else 1.0))
        arrival_s = rng.uniform(0.0, span_s, count)
        places = rng.integers(0, len(lengths), count)
        outputs = lengths.output_tokens[places]
        predicted = np.maximum(1, np.rint(outputs * rng.lognormal(0.0, NOISE_SIGMA, count)))
        columns = (arrival_s, lengths.prompt_tokens[places], outputs, predicted)
        sent += [(float(at_s), int(p), int(o), int(told), tenant) for at_s, p, o, told in zip(*columns, strict=True)]
    return [
        SlotRequest(f"q{index}", at_s, prompt, output, told, f"t{tenant}")
        for index, (at_s, prompt, output, told, tenant) in enumerate(sorted(sent))
    ]


def others_p99_s(requests: Sequence[SlotRequest], spec: PolicySpec = DEFAULT) -> float:
    """From arrival to the end of the answer, of all tenants but the first."""
    response_s = serve(requests, spec, prefill_s=_PREFILL_S).response_s
    return float(np.percentile(response_s[[request.tenant != "t0" for request in requests]], 99))


def _arena_bars(arena: Trace, on_step: OnStep, report: Callable[[Bar], None]) -> None:
    advance = on_step("27 tenants of the Arena trace, seeds", len(SEEDS))
    baseline = _quantiles(serve(workload(arena, ARENA_LOAD), FCFS, prefill_s=_PREFILL_S).wait_s)
    ratios = []
    for seed in SEEDS:
        requests = workload(arena, ARENA_LOAD, noise_sigma=NOISE_SIGMA, seed=seed)
        ratios.append(_quantiles(serve(requests, DEFAULT, prefill_s=_PREFILL_S).wait_s) / baseline)
        advance(None)
    report(median_of_rounds(NAMES[1], "<=", [float(ratio[0]) for ratio in ratios], ARENA_P50_LIMIT))
    report(median_of_rounds(NAMES[2], "<=", [float(ratio[1]) for ratio in ratios], ARENA_P99_LIMIT))


def _quantiles(wait_s: NDArray[np.float64]) -> NDArray[np.float64]:
    found: NDArray[np.float64] = np.quantile(wait_s, (0.5, 0.99))
    return found
