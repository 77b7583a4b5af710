"""Which headers travel, both ways: all but what belongs to one connection only (RFC 9110, 7.6.1) or to the gateway."""

import re
from dataclasses import dataclass, field, replace

from policies.types import DECLARABLE_LANES, Lane

from .. import cors
from ..disconnect import Message
from ..errors import BadRequest, Headers, UnsupportedEncoding
from ..unpack import CODINGS

HOP_BY_HOP = frozenset(
    {
        b"connection",
        b"keep-alive",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
    }
)
_OURS = b"x-tailgate-"
# Which pages may read an answer is for the gateway to say, as it is who they talk to.
_NOT_RETURNED = (_OURS, cors.PREFIX)
_DEADLINE_DIGITS = 8  # more than a day
_QUERY = re.compile(rb"[!-~]*")
_PRIORITY = b"x-vllm-priority"
# Made anew for the connection upstream, answered by our own server, or ours to set.
_NOT_FORWARDED = HOP_BY_HOP | {b"host", b"content-length", b"expect", _PRIORITY}
# Headers that keys are sent in: the replica's own goes in their place, or the client's as they are.
CREDENTIALS = frozenset({b"authorization", b"x-api-key", b"api-key", b"x-goog-api-key"})
_LOOKED_AT = _NOT_FORWARDED | CREDENTIALS | {b"content-encoding"}
# How the client wants its answer, and the id by which an engine tells calls apart: it takes none twice at a time.
_OF_THE_REQUEST = (b"accept-encoding:", b"range:", b"x-request-id:")
# vLLM's sign: lower goes first.
_WIRE_PRIORITY = {Lane.INTERACTIVE: 0, Lane.STANDARD: 1, Lane.LONG: 2, Lane.OVERLONG: 3, Lane.BACKGROUND: 4}


@dataclass(slots=True)
class RequestHead:
    """What the headers of a hot request say: the lines to forward (without host, length, credentials), and ours."""

    forwarded: bytes = field(repr=False)
    credentials: bytes = field(repr=False)
    content_length: int | None
    lane: Lane | None
    wants_timing: bool
    is_packed: bool = False
    """Whether the body came in one of `unpack.CODINGS`; it goes on without."""
    first_token_within_s: float | None = None
    """From its arrival."""


def read_head(headers: Headers) -> RequestHead:
    """Sort the request's headers. Names are lower-case, as ASGI has them.

    Raises UnsupportedEncoding, or BadRequest for a header of ours with an unknown value.
    """
    lines: list[bytes] = []
    num_lines = 0
    credentials: list[bytes] = []
    content_length: int | None = None
    lane: Lane | None = None
    wants_timing = is_packed = False
    within_s: float | None = None
    scoped = connection_scoped(headers)
    for name, value in headers:
        if name not in _LOOKED_AT and not name.startswith(_OURS):
            if name not in scoped:
                lines += (name, b": ", value, b"\r\n")
                num_lines += 1
        elif name in CREDENTIALS:
            credentials += (name, b": ", value, b"\r\n")
        elif name == b"content-length":
            content_length = int(value) if value.isdigit() else None
        elif name in _NOT_FORWARDED or name in scoped:
            continue
        elif name.startswith(_OURS):
            if name == b"x-tailgate-lane":
                lane = _declared(value)
            elif name == b"x-tailgate-timing":
                if value.strip().lower() != b"stream":
                    raise BadRequest("`x-tailgate-timing` must be: stream.", param="x-tailgate-timing")
                wants_timing = True
            elif name == b"x-tailgate-deadline-ms":
                within_s = _deadline_s(value)
        elif name == b"content-encoding":
            coding = value.strip().lower()
            is_packed = coding in CODINGS
            if not is_packed and coding not in (b"", b"identity"):
                raise UnsupportedEncoding
    forwarded = b"".join(lines)
    if forwarded.count(b"\n") != num_lines:
        raise BadRequest("A header value contains a line break.")
    return RequestHead(forwarded, b"".join(credentials), content_length, lane, wants_timing, is_packed, within_s)


def withhold(head: RequestHead, query: bytes, secret: bytes) -> tuple[RequestHead, bytes]:
    """Head and query without the client's credentials, and without the key wherever else it was sent along."""
    forwarded = head.forwarded
    if secret in forwarded:
        lines = forwarded.splitlines(keepends=True)
        forwarded = b"".join(line for line in lines if secret not in line)
    kept = RequestHead(
        forwarded,
        b"",
        head.content_length,
        head.lane,
        head.wants_timing,
        head.is_packed,
        head.first_token_within_s,
    )
    return kept, b"" if secret in query else query


def of_own_call(head: RequestHead) -> RequestHead:
    """For a call of ours on behalf of the request: its answer comes to us, as it is, and its id isn't the request's."""
    lines = head.forwarded.splitlines(keepends=True)
    kept = b"".join(line for line in lines if not line.startswith(_OF_THE_REQUEST))
    return replace(head, forwarded=kept + b"accept-encoding: identity\r\n")


def connection_scoped(headers: Headers) -> set[bytes]:
    """Names that a Connection header declares to be of this connection only, in lower case."""
    scoped: set[bytes] = set()
    for name, value in headers:
        if name == b"connection":
            scoped.update(token.strip().lower() for token in value.split(b","))
    return scoped


def response_headers(headers: Headers) -> Headers:
    """The replica's headers that go on to the client, in their order, repeated ones included."""
    scoped = connection_scoped(headers)
    passed = [header for header in headers if header[0] not in HOP_BY_HOP and not header[0].startswith(_NOT_RETURNED)]
    return [header for header in passed if header[0] not in scoped] if scoped else passed


def request_bytes(
    prefix: bytes, head: RequestHead, num_body_bytes: int, *, authorization: bytes | None, priority_lane: Lane | None
) -> bytes:
    """The head of the request upstream. `prefix` is the request line and the Host of the replica.

    `authorization` is the replica's own, in place of the client's credentials; `priority_lane` is set for replicas that
    schedule by priority.
    """
    parts = [prefix, b"content-length: %d\r\n" % num_body_bytes, head.forwarded]
    parts.append(head.credentials if authorization is None else b"authorization: %b\r\n" % authorization)
    if priority_lane is not None:
        parts.append(b"%b: %d\r\n" % (_PRIORITY, _WIRE_PRIORITY[priority_lane]))
    parts.append(b"\r\n")
    return b"".join(parts)


def _declared(value: bytes) -> Lane:
    text = value.strip().decode("latin-1").lower()
    for lane in DECLARABLE_LANES:
        if text == lane.value:
            return lane
    known = ", ".join(lane.value for lane in DECLARABLE_LANES)
    raise BadRequest(f"`x-tailgate-lane` must be one of: {known}.", param="x-tailgate-lane")


def _deadline_s(value: bytes) -> float:
    text = value.strip()
    if not (text.isdigit() and len(text) <= _DEADLINE_DIGITS and int(text)):
        raise BadRequest(
            f"`x-tailgate-deadline-ms` must be a whole number of milliseconds, 1 to {10**_DEADLINE_DIGITS - 1}.",
            param="x-tailgate-deadline-ms",
        )
    return int(text) / 1e3


def read_query(scope: Message) -> bytes:
    """The query, which goes on as it came. Raises BadRequest for bytes that would end the request line."""
    query: bytes = scope.get("query_string", b"")
    if query and _QUERY.fullmatch(query) is None:
        raise BadRequest("The query has characters that must be encoded.")
    return query


def raw_headers(scope: Message) -> Headers:
    """The headers of an ASGI scope."""
    headers: Headers = scope["headers"]
    return headers
