"""How much longer a replica's calls take than they would without a load that is too much for it."""

from ..estimate.fit import RobustFit
from ..estimate.timing import CallTiming, decode_point, prefill_point

_ABOVE = 0.03
"""What a call that took longer than expected counts against one that didn't: the fit keeps to the fast ones, and a
replica that is overloaded for a while doesn't become what is usual."""


class Unloaded:
    """What calls take at best: time to first token by the prompt tokens ahead, the time after it by steps, batch, and
    prompt tokens computed in between. So neither long prompts or answers nor a large batch are slowness by themselves.
    """

    __slots__ = ("_decode", "_prefill")

    def __init__(self) -> None:
        self._prefill = RobustFit(0.0, 0.0, above=_ABOVE)
        self._decode = RobustFit(0.0, 0.0, 0.0, above=_ABOVE)

    @property
    def num_calls(self) -> int:
        """Those that told something of the rarer of both."""
        return min(self._prefill.num_points, self._decode.num_points)

    def compare(self, timing: CallTiming, slowness: "Slowness") -> None:
        """Add what this call took to `slowness`, beside what was to be expected; then learn from it."""
        if (point := prefill_point(timing)) is not None:
            slowness.prefill_s += point.took_s
            slowness.expected_prefill_s += self._prefill.at(point.quantities)
            self._prefill.add(point.quantities, point.took_s)
        if (point := decode_point(timing)) is not None:
            slowness.decode_s += point.took_s
            slowness.expected_decode_s += self._decode.at(point.quantities)
            self._decode.add(point.quantities, point.took_s)


class Slowness:
    """Sums over some calls: what they took, and what was to be expected."""

    __slots__ = ("decode_s", "expected_decode_s", "expected_prefill_s", "prefill_s")

    def __init__(self) -> None:
        self.prefill_s = self.expected_prefill_s = 0.0
        self.decode_s = self.expected_decode_s = 0.0

    @property
    def ratio(self) -> float:
        """Of first tokens or of those after, whichever was slower; 1.0 where nothing was to be expected."""
        prefill = self.prefill_s / self.expected_prefill_s if self.expected_prefill_s > 0.0 else 1.0
        decode = self.decode_s / self.expected_decode_s if self.expected_decode_s > 0.0 else 1.0
        return prefill if prefill > decode else decode
