"""The simulator's clock: a queue of what happens next, with an order that depends on nothing but the inputs."""

import heapq
from collections.abc import Callable
from enum import IntEnum


class Phase(IntEnum):
    """What comes first of things that happen at one instant.

    The end of a replica's step comes before what arrives there, so that arrivals at that very instant wait for the next
    boundary whether or not the steps are simulated one by one; what a replica says comes before what gateways decide.
    """

    REPLICA_STEP = 0
    REPLICA_INPUT = 1
    REPLICA_OUTPUT = 2
    GATEWAY_INPUT = 3
    GATEWAY_TIMER = 4


Action = Callable[[float], None]


class EventQueue:
    """Instants are seconds from the start of the simulation; two events never compare equal.

    At one instant: by phase, then by the index of the replica or gateway (so that how events came to be scheduled
    doesn't matter), then in the order of scheduling.
    """

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, int, int, Action]] = []
        self._num_scheduled = 0
        self.now_s = 0.0

    def at(self, when_s: float, phase: Phase, index: int, action: Action) -> None:
        """`action` is called with its instant. Raises ValueError for an instant that has passed."""
        if when_s < self.now_s:
            raise ValueError(f"an event at {when_s} s, but it is {self.now_s} s")
        self._num_scheduled += 1
        heapq.heappush(self._heap, (when_s, phase, index, self._num_scheduled, action))

    def step(self) -> bool:
        """The next thing happens; False when there is none."""
        if not self._heap:
            return False
        now_s, _, _, _, action = heapq.heappop(self._heap)
        self.now_s = now_s
        action(now_s)
        return True

    def run(self) -> None:
        """Until nothing is left to happen."""
        while self.step():
            pass
