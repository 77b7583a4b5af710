"""The port of step composers."""

from typing import Protocol

from ..types import EngineLike, StepPlan


class Composer(Protocol):
    """Decides what one engine step computes."""

    def compose(self, engine: EngineLike) -> StepPlan:
        """Plan the next step.

        The engine owns the state; the composer keeps nothing of the view. An engine with running or waiting
        sequences must get at least one row or preemption. A plan that breaks a rule of `check_plan` is not run.
        """
        ...
