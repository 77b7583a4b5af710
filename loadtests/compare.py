"""The same plan, straight to an engine and through a gateway in front of the same engine."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from .calibrate import Capacity, measure_capacity, measure_costs
from .client import LoadClient
from .layers import LayerCheck, check_layers, example_that_waited, read_records
from .machine import current_commit, describe_machine
from .prompts import PromptMaker
from .run import Side, run_plan
from .scenario import Scenario
from .summary import compare_sides, summarise
from .workload import Costs, Plan, make_plan

OnStep = Callable[[str, int | None], Callable[[object], None]]
"""Called at the start of a step with its name and number of requests (None: unknown); returns what hears each end."""


@dataclass(frozen=True, slots=True)
class Measured:
    """What this machine can do, measured in this run."""

    costs: Costs
    capacity: Capacity


@dataclass(frozen=True, slots=True)
class Comparison:
    """Both sides of one plan, with what is needed to report them."""

    scenario: Scenario
    seed: int
    load: float
    measured: Measured
    plan: Plan
    direct: Side
    gateway: Side
    layers: LayerCheck
    example: dict[str, Any]

    def to_dict(self) -> dict[str, Any]:
        """Everything a report or a later reader needs, as plain values."""
        sides = (self.direct, self.gateway)
        return {
            "scenario": self.scenario.name,
            "seed": self.seed,
            "commit": current_commit(),
            "machine": describe_machine(),
            "load": self.load,
            "costs": {
                "prompt_token_s": self.measured.costs.prompt_token_s,
                "output_token_s": self.measured.costs.output_token_s,
            },
            "capacity": self.measured.capacity.to_dict(),
            "plan": describe_plan(self.plan, self.scenario, self.measured.costs),
            "sides": {side.name: summarise(side.answers, self.scenario.objectives) for side in sides},
            "gateway_over_direct": compare_sides(self.direct.answers, self.gateway.answers, self.scenario),
            "layers": self.layers.to_dict(),
            "example": self.example,
            "requests": {side.name: [answer.to_dict(side.origin_s) for answer in side.answers] for side in sides},
        }


async def measure(
    client: LoadClient,
    maker: PromptMaker,
    scenario: Scenario,
    key: str,
    on_step: OnStep,
    *,
    capacity_s: float = 30.0,
) -> Measured:
    """Costs, then capacity for the mix over `capacity_s`, of the server behind `client`."""
    on_step("measuring what a token costs", None)
    costs = await measure_costs(client, maker, key)
    on_step("measuring capacity for this mix", None)
    return Measured(costs, await measure_capacity(client, maker, scenario, costs, key=key, duration_s=capacity_s))


async def compare(
    direct: LoadClient,
    gateway: LoadClient,
    maker: PromptMaker,
    scenario: Scenario,
    measured: Measured,
    *,
    seed: int,
    load: float,
    on_step: OnStep,
    num_first_lane: int | None = None,
    gateway_first: bool = False,
) -> Comparison:
    """Runs the seeded plan on both sides, one after the other, and reads the gateway's timing records."""
    plan = make_plan(
        scenario,
        measured.costs,
        capacity_work_per_s=measured.capacity.work_per_s,
        seed=seed,
        load=load,
        num_first_lane=num_first_lane,
    )
    sides: dict[str, Side] = {}
    order = [("direct", direct), ("gateway", gateway)]
    for name, client in reversed(order) if gateway_first else order:
        title = "straight to the engine" if name == "direct" else "through the gateway"
        on_end = on_step(f"{title}: {len(plan.requests)} requests in {plan.duration_s:.0f} s", len(plan.requests))
        sides[name] = await run_plan(name, client, maker, plan, key=f"{seed}/{name}", on_end=on_end)
    answers = sides["gateway"].answers
    records = await read_records(gateway, answers)
    return Comparison(
        scenario=scenario,
        seed=seed,
        load=load,
        measured=measured,
        plan=plan,
        direct=sides["direct"],
        gateway=sides["gateway"],
        layers=check_layers(answers, records),
        example=example_that_waited(answers, records, scenario.lanes[0].name),
    )


def describe_plan(plan: Plan, scenario: Scenario, costs: Costs) -> dict[str, Any]:
    """Size of a plan, and each lane's requests, mean lengths and share of the work."""
    lanes = {}
    for lane in scenario.lanes:
        requests = plan.lane(lane.name)
        work_s = sum(costs.work_s(request.prompt_tokens, request.output_tokens) for request in requests)
        lanes[lane.name] = {
            "num_requests": len(requests),
            "mean_prompt_tokens": sum(request.prompt_tokens for request in requests) / max(1, len(requests)),
            "max_prompt_tokens": max((request.prompt_tokens for request in requests), default=0),
            "mean_output_tokens": sum(request.output_tokens for request in requests) / max(1, len(requests)),
            "work_share": work_s / plan.work_s,
        }
    return {"duration_s": plan.duration_s, "work_s": plan.work_s, "lanes": lanes}
