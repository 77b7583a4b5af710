"""Shortest predicted job first, with ageing by arrival: cheap and static, nothing is ever sorted again."""

from ..traffic import Load


class AgedSjf:
    """Key `cost + ageing · arrival`, so a request is passed only by those that arrive within max_cost / ageing."""

    name = "aged-sjf"
    lateness = None
    choice = None

    def __init__(self, *, ageing: float) -> None:
        """`ageing`: seconds of cost that one second of waiting is worth; above 0."""
        self._ageing = ageing

    def key(self, *, arrival_s: float, cost_s: float, due_s: float | None = None) -> float:
        return cost_s + self._ageing * arrival_s

    def refit(self, load: Load) -> bool:
        return False

    def overtaking_bound_s(self, max_cost_s: float) -> float:
        return max_cost_s / self._ageing
