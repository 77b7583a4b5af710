"""Deficit round robin across lanes (Shreedhar and Varghese, SIGCOMM 1995), with cost in seconds for bytes."""

import math
from collections.abc import Mapping

from ..types import Lane

ROUND = (Lane.INTERACTIVE, Lane.STANDARD, Lane.LONG, Lane.OVERLONG)
_PLACES = {lane: place for place, lane in enumerate(ROUND)}


class DeficitRoundRobin:
    """Each lane earns its quantum a round and spends predicted cost; what a request really cost is settled at its end.

    Starvation bound: a lane whose head costs C seconds is served after at most ceil((C + debt) / quantum) rounds, a
    round being at most the sum of all quanta plus one head of each lane. Unspent credit is kept only while
    backlogged; debt (a request that cost more than predicted) is kept always, so that a lane can't shed it by
    running empty for a moment.
    """

    name = "drr"

    def __init__(self, quanta_s: Mapping[Lane, float]) -> None:
        """`quanta_s`: seconds of replica time each lane of `ROUND` earns a round; KeyError when one is missing."""
        self._quanta_s = {lane: quanta_s[lane] for lane in ROUND}
        self._deficit_s = dict.fromkeys(ROUND, 0.0)
        self._turn = 0

    def next_lane(self, heads: Mapping[Lane, tuple[float, float]]) -> Lane:
        current = ROUND[self._turn]
        if current in heads and self._deficit_s[current] >= heads[current][1]:
            return current
        if len(heads) == 1:
            ((lane, (_, cost_s)),) = heads.items()
            self._go_round_to(lane, cost_s)
            return lane
        backlogged = [lane for lane in ROUND if lane in heads]
        # Whole rounds in which nobody can be served are skipped at once, so that a quantum far below a request's
        # cost (or a large debt) makes nothing slow.
        short_rounds = min(
            [math.ceil((heads[lane][1] - self._deficit_s[lane]) / self._quanta_s[lane]) for lane in backlogged]
        )
        if short_rounds > 1:
            for lane in backlogged:
                self._deficit_s[lane] += (short_rounds - 1) * self._quanta_s[lane]
        while True:
            self._turn = (self._turn + 1) % len(ROUND)
            lane = ROUND[self._turn]
            if lane in heads:
                self._deficit_s[lane] += self._quanta_s[lane]
                if self._deficit_s[lane] >= heads[lane][1]:
                    return lane

    def _go_round_to(self, lane: Lane, cost_s: float) -> None:
        """As many rounds as it takes, in which nobody else is."""
        quantum_s = self._quanta_s[lane]
        num_rounds = math.ceil((cost_s - self._deficit_s[lane]) / quantum_s)
        self._deficit_s[lane] += quantum_s * num_rounds if num_rounds > 1 else quantum_s
        self._turn = _PLACES[lane]

    def charge(self, lane: Lane, cost_s: float) -> None:
        if lane in self._deficit_s:  # background earns nothing and owes nothing
            self._deficit_s[lane] -= cost_s

    def emptied(self, lane: Lane) -> None:
        if self._deficit_s.get(lane, 0.0) > 0.0:
            self._deficit_s[lane] = 0.0
