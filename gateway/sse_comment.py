"""A comment in an event stream, right before its end, for callers that asked for it."""

import re

_EVENT_END = re.compile(rb"\r\n\r\n|\n\n|\r\r")
# At the start of an event: that is where held bytes begin (stray blank lines apart), or behind a blank line.
_END_EVENT = re.compile(rb"(?:\A[\r\n]*|(?<=\n\n)|(?<=\r\n\r\n)|(?<=\r\r))(data: ?\[DONE\] *)(?=[\r\n])")
_MAX_HELD_BYTES = 1 << 16


class CommentInserter:
    """Puts one comment before the end marker of a stream, for callers that asked for it.

    Bytes of an unfinished event are held back until the event is whole, as the end marker may be among them; they
    are bounded, and past the bound the rest of the stream passes as it comes, without a comment.
    """

    __slots__ = ("_held", "_is_done")

    def __init__(self) -> None:
        self._held = b""
        self._is_done = False

    @property
    def is_holding(self) -> bool:
        """Whether there are bytes that wait for the end of their event."""
        return bool(self._held)

    def feed(self, piece: bytes) -> tuple[bytes, bytes | None]:
        """The bytes to send now. If the end marker is next, `(before, rest)`: the comment belongs in between."""
        if self._is_done:
            return piece, None
        held = self._held + piece
        marker = _END_EVENT.search(held)
        if marker is not None:
            self._is_done, self._held = True, b""
            return held[: marker.start(1)], held[marker.start(1) :]
        if len(held) > _MAX_HELD_BYTES:
            self._is_done, self._held = True, b""
            return held, None
        end = 0
        for match in _EVENT_END.finditer(held):
            end = match.end()
        self._held = held[end:]
        return held[:end], None

    def flush(self) -> bytes:
        """What is still held when the stream ends without the marker."""
        held, self._held = self._held, b""
        return held
