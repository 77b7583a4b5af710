"""Stop strings over text that comes in pieces."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Piece:
    """Text that may be sent on, and the stop string that ended it, if one did."""

    text: str
    stopped_by: str | None = None


class StopStrings:
    """Finds the earliest of several stop strings, also across pieces.

    Holds back only the end of the text that could still become a stop string; the string itself is never given out.
    """

    def __init__(self, stop: Sequence[str]) -> None:
        self._stop = tuple(stop)
        self._held = ""

    def push(self, text: str) -> Piece:
        """Take more text. After a piece with `stopped_by` nothing more may be pushed."""
        if not self._stop:
            return Piece(text)
        held = self._held + text
        found = min(((held.find(stop), stop) for stop in self._stop if stop in held), default=None)
        if found is not None:
            start, stop = found
            self._held = ""
            return Piece(held[:start], stopped_by=stop)
        keep = max(_overlap(held, stop) for stop in self._stop)
        self._held = held[len(held) - keep :]
        return Piece(held[: len(held) - keep])

    def flush(self) -> str:
        """What was held back, now that nothing more comes."""
        held, self._held = self._held, ""
        return held


def _overlap(text: str, stop: str) -> int:
    """Length of the longest end of `text` that is a proper start of `stop`."""
    for length in range(min(len(stop) - 1, len(text)), 0, -1):
        if text.endswith(stop[:length]):
            return length
    return 0
