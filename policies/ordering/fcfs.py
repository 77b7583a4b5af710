"""First come, first served. The baseline."""

from ..traffic import Load


class Fcfs:
    name = "fcfs"

    def key(self, *, arrival_s: float, cost_s: float) -> float:
        return arrival_s

    def refit(self, load: Load) -> None:
        """Nothing to fit."""

    def overtaking_bound_s(self, max_cost_s: float) -> float:
        return 0.0
