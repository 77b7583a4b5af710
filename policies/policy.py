"""A policy: the parts that decide, put together. Compositions are data, not subclasses."""

from collections.abc import Mapping
from dataclasses import dataclass

from .admission.port import Admission
from .estimate.cost import CostModel
from .estimate.output import OutputQuantiles
from .estimate.prefill import PrefillTimings
from .fairness.background import BackgroundClaim
from .fairness.turns import Turns
from .lanes import BudgetLanes
from .objectives import Objective
from .ordering.port import Ordering
from .queue_bounds import QueueBounds
from .routing.port import Routing
from .shedding.port import Shedding
from .slicing import Slicing
from .traffic import Traffic
from .types import Lane


@dataclass(frozen=True, slots=True)
class Policy:
    """Made by `config.build_policy`; the parts own their learned state, so a policy object belongs to one core."""

    name: str
    ordering: Ordering
    turns: Turns
    admission: Admission
    shedding: Shedding
    queue_bounds: QueueBounds
    routing: Routing
    lanes: BudgetLanes
    background: BackgroundClaim
    output: OutputQuantiles
    cost: CostModel
    prefills: PrefillTimings
    slicing: Slicing
    objectives: Mapping[Lane, Objective]
    """Of every lane."""
    traffic: Traffic
    max_wait_s: float
    """Past so much waiting the oldest of a flow goes first in its turn; on its replica nothing starts until it fits."""
    no_replica_grace_s: float
    """How long a request waits while no replica of its model is available."""
