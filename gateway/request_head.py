"""The head of a client's request: whether it can be accepted, and what the application is told of it.

The parser (llhttp, strict) refuses what two servers could read differently: both length headers, a repeated length,
folded lines, bare line feeds, malformed chunks. What is left to refuse is here.
"""

import urllib.parse
from dataclasses import dataclass
from typing import Any

import httptools

from . import refusals
from .errors import Headers
from .front import ConnectionBounds
from .refusals import Refusal

MAX_URL_BYTES = 8192
# Looked at here, or read by whoever comes next as if there could be only one.
_UNIQUE = frozenset({b"host", b"transfer-encoding", b"expect", b"content-type", b"content-encoding"})
_OF_UPGRADES = frozenset({b"upgrade", b"http2-settings", b"connection"})
_ASGI = {"version": "3.0", "spec_version": "2.3"}


class RefusedError(Exception):
    """Raised out of a parser's callback, which wraps it."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(refusal.message)
        self.refusal = refusal


@dataclass(slots=True)
class RequestHead:
    """As it came; names of headers in lower case. `version` is "1.1", "1.0" or what else the client wrote."""

    method: bytes
    url: bytes
    version: str
    headers: Headers

    def check(self, bounds: ConnectionBounds, num_bytes: int) -> bool:
        """Whether the client waits for "100 Continue". `num_bytes`: how many bytes the head has at most.

        Raises RefusedError.
        """
        if len(self.headers) > bounds.max_headers:
            raise RefusedError(refusals.TOO_MANY_HEADERS)
        if len(self.url) > MAX_URL_BYTES:
            raise RefusedError(refusals.URL_TOO_LONG)
        if num_bytes > bounds.max_head_bytes:
            num_bytes = len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers)
            if num_bytes > bounds.max_head_bytes:
                raise RefusedError(refusals.HEAD_TOO_LARGE)
        seen: dict[bytes, bytes] = {}
        for name, value in self.headers:
            if name in _UNIQUE:
                if name in seen:
                    raise RefusedError(refusals.BAD_HOST if name == b"host" else refusals.AMBIGUOUS)
                seen[name] = value
        is_new = self.version == "1.1"
        if not is_new and self.version != "1.0":
            raise RefusedError(refusals.UNKNOWN_VERSION)
        if is_new and b"host" not in seen:
            raise RefusedError(refusals.BAD_HOST)
        if (coding := seen.get(b"transfer-encoding")) is not None:
            if not is_new:
                raise RefusedError(refusals.BAD_HTTP)
            if coding.lower() != b"chunked":
                raise RefusedError(refusals.UNKNOWN_CODING)
        if not is_new or (expectation := seen.get(b"expect")) is None:
            return False
        if expectation.lower() != b"100-continue":
            raise RefusedError(refusals.UNKNOWN_EXPECTATION)
        return True

    def scope(self, **of_connection: Any) -> dict[str, Any]:
        """ASGI's scope; `of_connection` is its part that all requests of a connection have in common."""
        if self.url.startswith(b"/"):
            raw_path, _, query = self.url.partition(b"?")
        else:  # the form that is meant for proxies, or *
            parsed = httptools.parse_url(self.url)
            raw_path, query = parsed.path or b"/", parsed.query or b""
        path = raw_path.decode("ascii")
        return {
            "type": "http",
            "asgi": _ASGI,
            "http_version": self.version,
            "method": self.method.decode("ascii"),
            "root_path": "",
            "path": urllib.parse.unquote(path) if "%" in path else path,
            "raw_path": raw_path,
            "query_string": query,
            "headers": self.headers,
            **of_connection,
        }

    def without_upgrade(self) -> bytes:
        """The head as bytes, without its wish to speak something else."""
        lines = [b"%b %b HTTP/%b\r\n" % (self.method, self.url, self.version.encode())]
        closes = False
        for name, value in self.headers:
            closes = closes or (name == b"connection" and b"close" in value.lower())
            if name not in _OF_UPGRADES:
                lines.append(b"%b: %b\r\n" % (name, value))
        lines.append(b"connection: close\r\n\r\n" if closes else b"\r\n")
        return b"".join(lines)
