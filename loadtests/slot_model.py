"""The slot model: replicas without an engine, for what a policy does to waiting alone.

`num_slots` calls run side by side on one replica, each for `prefill_s · prompt + decode_s · output` seconds, whatever
else runs. Arrivals are a trace's own, stretched to a stated utilisation. Predictions are the true output length times
lognormal noise. The order in which requests go is `DispatchCore`'s, as in the gateway.
"""

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from policies.config import PolicySpec, build_policy
from policies.dispatch import DispatchCore
from policies.types import Call, Lane, Outcome, RequestLike, Sample
from policies.verdict import Admitted

from .traces import Trace
from .workload import rng_for

NUM_SLOTS = 32
PREFILL_S = {"mooncake": 2e-4}
"""Seconds of a slot that a prompt token takes, by trace format; others: 1e-4."""
DECODE_S = 0.025


@dataclass(frozen=True, slots=True)
class SlotRequest:
    """A request of the model; `predicted_output_tokens` is what the policy is told of its length."""

    request_id: str
    arrival_s: float
    prompt_tokens: int
    output_tokens: int
    predicted_output_tokens: int
    tenant: str = ""
    declared_lane: Lane | None = None
    max_output_tokens: int | None = None
    model: str = "m"
    adapter: str | None = None
    feature: str | None = None
    route: str = "chat"
    num_choices: int = 1
    can_be_sliced: bool = False
    streams: bool = True
    deadline_s: float | None = None
    body_bytes: int = 0
    first_token_by_s: float | None = None


@dataclass(frozen=True, slots=True)
class _Replica:
    max_in_flight_requests: int | None
    replica_id: str = "slots"
    models: frozenset[str] = frozenset({"m"})
    features: frozenset[str] = frozenset()
    is_available: bool = True
    max_in_flight_tokens: int | None = 1 << 40
    kv_capacity_tokens: int | None = None
    max_prefill_tokens: int | None = 1 << 40
    slice_block_tokens: int | None = None


class _Told:
    """Predicts what the request says."""

    def predict(self, request: RequestLike) -> int:
        assert isinstance(request, SlotRequest)
        return request.predicted_output_tokens

    def learn(self, request: RequestLike, output_tokens: int) -> None:
        """Nothing."""


@dataclass(frozen=True, slots=True)
class Served:
    """What happened to each request, in the order of the workload; arrays of shape [num_requests], seconds."""

    service_s: NDArray[np.float64]
    wait_s: NDArray[np.float64]

    @property
    def response_s(self) -> NDArray[np.float64]:
        return self.wait_s + self.service_s


def workload(trace: Trace, utilisation: float, *, noise_sigma: float = 0.0, seed: int = 0) -> list[SlotRequest]:
    """A trace's requests, its arrivals stretched so that `NUM_SLOTS` slots are busy for this share of the time.

    `noise_sigma`: of the lognormal factor on predictions; 0: they are exact. Raises ValueError without arrivals.
    """
    if trace.arrival_s is None:
        raise ValueError(f"a trace of format {trace.format} has no arrivals")
    service_s = _service_s(trace)
    stretch = float(service_s.sum()) / (utilisation * NUM_SLOTS * float(trace.arrival_s[-1]))
    noise = rng_for("slot-model", seed).lognormal(0.0, noise_sigma, len(trace)) if noise_sigma else np.ones(len(trace))
    predicted = np.maximum(1, np.rint(trace.output_tokens * noise)).astype(np.int64)
    return [
        SlotRequest(
            f"q{index}",
            float(trace.arrival_s[index]) * stretch,
            int(trace.prompt_tokens[index]),
            int(trace.output_tokens[index]),
            int(predicted[index]),
            "" if trace.tenant is None else f"t{trace.tenant[index]}",
        )
        for index in range(len(trace))
    ]


def _service_s(trace: Trace) -> NDArray[np.float64]:
    prefill_s = PREFILL_S.get(trace.format, 1e-4)
    return np.asarray(prefill_s * trace.prompt_tokens + DECODE_S * trace.output_tokens)


def serve(requests: Sequence[SlotRequest], spec: PolicySpec, *, prefill_s: float = 1e-4) -> Served:
    """Every request to its end under this policy; requests come in order of arrival.

    `prefill_s`: seconds of a slot that a prompt token takes. Raises RuntimeError when one is turned away.
    """
    told = {"cost": {"prefill_s_per_token": prefill_s, "decode_s_per_token": DECODE_S}}
    policy = build_policy(replace(spec, options={**spec.options, **told}))
    core = DispatchCore(replace(policy, output=_Told()))  # type: ignore[arg-type]
    core.replica_changed(_Replica(NUM_SLOTS), 0.0)
    core.capacity_granted("slots", None, 0.0)
    place = {request.request_id: index for index, request in enumerate(requests)}
    service_s = np.array([prefill_s * one.prompt_tokens + DECODE_S * one.output_tokens for one in requests])
    wait_s = np.zeros(len(requests))
    ends: list[tuple[float, int, SlotRequest]] = []
    arrived = 0
    while arrived < len(requests) or ends:
        if arrived < len(requests) and (not ends or requests[arrived].arrival_s <= ends[0][0]):
            request = requests[arrived]
            now_s = request.arrival_s
            arrived += 1
            if not isinstance(core.offer(request, now_s), Admitted):
                raise RuntimeError(f"request {request.request_id} was turned away")
        else:
            now_s, call_id, request = heapq.heappop(ends)
            sample = Sample(prompt_tokens=request.prompt_tokens, output_tokens=request.output_tokens)
            core.call_ended(call_id, Outcome.SUCCESS, sample, now_s)
        for effect in core.poll(now_s):
            if isinstance(effect, Call):
                index = place[effect.request.request_id]
                wait_s[index] = now_s - effect.request.arrival_s
                core.first_token(effect.call_id, now_s)
                heapq.heappush(ends, (now_s + float(service_s[index]), effect.call_id, requests[index]))
    return Served(service_s, wait_s)
