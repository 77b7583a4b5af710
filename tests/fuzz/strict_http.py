"""A parser of requests that takes nothing two servers could read differently: small, slow, and stricter than RFC 9112.

It is the fuzz's own, and shares nothing with the gateway's.
"""

import re
from typing import NamedTuple

# The form for proxies too, whose scheme and host say nothing of where a request begins or ends.
_LINE = re.compile(rb"(?P<method>[A-Z]+) (?:[!-.0-~]+://[!-.0-~]*)?(?P<target>/[!-~]*) HTTP/1\.1")
_HEADER = re.compile(rb"(?P<name>[!#$%&'*+.^_`|~0-9A-Za-z-]+):[ \t]*(?P<value>[^\x00-\x08\x0a-\x1f\x7f]*?)[ \t]*")
_CHUNK = re.compile(rb"(?P<size>[0-9A-Fa-f]{1,8})(?:[ \t]*;[^\x00-\x08\x0a-\x1f\x7f]*)?")
_ONCE = frozenset({b"host", b"content-length", b"transfer-encoding", b"content-type", b"expect", b"content-encoding"})


class Parsed(NamedTuple):
    target: bytes
    body: bytes


class AmbiguousError(Exception):
    """What follows can be read in more than one way, or isn't all there."""


def unambiguous(data: bytes) -> list[Parsed]:
    """The requests at the beginning of these bytes that everybody reads alike."""
    found = []
    reader = _Reader(data)
    try:
        while True:
            found.append(reader.request())
    except AmbiguousError:
        return found


class _Reader:
    def __init__(self, data: bytes) -> None:
        self._data = data

    def _line(self) -> bytes:
        line, end, rest = self._data.partition(b"\r\n")
        if not end or b"\n" in line or b"\r" in line:
            raise AmbiguousError
        self._data = rest
        return line

    def _take(self, length: int) -> bytes:
        if len(self._data) < length:
            raise AmbiguousError
        taken, self._data = self._data[:length], self._data[length:]
        return taken

    def _headers(self) -> list[tuple[bytes, bytes]]:
        headers = []
        while line := self._line():
            match = _HEADER.fullmatch(line)
            if match is None:
                raise AmbiguousError
            headers.append((match["name"].lower(), match["value"]))
        return headers

    def request(self) -> Parsed:
        """The next one. Raises AmbiguousError."""
        while self._data.startswith(b"\r\n"):  # RFC 9112, 2.2: to be ignored
            self._data = self._data[2:]
        start = _LINE.fullmatch(self._line())
        if start is None:
            raise AmbiguousError
        headers = self._headers()
        names = [name for name, _ in headers]
        by_name = dict(headers)
        if any(names.count(name) > 1 for name in _ONCE) or b"host" not in by_name:
            raise AmbiguousError
        length, coding = by_name.get(b"content-length"), by_name.get(b"transfer-encoding")
        if length is not None and coding is not None:
            raise AmbiguousError
        if coding is not None:
            if coding.lower() != b"chunked":
                raise AmbiguousError
            return Parsed(start["target"], self._chunked())
        if length is None:
            return Parsed(start["target"], b"")
        if not length.isdigit() or len(length) > 15:
            raise AmbiguousError
        return Parsed(start["target"], self._take(int(length)))

    def _chunked(self) -> bytes:
        body = b""
        while True:
            match = _CHUNK.fullmatch(self._line())
            if match is None:
                raise AmbiguousError
            if not (size := int(match["size"], 16)):
                self._headers()
                return body
            body += self._take(size)
            if self._take(2) != b"\r\n":
                raise AmbiguousError
