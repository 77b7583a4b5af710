"""Token ids → text, as far as it is certain: whole characters, and nothing that may be part of a stop string."""

from collections.abc import Sequence
from typing import Protocol

from .stopping import Piece, StopStrings


class Detokenizer(Protocol):
    """Turns one sequence's tokens into text; keeps the bytes of incomplete characters."""

    def push(self, token_id: int) -> str:
        """The text that became certain."""
        ...

    def flush(self) -> str:
        """What was kept, now that nothing more comes."""
        ...


class TextStream:
    """The text of one choice. Stop strings count from the `min_tokens`-th token on."""

    def __init__(self, detokenizer: Detokenizer, stop: Sequence[str], min_tokens: int) -> None:
        self._detokenizer = detokenizer
        self._stop = StopStrings(stop)
        self._min_tokens = min_tokens
        self._num_tokens = 0

    def push(self, token_id: int) -> Piece:
        """Take a token."""
        self._num_tokens += 1
        text = self._detokenizer.push(token_id)
        return Piece(text) if self._num_tokens < self._min_tokens else self._stop.push(text)

    def flush(self) -> str:
        """The rest, now that nothing more comes."""
        piece = self._stop.push(self._detokenizer.flush())
        return piece.text if piece.stopped_by is not None else piece.text + self._stop.flush()
