"""Earliest due first, with the slack that a request of its size has."""

from ..traffic import Load
from .port import Lateness

_STEPS = 4
"""θ moves in so many, since each move orders the whole queue anew."""


class SlackEdf:
    """Key `due + θ · cost`: the instant by which the first token is wanted, later for what costs much.

    Due is what the caller said, else arrival + the time to the first token that its lane is to have, else arrival +
    `default_ttft_s`. θ is 0 on an idle system, where due instants alone count, and grows with the load, in four steps,
    to `max_theta` at full load, where passing the dear is what keeps most of the others in time; costs count up to
    `max_cost_s`. A change of θ orders the queue anew.

    What can't be in time any more would keep others from being so: it goes last, in order of arrival, but gets
    `late_share` of its flow's dispatches. So a request that isn't late is passed only by what comes less than its own
    time to the first token + `max_theta · max_cost_s` after it; and one that is, with n late ones of its flow before
    it, goes at the latest as the (n + 1) / `late_share`-th of its flow, as far as it fits.
    """

    name = "slack-edf"
    choice = None

    def __init__(self, *, default_ttft_s: float, max_theta: float, max_cost_s: float, late_share: float) -> None:
        """Seconds above 0; `max_theta` at least 0; a share in 0..1, above 0."""
        self.lateness = Lateness(late_share, default_ttft_s)
        self._max_theta = max_theta
        self._max_cost_s = max_cost_s
        self._theta = 0.0

    def key(self, *, arrival_s: float, cost_s: float, due_s: float | None = None) -> float:
        due_s = arrival_s + self.lateness.within_s if due_s is None else due_s
        return due_s + self._theta * min(cost_s, self._max_cost_s)

    def refit(self, load: Load) -> bool:
        theta = self._max_theta * round(min(load.utilisation, 1.0) * _STEPS) / _STEPS
        is_changed, self._theta = theta != self._theta, theta
        return is_changed

    def overtaking_bound_s(self, max_cost_s: float) -> float:
        return self._max_theta * min(max_cost_s, self._max_cost_s)
