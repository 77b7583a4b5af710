"""Answers to requests that never get to the application."""

from dataclasses import dataclass

import orjson

from .cycle import STATUS_LINES


@dataclass(frozen=True, slots=True)
class Refusal:
    """`reason` is its label in the metrics."""

    status: int
    reason: str
    message: str

    def response(self, date: bytes) -> bytes:
        """The whole answer, in OpenAI's shape since it can't be known which API was meant. `date`: that header."""
        kind = "invalid_request_error" if self.status < 500 else "service_unavailable_error"
        error = {"message": self.message, "type": kind, "param": None, "code": self.reason.replace("-", "_")}
        body = orjson.dumps({"error": error})
        retry = b"retry-after: 1\r\n" if self.status in (429, 503) else b""
        head = b"%b%bcontent-type: application/json\r\ncontent-length: %d\r\nconnection: close\r\n%b\r\n"
        return head % (STATUS_LINES[self.status], date, len(body), retry) + body


BAD_HTTP = Refusal(400, "bad-http", "This is not a valid HTTP/1.1 request.")
BAD_HOST = Refusal(400, "bad-http", "A request needs exactly one Host header.")
AMBIGUOUS = Refusal(400, "bad-http", "A header that there can be one of is repeated.")
NO_TUNNEL = Refusal(405, "bad-http", "There are no tunnels here.")
UNKNOWN_EXPECTATION = Refusal(417, "bad-http", "The only expectation understood here is 100-continue.")
UNKNOWN_CODING = Refusal(501, "bad-http", "The only Transfer-Encoding understood here is chunked.")
UNKNOWN_VERSION = Refusal(505, "bad-http", "The versions understood here are HTTP/1.1 and HTTP/1.0.")
URL_TOO_LONG = Refusal(414, "head-too-large", "The request's URL is too long.")
HEAD_TOO_LARGE = Refusal(431, "head-too-large", "The request's head is too large.")
TOO_MANY_HEADERS = Refusal(431, "head-too-large", "The request has too many headers.")
HEAD_TIMEOUT = Refusal(408, "head-timeout", "The request's head did not arrive in time.")
TOO_MUCH_AHEAD = Refusal(429, "too-much-ahead", "Too much was sent ahead of the answers.")
TOO_MANY_CONNECTIONS = Refusal(503, "too-many-connections", "There are too many connections.")
REASONS = ("bad-http", "head-too-large", "head-timeout", "too-much-ahead", "too-many-connections")
