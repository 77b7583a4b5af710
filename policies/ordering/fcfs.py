"""First come, first served. The baseline."""

from ..traffic import Load


class Fcfs:
    name = "fcfs"
    lateness = None
    choice = None

    def key(self, *, arrival_s: float, cost_s: float, due_s: float | None = None) -> float:
        return arrival_s

    def refit(self, load: Load) -> bool:
        return False

    def overtaking_bound_s(self, max_cost_s: float) -> float:
        return 0.0
