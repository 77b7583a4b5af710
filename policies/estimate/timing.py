"""How fast one replica is, fitted to what its calls took: seconds a prompt token, and an output token at a batch."""

from typing import NamedTuple

from .line import RobustLine

_BATCH_WEIGHT = 1 / 32
_MAX_FACTOR = 1000.0
"""How far from the configured figures the fitted ones may be: more is a fault of measuring."""


class CallTiming(NamedTuple):
    """What one finished call took, and what it shared the replica with."""

    computed_tokens: int
    """Prompt tokens that had to be computed before its first token: its own, not cached, and those before it."""
    batch: float
    """Calls on the replica while it ran, itself included."""
    ttft_s: float | None
    """From dispatch to its first token."""
    tpot_s: float | None
    """Per output token after the first."""


class ReplicaTiming:
    """TTFT is a line over the prompt tokens computed; TPOT is a line over the batch.

    What an output token costs the replica depends on how many it makes at once: a step of n sequences takes `tpot(n)`
    and makes n tokens, so each costs `tpot(n) / n`, here at the batch seen lately.
    """

    def __init__(self, prefill_s_per_token: float, decode_s_per_token: float) -> None:
        """The figures to begin with, both above 0."""
        self._prior = (prefill_s_per_token, decode_s_per_token)
        self._ttft = RobustLine(prefill_s_per_token, 0.0)
        self._tpot = RobustLine(0.0, decode_s_per_token)
        self._batch = 1.0

    def add(self, timing: CallTiming) -> None:
        if timing.ttft_s is not None and timing.computed_tokens > 0:
            self._ttft.add(timing.computed_tokens, timing.ttft_s)
        if timing.tpot_s is not None and timing.tpot_s > 0.0:
            first = self._tpot.num_points == 0
            self._batch = timing.batch if first else self._batch + (timing.batch - self._batch) * _BATCH_WEIGHT
            self._tpot.add(timing.batch, timing.tpot_s)

    @property
    def num_calls(self) -> int:
        """Calls whose TPOT was seen."""
        return self._tpot.num_points

    @property
    def batch(self) -> float:
        """Calls side by side, lately."""
        return self._batch

    @property
    def prefill_s_per_token(self) -> float:
        """`a`: seconds of the replica that a prompt token takes."""
        return _bounded(self._ttft.slope, self._prior[0])

    @property
    def tpot_s(self) -> float:
        """Seconds between two output tokens of a request, at the batch seen lately."""
        return _bounded(self._tpot.at(self._batch), self._prior[1])

    @property
    def decode_s_per_token(self) -> float:
        """`b`: seconds of the replica that an output token takes, its batch shared out."""
        return self.tpot_s / self._batch


def _bounded(value: float, prior: float) -> float:
    lowest = prior / _MAX_FACTOR
    if value < lowest:
        return lowest
    highest = prior * _MAX_FACTOR
    return highest if value > highest else value
