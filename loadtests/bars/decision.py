"""How long one dispatch decision takes with many requests waiting."""

import time
from dataclasses import dataclass

import numpy as np

from policies.config import PolicySpec, build_policy
from policies.dispatch import DispatchCore
from policies.types import Call, Lane, Outcome, Sample
from policies.verdict import Admitted

from ..workload import rng_for
from .bar import Bar, at_most

NUM_WAITING = 10_000
NUM_DECISIONS = 2_000


@dataclass(frozen=True, slots=True)
class _Request:
    request_id: str
    arrival_s: float
    prompt_tokens: int
    max_output_tokens: int | None
    model: str = "m"
    adapter: str | None = None
    feature: str | None = None
    tenant: str = "t"
    route: str = "chat"
    declared_lane: Lane | None = None
    num_choices: int = 1
    can_be_sliced: bool = False
    streams: bool = True
    deadline_s: float | None = None
    body_bytes: int = 0
    first_token_by_s: float | None = None


@dataclass(frozen=True, slots=True)
class _Replica:
    replica_id: str = "r1"
    models: frozenset[str] = frozenset({"m"})
    features: frozenset[str] = frozenset()
    is_available: bool = True
    max_in_flight_tokens: int | None = 65_536
    kv_capacity_tokens: int | None = None
    max_prefill_tokens: int | None = None
    max_in_flight_requests: int | None = None
    slice_block_tokens: int | None = None


def decision_bar(*, num_tenants: int = 1) -> Bar:
    """P99 over 2,000 decisions of the default policy: a call ends, and `poll` says what starts, with a new request
    offered each time so that 10,000 keep waiting. Processor time: what other processes take does not count."""
    rng = rng_for("decision")
    core = DispatchCore(build_policy(PolicySpec(options={"queue": {"max_requests": 2 * NUM_WAITING}})))
    core.replica_changed(_Replica(), 0.0)
    core.capacity_granted("r1", None, 0.0)
    now_s = 0.0
    running: list[Call] = []

    def offer(index: int) -> None:
        prompt, output = int(rng.integers(16, 4096)), int(rng.integers(1, 1024))
        admitted = core.offer(_Request(f"q{index}", now_s, prompt, output, tenant=f"t{index % num_tenants}"), now_s)
        if not isinstance(admitted, Admitted):
            raise RuntimeError(f"the benchmark's request was turned away: {admitted}")

    for index in range(NUM_WAITING):
        offer(index)
    running += [effect for effect in core.poll(now_s) if isinstance(effect, Call)]
    durations_s = []
    for index in range(NUM_DECISIONS):
        offer(NUM_WAITING + index)
        now_s += 1e-4
        call = running.pop(int(rng.integers(len(running))))
        core.first_token(call.call_id, now_s)
        began_s = time.thread_time()
        core.call_ended(call.call_id, Outcome.SUCCESS, Sample(output_tokens=8), now_s)
        effects = core.poll(now_s)
        durations_s.append(time.thread_time() - began_s)
        running += [effect for effect in effects if isinstance(effect, Call)]
    return at_most(
        "dispatch-decision-p99-ms" if num_tenants == 1 else f"dispatch-decision-{num_tenants}-tenants-p99-ms",
        float(np.percentile(durations_s, 99)) * 1e3,
        1.0,
        f"{core.num_queued} waiting, median {np.median(durations_s) * 1e3:.3f} ms",
    )
