"""Spec → policy."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from .builtin import ADMISSIONS, BACKGROUND, COST, LANE_CUTS, ORDERINGS, OUTPUT, ROUTINGS, TURNS
from .policy import Policy
from .registry import Option, Part, PolicyConfigError
from .slicing import WholeCalls

__all__ = ["PolicyConfigError", "PolicySpec", "build_policy"]

_WAIT_OPTIONS = {
    "max_wait_s": Option(60.0, "a request that waited longer goes first, whatever it costs", above=0.0),
    "no_replica_grace_s": Option(5.0, "how long a request waits while no replica is available", at_least=0.0),
}


@dataclass(frozen=True, slots=True)
class PolicySpec:
    """Which part plays which role, and their options: part name → option → value.

    Beside the chosen parts, `options` may hold `cost`, `output`, `lane-cuts`, `background` and `wait`. Options of a
    part that isn't chosen are an error: they would have no effect.
    """

    ordering: str = "aged-sjf"
    lanes: str = "drr"
    admission: str = "fixed"
    routing: str = "least-tokens"
    options: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """Short, stable, without options: for headers, metrics and logs."""
        return "+".join((self.lanes, self.ordering, self.admission, self.routing))


def build_policy(spec: PolicySpec) -> Policy:
    """A fresh policy with nothing learned yet; raises PolicyConfigError."""
    ordering, turns = ORDERINGS.get(spec.ordering), TURNS.get(spec.lanes)
    admission, routing = ADMISSIONS.get(spec.admission), ROUTINGS.get(spec.routing)
    wait: Part[dict[str, float]] = Part("wait", dict, _WAIT_OPTIONS)
    named: list[Part[Any]] = [ordering, turns, admission, routing, COST, OUTPUT, LANE_CUTS, BACKGROUND, wait]
    known = {part.name for part in named}
    for name, given in spec.options.items():
        if name not in known:
            raise PolicyConfigError(f"options.{name}", given, ", ".join(sorted(known)))
        if not isinstance(given, Mapping):
            raise PolicyConfigError(f"options.{name}", given, "a mapping of options")
    options = {name: spec.options.get(name, {}) for name in known}
    waits = wait.build(options["wait"])
    return Policy(
        name=spec.name,
        ordering=ordering.build(options[ordering.name]),
        turns=turns.build(options[turns.name]),
        admission=admission.build(options[admission.name]),
        routing=routing.build(options[routing.name]),
        lanes=LANE_CUTS.build(options["lane-cuts"]),
        background=BACKGROUND.build(options["background"]),
        output=OUTPUT.build(options["output"]),
        cost=COST.build(options["cost"]),
        slicing=WholeCalls(),
        max_wait_s=waits["max_wait_s"],
        no_replica_grace_s=waits["no_replica_grace_s"],
    )
