"""The gateway's own errors in the shape of the API that was called, so that its clients understand them."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import orjson

from ..errors import GatewayError


@dataclass(frozen=True, slots=True)
class ErrorShape:
    """`body` writes an error as JSON; `statuses` has the statuses that this API names otherwise.

    `event_start` begins an error event in the middle of a stream, up to that JSON.
    """

    body: Callable[[GatewayError], bytes]
    event_start: bytes = b"data: "
    statuses: Mapping[int, int] = field(default_factory=dict)

    def status(self, error: GatewayError) -> int:
        return self.statuses.get(error.status, error.status)

    def event(self, error: GatewayError) -> bytes:
        """The error as an event of a stream that can't go on."""
        return b"%b%b\n\n" % (self.event_start, self.body(error))


_ANTHROPIC_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}


def _anthropic(error: GatewayError) -> bytes:
    fallback = "invalid_request_error" if error.status < 500 else "api_error"
    kind = _ANTHROPIC_TYPES.get(error.status, fallback)
    return orjson.dumps({"type": "error", "error": {"type": kind, "message": error.message}})


_TGI_TYPES = {401: "authentication", 403: "authentication", 429: "overloaded", 503: "overloaded"}


def _tgi(error: GatewayError) -> bytes:
    fallback = "validation" if error.status < 500 else "generation"
    return orjson.dumps({"error": error.message, "error_type": _TGI_TYPES.get(error.status, fallback)})


OPENAI = ErrorShape(GatewayError.body)
ANTHROPIC = ErrorShape(_anthropic, b"event: error\ndata: ")
TGI = ErrorShape(_tgi, b"data:", {400: 422})
