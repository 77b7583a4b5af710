"""What the default policy does to waiting in the slot model: short, long and declared requests, against FCFS.

`short` are the 75 % of a trace's requests with the least work, `long` the 5 % with the most. Predictions are the true
lengths times lognormal noise of σ = 0.8, and each figure is the median of five seeds of it. Tenants are left out, since
turns among them are another matter.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from policies.config import PolicySpec
from policies.types import Lane

from ..compare import OnStep
from ..slot_model import DECODE_S, PREFILL_S, Served, SlotRequest, serve, workload
from ..traces import load_trace
from ..traces.adjust import jittered
from ..workload import rng_for
from .bar import Bar, at_least, at_most, skipped

TRACES = {
    "azure-conversation": "azure2023_conv.csv.gz",
    "azure-code": "azure2023_code.csv.gz",
    "reasoning": "servegen_deepseek_r1_sampled.csv.gz",
    "servegen-large": "servegen_mlarge_sampled.csv.gz",
    "mooncake-conversation": "mooncake_conversation.jsonl.gz",
    "mooncake-synthetic": "mooncake_synthetic.jsonl.gz",
    "arena": "vtc_arena27.csv.gz",
}
JITTER_S = {"mooncake-conversation": 3.0}
"""Of traces whose stamps are rounded."""
LOADS = (0.85, 0.92)
MIN_GAIN = {("azure-conversation", 0.85): 1.4, ("reasoning", 0.85): 3.0}
"""Everywhere else: the short wait no longer than in order of arrival."""
MAX_HARM = {0.85: 1.2, 0.92: 1.3}
"""The P99 response of the long, against order of arrival."""
DECLARED_LIMIT = 1.2
SIGMA, SEEDS = 0.8, (1, 2, 3, 4, 5)
_QUEUE = {"max_requests": 10**9, "max_tokens": 10**15}
_FOR_EVER = {"max_wait_s": 1e12}

DEFAULT = PolicySpec(flows="one-flow", options={"queue": _QUEUE})
FCFS = PolicySpec(ordering="fcfs", lanes="single", flows="one-flow", options={"queue": _QUEUE, "wait": _FOR_EVER})
SJF = replace(FCFS, ordering="aged-sjf", options={**FCFS.options, "aged-sjf": {"ageing": 1e-9}})


@dataclass(frozen=True, slots=True)
class Waits:
    """P99 in seconds: the wait of the short, the response of the long, the wait of those that would be declared."""

    short_s: float
    long_s: float
    declared_s: float


def slot_bars(traces: Path | None, on_step: OnStep, report: Callable[[Bar], None]) -> None:
    """A line about the short, the long and the declared requests of each trace at each load."""
    for trace in TRACES:
        for load in LOADS:
            names = [f"slots-{trace}-{load}-{what}".replace(".", "-") for what in ("short", "long", "declared")]
            if traces is None or not (traces / TRACES[trace]).exists():
                for name in names:
                    report(skipped(name, f"no {TRACES[trace]}; name its folder with --traces"))
                continue
            advance = on_step(f"waiting at {load}, {trace}", 2 + 2 * len(SEEDS))
            for bar in _bars(traces, trace, load, names, advance):
                report(bar)


def _bars(
    traces: Path, trace: str, load: float, names: Sequence[str], advance: Callable[[object], None]
) -> Sequence[Bar]:
    exact, prefill_s = requests_of(traces, trace, load)
    declared = declared_of(exact, prefill_s)

    def waits(requests: Sequence[SlotRequest], spec: PolicySpec) -> Waits:
        served = serve(requests, spec, prefill_s=prefill_s)
        advance(None)
        return _waits(served, declared)

    fcfs, oracle = waits(exact, FCFS), waits(exact, SJF)
    found, guarded = [], []
    for seed in SEEDS:
        noisy, _ = requests_of(traces, trace, load, seed=seed)
        found.append(waits(noisy, DEFAULT))
        marked = [
            replace(one, declared_lane=Lane.INTERACTIVE) if is_one else one
            for one, is_one in zip(noisy, declared, strict=True)
        ]
        guarded.append(waits(marked, DEFAULT))
    gain = float(np.median([fcfs.short_s / each.short_s for each in found]))
    harm = float(np.median([each.long_s / fcfs.long_s for each in found]))
    of_oracle = float(np.median([each.declared_s / oracle.declared_s for each in guarded]))
    bound = f"exact SJF {fcfs.short_s / oracle.short_s:.2f}, long {oracle.long_s / fcfs.long_s:.2f}"
    return (
        at_least(names[0], gain, MIN_GAIN.get((trace, load), 1.0), f"FCFS {fcfs.short_s:.1f} s; {bound}"),
        at_most(names[1], harm, MAX_HARM[load], f"FCFS {fcfs.long_s:.1f} s; {bound}"),
        at_most(names[2], of_oracle, DECLARED_LIMIT, f"exact SJF {oracle.declared_s:.1f} s"),
    )


def requests_of(traces: Path, trace: str, load: float, *, seed: int | None = None) -> tuple[list[SlotRequest], float]:
    """Without tenants, and seconds of a slot that a prompt token takes. `seed`: of the noise; None: exact."""
    loaded = load_trace(traces / TRACES[trace])
    if trace in JITTER_S:
        loaded = jittered(loaded, JITTER_S[trace], rng_for("slot-bars", "jitter"))
    requests = workload(loaded, load, noise_sigma=0.0 if seed is None else SIGMA, seed=seed or 0)
    return [replace(one, tenant="") for one in requests], PREFILL_S.get(loaded.format, 1e-4)


def declared_of(requests: Sequence[SlotRequest], prefill_s: float) -> NDArray[np.bool_]:
    """Half of the short, drawn by chance: those whose callers say so."""
    work_s = np.array([one.output_tokens * DECODE_S + prefill_s * one.prompt_tokens for one in requests])
    is_drawn = rng_for("slot-bars", "declared").random(len(requests)) < 0.5
    return np.asarray((work_s <= np.quantile(work_s, 0.75)) & is_drawn)


def _waits(served: Served, declared: NDArray[np.bool_]) -> Waits:
    is_short = served.service_s <= np.quantile(served.service_s, 0.75)
    is_long = served.service_s >= np.quantile(served.service_s, 0.95)
    return Waits(
        float(np.percentile(served.wait_s[is_short], 99)),
        float(np.percentile(served.response_s[is_long], 99)),
        float(np.percentile(served.wait_s[declared], 99)),
    )
