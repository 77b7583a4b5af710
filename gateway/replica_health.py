"""When calls that fail take a replica out of rotation, and when it may try again.

Probes can't answer this: a hung engine often has a green /health. So failing calls eject a replica by themselves, and
only calls bring it back: after a while one request is let through (half-open), and the head of its answer decides, for
a whole generation would keep everybody else away for long. What failed before is forgiven by a whole answer only: one
that breaks off after its head ejects again. After Envoy's outlier detection and the usual circuit breaker.
"""

from dataclasses import dataclass
from enum import StrEnum


@dataclass(frozen=True, slots=True)
class EjectionRule:
    """Ejected after `num_failures` in a row, for `first_s`.

    Each trial that fails doubles that, up to `longest_s`.
    """

    num_failures: int = 3
    first_s: float = 5.0
    longest_s: float = 60.0


class Rotation(StrEnum):
    IN = "in"
    EJECTED = "ejected"
    TRIAL = "trial"


class Ejection:
    """Where one replica stands. Instants are of the caller's monotonic clock."""

    def __init__(self, rule: EjectionRule) -> None:
        self._rule = rule
        self._num_failures = 0
        self._num_ejections = 0
        self._until_s: float | None = None

    def state(self, now_s: float) -> Rotation:
        if self._until_s is None:
            return Rotation.IN
        return Rotation.EJECTED if now_s < self._until_s else Rotation.TRIAL

    @property
    def until_s(self) -> float | None:
        """Instant at which a trial may begin; None when it isn't ejected."""
        return self._until_s

    @property
    def is_clean(self) -> bool:
        """Whether nothing speaks against the replica: neither an ejection nor failures since the last success."""
        return self._until_s is None and not self._num_failures

    def failed(self, now_s: float) -> None:
        """A call failed in a way that speaks against the replica."""
        state = self.state(now_s)
        if state is Rotation.EJECTED:
            return  # it was sent before the ejection and says nothing new
        self._num_failures += 1
        if state is Rotation.TRIAL or self._num_failures >= self._rule.num_failures:
            self._until_s = now_s + min(self._rule.first_s * 2.0**self._num_ejections, self._rule.longest_s)
            self._num_ejections += 1

    def answered(self, now_s: float) -> None:
        """An answer began well: a trial is over. Its end is still to come, so the failures stay."""
        if self.state(now_s) is Rotation.TRIAL:
            self._until_s = None

    def succeeded(self, now_s: float) -> None:
        """A call went well. While ejected it says nothing: it may be older than the trouble."""
        if self.state(now_s) is not Rotation.EJECTED:
            self._num_failures = 0
            self._num_ejections = 0
            self._until_s = None
