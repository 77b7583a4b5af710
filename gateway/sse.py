"""An incremental reader of event streams: bytes in, facts about the stream out. It never alters or holds bytes.

Format: WHATWG HTML, 9.2 (server-sent events): lines end in CRLF, LF or CR, a blank line ends an event, `:` starts a
comment, several `data` lines make one value, and a byte order mark before the first line is no part of it. JSON is
parsed only where a fact may be in it: until the first content, in chunks that carry usage or an error, and at the end
of a choice. Nearly every piece of an LLM's stream is one event that differs from the one before in nothing but the text
in it, and that is seen without looking at the rest.
"""

import re
from collections.abc import Callable
from typing import Any

from . import lenient_json
from .errors import Headers
from .usage import Usage, read_usage, usage_of_answer

END_MARKER = b"[DONE]"
# An event larger than this is passed on as any other, but not looked into.
MAX_EVENT_BYTES = 1 << 20
# The strings that hold what is generated, in the chunks of every API that is known here.
_TEXT = re.compile(
    rb'"(?:content|text|delta|reasoning_content|reasoning|thinking|arguments|partial_json)": ?"([^"\\\r\n]+)"'
)
_MAX_SHAPE_BYTES = 4096
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
# Looking for a byte by its number takes a tenth of the time.
_LF, _CR, _QUOTE, _BACKSLASH = b'\n\r"\\'


