"""Whose turn it is inside the engine: sort keys, smallest first. Ties: arrival, then id."""

from collections.abc import Callable
from typing import Any

from ..builtin import ORDERINGS
from ..ordering.port import Ordering
from ..registry import Option, Part, Registry
from ..types import SequenceLike

StepOrder = Callable[[SequenceLike], tuple[float, ...]]


def fcfs(sequence: SequenceLike) -> tuple[float, ...]:
    """Arrival."""
    return (sequence.arrival_s, sequence.sequence_id)


def priority(sequence: SequenceLike) -> tuple[float, ...]:
    """Higher priority first, arrival within one priority. No ageing: a steady stream of higher ones starves lower."""
    return (-sequence.priority, sequence.arrival_s, sequence.sequence_id)


def by_prompt(ordering: Ordering, prefill_s_per_token: float) -> StepOrder:
    """As the gateway orders, by what an engine knows of a cost: the prompt's. Nothing is refitted in here."""

    def key(sequence: SequenceLike) -> tuple[float, ...]:
        cost_s = prefill_s_per_token * sequence.prompt_tokens
        return (ordering.key(arrival_s=sequence.arrival_s, cost_s=cost_s), sequence.arrival_s, sequence.sequence_id)

    return key


PREFILL_S_PER_TOKEN = Option(0.0001, "seconds of the engine that a prompt token takes", above=0.0)


def _by_prompt_part(part: Part[Ordering]) -> Part[StepOrder]:
    def make(*, prefill_s_per_token: float, **options: Any) -> StepOrder:
        return by_prompt(part.make(**options), prefill_s_per_token)

    return Part(part.name, make, {**part.options, "prefill_s_per_token": PREFILL_S_PER_TOKEN})


_NEEDS_TRAFFIC = "adaptive"
"""Without being refitted it would be order of arrival."""

ORDERS: Registry[StepOrder] = Registry(
    "order",
    [
        Part("fcfs", lambda: fcfs),
        Part("priority", lambda: priority),
        *(_by_prompt_part(ORDERINGS.get(name)) for name in ORDERINGS.names() if name not in ("fcfs", _NEEDS_TRAFFIC)),
    ],
)
