"""Chunked prefill: every running decode advances, and what is left of the token budget goes to prefills."""

from ..types import EngineLike, StepPlan
from .order import StepOrder
from .step import StepInTheMaking


class Chunked:
    """Decodes first, then running and waiting prefills in one order, cut to fit the token budget.

    The order is that of Sarathi-Serve (OSDI 2024) and of vLLM's default scheduler; unlike there, a waiting sequence
    that comes before a running prefill takes its tokens first.
    """

    def __init__(self, order: StepOrder) -> None:
        self._order = order

    def compose(self, engine: EngineLike) -> StepPlan:
        """Plan the next step; see `Composer`."""
        step = StepInTheMaking(engine, self._order)
        step.decode()
        step.prefill()
        return step.plan()