class StreamScanner:
    """Facts about one stream of OpenAI's chat or completions, kept up to date by `feed`. Other APIs' are subclasses.

    `num_content_chunks` counts the events that carried content, `has_content` says whether there was one. `usage` is
    the last one seen, `has_ended` whether the end marker was, `has_error` whether an error event was.
    """

    __slots__ = (
        "_after_text",
        "_before_text",
        "_data",
        "_event_bytes",
        "_event_name",
        "_is_first_line",
        "_is_oversized",
        "_line",
        "_skips_lf",
        "has_content",
        "has_ended",
        "has_error",
        "num_content_chunks",
        "usage",
    )

    read_usage: Callable[[object], Usage | None] = staticmethod(read_usage)

    @classmethod
    def usage_of_whole(cls, headers: Headers, body: bytes) -> Usage | None:  # noqa: ARG003  (one API has it in headers)
        """The usage of an answer that is no stream."""
        return usage_of_answer(body, cls.read_usage)

    def __init__(self) -> None:
        self.num_content_chunks = 0
        self.has_content = False
        self.has_ended = False
        self.has_error = False
        self.usage: Usage | None = None
        self._line: list[bytes] = []
        self._data: list[bytes] = []
        self._event_name = b""
        self._event_bytes = 0
        self._is_oversized = False
        self._is_first_line = True
        self._skips_lf = False
        # Around the text of the last piece that was one event with content and nothing else; b"": none yet.
        self._before_text = b""
        self._after_text = b""

    def feed(self, piece: bytes) -> None:
        """Take the next bytes, cut anywhere."""
        if self._event_bytes or self._skips_lf:
            self._feed_any(piece)
            return
        before, after = self._before_text, self._after_text
        if before and piece.startswith(before) and piece.endswith(after):
            text = piece[len(before) : -len(after)]
            # Without a quote, a line break and a backslash before the closing quote it is all one JSON string.
            if text and _QUOTE not in text and _LF not in text and _CR not in text and text[-1] != _BACKSLASH:
                self.num_content_chunks += 1
                return
        had_content, num_chunks = self.has_content, self.num_content_chunks
        usage, has_error, has_ended = self.usage, self.has_error, self.has_ended
        self._feed_any(piece)
        if (
            had_content
            and self.num_content_chunks == num_chunks + 1
            and self.usage is usage
            and self.has_error == has_error
            and self.has_ended == has_ended
            and not self._event_bytes
            and not self._skips_lf
        ):
            self._learn_shape(piece)

    def _learn_shape(self, piece: bytes) -> None:
        """`piece` said one thing, that there is content: so does every other that differs in one non-empty text."""
        text = _TEXT.search(piece)
        if text is not None and len(piece) <= _MAX_SHAPE_BYTES:
            self._before_text, self._after_text = piece[: text.start(1)], piece[text.end(1) :]

    def _feed_any(self, piece: bytes) -> None:
        if (
            not self._event_bytes
            and not self._skips_lf
            and piece.startswith(b"data: ")
            and piece.endswith(b"\n\n")
            and piece.find(_LF) == len(piece) - 2
            and _CR not in piece
        ):
            self._is_first_line = False
            self._dispatch(piece[6:-2])
        elif piece:
            self._feed_lines(piece)

    @property
    def is_between_events(self) -> bool:
        """Whether the bytes so far end where an event does, or before the first one."""
        return not self._event_bytes

    def _feed_lines(self, piece: bytes) -> None:
        if self._skips_lf:
            self._skips_lf = False
            if piece.startswith(b"\n"):
                piece = piece[1:]
        if b"\r" in piece:
            # A CR ends its line at once; an LF that follows in the next piece belongs to it.
            self._skips_lf = piece.endswith(b"\r")
            piece = piece.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        lines = piece.split(b"\n")
        last = lines.pop()
        for line in lines:
            if self._line:
                self._line.append(line)
                line = b"".join(self._line)
                self._line.clear()
            self._event_bytes += len(line) + 1
            self._take_line(line)
        if last:
            self._event_bytes += len(last)
            if self._overflows():
                # Something must stand for the line, or its end would look like the end of the event.
                self._line = [b":"]
            else:
                self._line.append(last)

    def _overflows(self) -> bool:
        if self._event_bytes > MAX_EVENT_BYTES:
            self._is_oversized = True
            self._data.clear()
        return self._is_oversized

    def _take_line(self, line: bytes) -> None:
        if self._is_first_line:
            self._is_first_line = False
            line = line.removeprefix(_BYTE_ORDER_MARK)
        if not line:
            self._end_event()
            return
        if self._overflows():
            return
        name, _, value = line.partition(b":")
        if value.startswith(b" "):
            value = value[1:]
        if name == b"data":
            self._data.append(value)
        elif name == b"event":
            self._event_name = value

    def _end_event(self) -> None:
        data, name, is_oversized = self._data, self._event_name, self._is_oversized
        if is_oversized:
            self._count_content()
        elif data:
            if name == b"error":
                self.has_error = True
            if len(data) == 1:
                self._dispatch(data[0])
            else:
                self._read(b"\n".join(data))  # what its bytes look like proves little here
        self._data = []
        self._event_name = b""
        self._event_bytes = 0
        self._is_oversized = False

    def _dispatch(self, data: bytes) -> None:
        if (
            self.has_content
            and (b'"finish_reason":null' in data or b'"finish_reason": null' in data)
            and (b'"usage"' not in data or b'"usage":null' in data)
            and b'"error"' not in data
            and b'""' not in data
            and b"{}" not in data
            and b'"content":null' not in data
        ):
            self.num_content_chunks += 1
            return
        self._read(data)

    def _read(self, data: bytes) -> None:
        if data.strip() == END_MARKER:
            self.has_ended = True
            return
        try:
            chunk = lenient_json.loads(data)
        except ValueError:
            return
        if type(chunk) is not dict:
            return
        self._take_chunk(chunk)

    def _take_chunk(self, chunk: dict[str, Any]) -> None:
        """The facts of one event's JSON."""
        if chunk.get("error"):
            self.has_error = True
        usage = self.read_usage(chunk)
        if usage is not None:
            self.usage = usage
        if has_content(chunk):
            self._count_content()

    def _count_content(self) -> None:
        self.num_content_chunks += 1
        self.has_content = True


def has_content(chunk: dict[str, Any]) -> bool:
    """Whether a chunk brings something generated: text, reasoning or a tool call, of any choice."""
    choices = chunk.get("choices")
    if type(choices) is not list:
        return False
    for choice in choices:
        if type(choice) is not dict:
            continue
        if choice.get("text"):
            return True
        delta = choice.get("delta")
        if type(delta) is dict and any(value for name, value in delta.items() if name != "role"):
            return True
    return False
