"""The default: short requests first as far as it pays with the traffic that comes, else order of arrival."""

from ..adaptive import Choice, choose
from ..traffic import Load
from .boost import Boost
from .fcfs import Fcfs


class Adaptive:
    """`boost` with the factor that `policies.adaptive` chooses, or `fcfs`; a change orders the queue anew.

    Requests whose callers declared them interactive, and may, go before others that came within half of `max_boost_s`
    before them, whatever is chosen. Passed by at most `max_boost_s` between two changes, a request waits for what a
    change lets before it too; after `max_wait_s` at the latest it goes first, as under any ordering.
    """

    name = "adaptive"
    lateness = None

    def __init__(self, *, max_boost_s: float) -> None:
        """`max_boost_s`: seconds by which a request may pass others; above 0."""
        self._boost = Boost(factor=1.0, max_boost_s=max_boost_s, prior_gamma_per_s=1.0)
        self._fcfs = Fcfs()
        self._ahead_s = max_boost_s / 2.0
        self.choice: Choice = choose(Load(0.0, (), 1.0, None), None)

    def key(self, *, arrival_s: float, cost_s: float, due_s: float | None = None) -> float:
        if self.choice.factor is not None:
            return self._boost.key(arrival_s=arrival_s, cost_s=cost_s)
        return self._fcfs.key(arrival_s=arrival_s, cost_s=cost_s) if cost_s > 0.0 else arrival_s - self._ahead_s

    def refit(self, load: Load) -> bool:
        before, self.choice = self.choice, choose(load, self.choice)
        if self.choice.factor is not None:
            self._boost.factor = self.choice.factor
            self._boost.refit(load)
        return self.choice.name != before.name

    def overtaking_bound_s(self, max_cost_s: float) -> float:
        return self._boost.overtaking_bound_s(max_cost_s)
