"""Whose turn it is inside the engine: sort keys, smallest first. Ties: arrival, then id."""

from collections.abc import Callable, Mapping
from types import MappingProxyType

from ..types import SequenceLike

StepOrder = Callable[[SequenceLike], tuple[float, ...]]


def fcfs(sequence: SequenceLike) -> tuple[float, ...]:
    """Arrival."""
    return (sequence.arrival_s, sequence.sequence_id)


def priority(sequence: SequenceLike) -> tuple[float, ...]:
    """Higher priority first, arrival within one priority. No ageing: a steady stream of higher ones starves lower."""
    return (-sequence.priority, sequence.arrival_s, sequence.sequence_id)


ORDERS: Mapping[str, StepOrder] = MappingProxyType({"fcfs": fcfs, "priority": priority})
