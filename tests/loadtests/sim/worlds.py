"""Small random worlds for the simulator's tests."""

import random

from loadtests.sim.model import ReplicaModel
from loadtests.sim.request import SimRequest
from loadtests.sim.simulation import Outage, Setup
from loadtests.sim.step_time import StepTime
from policies.batching import StepSpec
from policies.config import PolicySpec, build_policy
from policies.policy import Policy
from policies.types import Lane

SPEED = StepTime(0.01, 1e-4, 2e-4, 1e-6, 1e-9, 5e-5)


def policy(**spec: object) -> Policy:
    """A fresh policy."""
    return build_policy(PolicySpec(**spec))  # type: ignore[arg-type]


def pass_through() -> Policy:
    """Everything is sent on at once, in order of arrival."""
    caps = {"in_flight_tokens": 10**9, "prefill_tokens": 10**9}
    return policy(ordering="fcfs", lanes="single", routing="round-robin", options={"fixed": caps})


def model(rng: random.Random, *, tight: bool) -> ReplicaModel:
    """A small engine; a tight one holds two or three requests, and preempts."""
    return ReplicaModel(
        SPEED,
        num_blocks=rng.randint(60, 90) if tight else 2000,
        block_size=8,
        chunk_tokens=32,
        max_num_batched_tokens=rng.choice([40, 256]),
        max_num_seqs=rng.choice([3, 16]),
        enable_prefix_caching=rng.random() < 0.7,
    )


def requests(rng: random.Random, count: int, *, rate_per_s: float) -> list[SimRequest]:
    """Short and long ones; some begin alike."""
    now_s, made = 0.0, []
    for index in range(count):
        now_s += rng.expovariate(rate_per_s)
        prompt = rng.randint(1, 60) if rng.random() < 0.7 else rng.randint(100, 300)
        num_shared = rng.randint(0, prompt // 32)
        family = rng.randrange(3)
        chunks = [1000 * family + place for place in range(num_shared)]
        chunks += [100_000 + 100 * index + place for place in range(prompt // 32 - num_shared)]
        made.append(
            SimRequest(
                index,
                f"q{index}",
                now_s,
                prompt,
                rng.randint(1, 90),
                tenant=rng.choice("ab"),
                declared_lane=rng.choice([None, None, Lane.INTERACTIVE, Lane.BACKGROUND]),
                streams=rng.random() < 0.8,
                priority=rng.randint(-1, 1),
                chunk_ids=tuple(chunks),
            )
        )
    return made


def setup(rng: random.Random, *, is_stepwise: bool, tight: bool) -> Setup:
    """Replicas, gateways, delays, perhaps an outage."""
    num_replicas = rng.randint(1, 3)
    engine = model(rng, tight=tight)
    from_s = rng.uniform(0.0, 3.0)
    outage = Outage(rng.randrange(num_replicas), from_s, from_s + rng.uniform(0.1, 2.0))
    return Setup(
        engine,
        num_replicas=num_replicas,
        num_gateways=rng.randint(1, 3),
        network_s=rng.choice([0.0, 0.003]),
        probe_s=rng.choice([0.0, 0.5]),
        step=StepSpec(order=rng.choice(["fcfs", "priority"])),
        max_in_flight_tokens=rng.choice([None, 600]),
        outages=(outage,) if rng.random() < 0.4 else (),
        is_stepwise=is_stepwise,
    )
