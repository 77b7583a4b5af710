"""What httptools' parser says of a replica's response: its head, the pieces of its body, its end."""

import httptools

from .errors import Headers

_BODYLESS = frozenset({204, 304})


class ResponseReader:
    """One response after the other; the parser calls the methods that begin with `on_`.

    Read-only outside: `status`, `headers` (names in lower case, in order), `has_head`, `is_complete`.
    """

    __slots__ = (
        "_buffered_bytes",
        "_is_for_head",
        "_keeps_alive",
        "_parser",
        "_pieces",
        "has_head",
        "headers",
        "is_complete",
        "status",
    )

    def __init__(self) -> None:
        self._parser = httptools.HttpResponseParser(self)
        self._expect_response(is_for_head=False)

    def _expect_response(self, *, is_for_head: bool) -> None:
        """Forget the response before. `is_for_head`: no body comes, whatever the head says."""
        self._is_for_head = is_for_head
        self.status = 0
        self.headers: Headers = []
        self.has_head = False
        self.is_complete = False
        self._keeps_alive = False
        self._pieces: list[bytes] = []
        self._buffered_bytes = 0

    def _renew_parser(self) -> None:
        """After the answer to a HEAD the parser waits for a body that doesn't come; a new one knows nothing of it."""
        if self._is_for_head:
            self._parser = httptools.HttpResponseParser(self)

    def _take(self) -> bytes:
        """The pieces of the body so far, which are not kept."""
        pieces = self._pieces
        data = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        pieces.clear()
        self._buffered_bytes = 0
        return data

    def _ends_with_connection(self) -> bool:
        """Whether the end of the connection is the end of the body, which nothing else frames."""
        return self.status not in _BODYLESS and not any(
            name == b"content-length" or (name == b"transfer-encoding" and b"chunked" in value.lower())
            for name, value in self.headers
        )

    def on_message_begin(self) -> None:
        if self.has_head:
            # A second answer to one request: whatever it is, this connection can't be trusted with another.
            self._keeps_alive = False

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self.has_head:  # afterwards they are trailers, which end with this hop
            self.headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        if self.has_head:
            return
        status = self._parser.get_status_code()
        if not 100 <= status < 600:  # RFC 9110, 15: not valid
            raise httptools.HttpParserError("a status that doesn't exist")
        if status < 200:
            if status == 101:
                raise httptools.HttpParserError("an upgrade that wasn't asked for")
            self.headers = []
            return
        self.status = status
        self.has_head = True
        self._keeps_alive = self._parser.should_keep_alive()
        if self._is_for_head:
            self.is_complete = True

    def on_body(self, body: bytes) -> None:
        if not self.is_complete:
            self._pieces.append(body)
            self._buffered_bytes += len(body)

    def on_message_complete(self) -> None:
        if self.has_head:
            self.is_complete = True
