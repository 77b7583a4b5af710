"""How fast the simulator is: 100 engines and 100,000 requests of the conversation mix, and the cost at other sizes."""

import time
from collections.abc import Callable
from pathlib import Path

from policies.config import PolicySpec, build_policy

from ..compare import OnStep
from ..sim.contenders import Contender
from ..sim.models import load_model
from ..sim.simulation import Setup
from ..sim.study import Study, capacity_work_per_s, parted, prepared, typical_costs
from ..traces import load_trace
from ..traces.adjust import superposed
from ..workload import rng_for
from .bar import Bar, at_most, skipped

FILE = "azure2023_conv.csv.gz"
ENGINE = "rtxpro6000-llama3.1-8b"
LOAD = 0.7
NUM_REQUESTS, NUM_REPLICAS = 100_000, 100
LIMIT_S = 300.0
FLAT_REQUESTS, FLAT_REPLICAS = 20_000, (10, 1000)
FLAT_LIMIT_RATIO = 1.5


def sim_speed_bars(traces: Path | None, on_step: OnStep, report: Callable[[Bar], None]) -> None:
    """Processor time of one core, so that what other processes take doesn't count."""
    names = ("simulator-100-replicas-100000-requests-s", "simulator-cost-per-request-1000-over-10-replicas")
    if traces is None or not (traces / FILE).exists():
        for name in names:
            report(skipped(name, f"no {FILE}; name its folder with --traces"))
        return
    took_s = _run(traces, NUM_REQUESTS, NUM_REPLICAS, on_step)
    report(at_most(names[0], took_s, LIMIT_S, f"{took_s / NUM_REQUESTS * 1e3:.2f} ms a request"))
    costs_s = [_run(traces, FLAT_REQUESTS, count, on_step) / FLAT_REQUESTS for count in FLAT_REPLICAS]
    shown = ", ".join(f"{cost_s * 1e3:.2f} ms" for cost_s in costs_s)
    report(at_most(names[1], costs_s[1] / costs_s[0], FLAT_LIMIT_RATIO, f"{shown} a request"))


def _run(traces: Path, num_requests: int, num_replicas: int, on_step: OnStep) -> float:
    model = load_model(ENGINE)
    trace = prepared(load_trace(traces / FILE), model)
    costs = typical_costs(model, trace)
    mixed = superposed([(trace, 1.0)], costs, num_first=num_requests, rng=rng_for("sim-speed"))
    setup = Setup(
        model,
        num_replicas=num_replicas,
        network_s=2e-4,
        max_in_flight_tokens=model.capacity_tokens,
        max_in_flight_requests=model.max_num_seqs,
    )
    contender = Contender("default", lambda: build_policy(PolicySpec(options={"queue": {"max_requests": 10**9}})))
    study = Study(parted(mixed, ["all"]), (contender,), setup, costs, capacity_work_per_s(model, trace, costs), seed=1)
    advance = on_step(f"simulating {num_replicas} engines", num_requests)
    began_s = time.process_time()
    result = study.run(contender, LOAD, on_end=advance)
    took_s = time.process_time() - began_s
    if any(outcome.error for outcome in result.outcomes):
        raise RuntimeError("a simulated request failed")
    return took_s
