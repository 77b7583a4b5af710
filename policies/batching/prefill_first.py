"""Prefill first: while a prompt can be computed, nothing else is. A baseline."""

from ..types import EngineLike, StepPlan
from .order import StepOrder
from .step import StepInTheMaking


class PrefillFirst:
    """A step computes prompts, or a token of every running decode, never both; prompts as long as there are any.

    vLLM scheduled like this before it chunked (its v0 default). A prompt longer than the token budget, which it turned
    away, takes several steps here. First tokens come soonest; streams stand still meanwhile.

    How long they do is bounded by places: a sequence that starts takes one of `max_num_seqs` until it ends, and one of
    more than a token ends in a decode step. So between two decode steps at most `max_num_seqs` of those start. A
    stream of one-token requests that never ends starves the others.
    """

    def __init__(self, order: StepOrder) -> None:
        self._order = order

    def compose(self, engine: EngineLike) -> StepPlan:
        """Plan the next step; see `Composer`."""
        step = StepInTheMaking(engine, self._order)
        step.prefill()
        if step.is_empty:
            step.decode()
        return step.plan()
