"""How fast one replica is, fitted to what its calls took: seconds a prompt token, and an output token at a batch."""

from typing import NamedTuple

from .fit import RobustFit

_BATCH_WEIGHT = 1 / 32
_MAX_FACTOR = 1000.0
"""How far from the configured figures the fitted ones may be: more is a fault of measuring."""
_MAX_STEPS = 256
"""A longer answer counts as one of so many tokens: it isn't to outweigh all others."""


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
    num_steps: int = 1
    """Output tokens after the first."""
    beside_tokens: int = 0
    """Prompt tokens of other calls that were computed between its first and its last token."""


class TimingPoint(NamedTuple):
    """What something took, and the quantities that it depends on."""

    quantities: tuple[float, ...]
    took_s: float


def prefill_point(timing: CallTiming) -> TimingPoint | None:
    """Time to first token: so much by itself, and for each prompt token ahead. None: nothing was told."""
    if timing.ttft_s is None or timing.computed_tokens <= 0:
        return None
    return TimingPoint((1.0, timing.computed_tokens), timing.ttft_s)


def decode_point(timing: CallTiming) -> TimingPoint | None:
    """The time after it: for each step, each sequence in a step, and each prompt token computed in between."""
    if timing.tpot_s is None or timing.tpot_s <= 0.0 or timing.num_steps <= 0:
        return None
    steps = timing.num_steps if timing.num_steps < _MAX_STEPS else _MAX_STEPS
    beside_tokens = timing.beside_tokens * steps / timing.num_steps
    return TimingPoint((steps, steps * timing.batch, beside_tokens), timing.tpot_s * steps)


class ReplicaTiming:
    """TTFT is a line over the prompt tokens computed. The time after the first token is a sum: so much for each step,
    for each other sequence in it, and for each prompt token that is computed in between.

    Without the last, a replica that computes prompts beside its answers would seem slow at producing tokens, in the
    demonstration four times slower than it is, and prompts would seem to weigh a quarter of what they do.

    What an output token costs the replica depends on how many it makes at once: a step of n sequences takes `tpot(n)`
    and makes n tokens, so each costs `tpot(n) / n`, here at the batch seen lately.
    """

    def __init__(self, prefill_s_per_token: float, decode_s_per_token: float) -> None:
        """The figures to begin with, both above 0."""
        self._prior = (prefill_s_per_token, decode_s_per_token)
        self._ttft = RobustFit(0.0, prefill_s_per_token)
        self._decode = RobustFit(decode_s_per_token, 0.0, prefill_s_per_token)
        self._batch = 1.0

    def add(self, timing: CallTiming) -> None:
        if (point := prefill_point(timing)) is not None:
            self._ttft.add(*point)
        if (point := decode_point(timing)) is not None:
            first = self._decode.num_points == 0
            self._batch = timing.batch if first else self._batch + (timing.batch - self._batch) * _BATCH_WEIGHT
            self._decode.add(*point)

    @property
    def num_calls(self) -> int:
        """Calls whose TPOT was seen."""
        return self._decode.num_points

    @property
    def batch(self) -> float:
        """Calls side by side, lately."""
        return self._batch

    @property
    def prefill_s_per_token(self) -> float:
        """`a`: seconds of the replica that a prompt token takes."""
        return _bounded(self._ttft.rates[1], self._prior[0])

    @property
    def tpot_s(self) -> float:
        """Seconds between two output tokens of a request, at the batch seen lately, while no prompts are computed."""
        return _bounded(self._decode.at((1.0, self._batch, 0.0)), self._prior[1])

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
