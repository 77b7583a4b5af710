"""What one engine step computes: composers (`EngineLike` in, `StepPlan` out) and the rules a plan must keep.

Adding a composer: write it in a module of its own and list it in `COMPOSERS`. It is called at every step with the
engine's state and must keep none between calls; `check_plan` holds it to the rules.
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType

from .base import Composer
from .chunked import Chunked
from .order import ORDERS, StepOrder
from .rules import PolicyError, check_plan

COMPOSERS: Mapping[str, Callable[[StepOrder], Composer]] = MappingProxyType({"chunked": Chunked})
"""Name → factory that takes the order in which sequences get their turn."""

__all__ = ["COMPOSERS", "ORDERS", "Chunked", "Composer", "PolicyError", "StepOrder", "check_plan"]
