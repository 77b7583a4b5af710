"""Spec → policy."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from . import objectives as lane_objectives
from .builtin import (
    ADMISSIONS,
    BACKGROUND,
    COST,
    FLOWS,
    LANE_CUTS,
    ORDERINGS,
    OUTPUT,
    QUEUE,
    ROUTINGS,
    SHEDDINGS,
    SLICINGS,
    TURNS,
    WAIT,
)
from .estimate.prefill import PrefillTimings
from .fairness.turns import Turns
from .objectives import NO_OBJECTIVE, Objective
from .policy import Policy
from .registry import Part, PolicyConfigError, PolicyProblem, Registry, Value, parts_in_use
from .traffic import Traffic
from .types import Lane

__all__ = [
    "ALWAYS",
    "ROLES",
    "PolicyConfigError",
    "PolicyProblem",
    "PolicySpec",
    "build_fallback",
    "build_policy",
    "effective_options",
]

_T = TypeVar("_T")

ROLES: Mapping[str, Registry[Any]] = {
    "ordering": ORDERINGS,
    "flows": FLOWS,
    "lanes": TURNS,
    "admission": ADMISSIONS,
    "shedding": SHEDDINGS,
    "routing": ROUTINGS,
    "slicing": SLICINGS,
}
"""Role → the parts that can play it."""
ALWAYS: tuple[Part[Any], ...] = (COST, OUTPUT, LANE_CUTS, QUEUE, BACKGROUND, WAIT)
"""Parts of every policy, whatever plays the roles."""


@dataclass(frozen=True, slots=True)
class PolicySpec:
    """Which part plays which role, and their options: part name → option → value.

    Options of a part that isn't used are an error: they would have no effect.
    """

    ordering: str = "adaptive"
    flows: str = "vtc"
    lanes: str = "single"
    admission: str = "fixed"
    shedding: str = "bounds"
    routing: str = "least-tokens"
    slicing: str = "slices"
    options: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    objectives: Mapping[Lane, Objective] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """Short, stable, without options: for headers, metrics and logs."""
        return "+".join(
            (self.flows, self.lanes, self.ordering, self.admission, self.shedding, self.routing, self.slicing)
        )


def effective_options(spec: PolicySpec) -> dict[str, dict[str, Value]]:
    """Every option of every part in use, defaults included. Raises PolicyConfigError with all that is wrong."""
    chosen = {role: getattr(spec, role) for role in ROLES}
    parts, problems = parts_in_use(ROLES, chosen, spec.options, ALWAYS)
    problems += lane_objectives.problems(spec.objectives)
    if problems:
        raise PolicyConfigError(problems)
    return {name: part.filled(spec.options.get(name, {})) for name, part in parts.items()}


def build_policy(spec: PolicySpec) -> Policy:
    """A fresh policy with nothing learned yet. Raises PolicyConfigError with all that is wrong."""
    options = effective_options(spec)

    def made(part: Part[_T]) -> _T:
        return part.make(**options[part.name])

    wait, cost = made(WAIT), made(COST)
    return Policy(
        name=spec.name,
        ordering=made(ORDERINGS.get(spec.ordering)),
        turns=Turns(made(FLOWS.get(spec.flows)), lambda: made(TURNS.get(spec.lanes))),
        admission=made(ADMISSIONS.get(spec.admission)),
        shedding=made(SHEDDINGS.get(spec.shedding)),
        queue_bounds=made(QUEUE),
        routing=made(ROUTINGS.get(spec.routing)),
        lanes=made(LANE_CUTS),
        background=made(BACKGROUND),
        output=made(OUTPUT),
        cost=cost,
        prefills=PrefillTimings(cost.timing("").prefill_s_per_token),
        slicing=made(SLICINGS.get(spec.slicing)),
        objectives={lane: spec.objectives.get(lane, NO_OBJECTIVE) for lane in Lane},
        traffic=Traffic(),
        max_wait_s=wait["max_wait_s"],
        no_replica_grace_s=wait["no_replica_grace_s"],
    )


def build_fallback(spec: PolicySpec) -> Policy:
    """What serves when the policy of `spec` has failed: order of arrival, with its options where they are the same."""
    plain = PolicySpec(
        ordering="fcfs", flows="one-flow", lanes="single", admission="fixed", shedding="bounds", slicing="whole"
    )
    kept = set(effective_options(plain))
    options = {name: given for name, given in spec.options.items() if name in kept}
    return build_policy(replace(plain, options=options, objectives=spec.objectives))
