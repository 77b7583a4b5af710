"""What can go wrong, and what the caller is told.

`GatewayError` is everything that becomes an HTTP answer of ours, in OpenAI's error shape; what a replica caused is in
`upstream_errors`, what the gateway can't take on in `overload_errors`. `ClientLeft` and `ResponseBroken` are no
answers: the first has nobody to answer, the second comes after the head was sent, when the only honest thing left is to
end the connection visibly broken.
"""
# ruff: noqa: N818  (named after what happened; they are told apart by their base classes)

import math

import orjson

from policies.types import Lane, Reason

Headers = list[tuple[bytes, bytes]]


class ClientLeft(Exception):
    """The client closed its connection; whatever was being done for it stops."""


class ResponseBroken(Exception):
    """A response that had begun can't be finished. Raised out of the application, so that the server cuts it off.

    `is_told`: what was sent says so itself, in an error event.
    """

    def __init__(self, message: str, *, is_told: bool = False) -> None:
        super().__init__(message)
        self.is_told = is_told


class GatewayError(Exception):
    """An answer of the gateway's own.

    `message` is for people, `code` and `type` for programs (OpenAI's names where it has one), `param` names the field
    at fault, `reason` goes into `x-tailgate-reason`, `retry_after_s` is set where waiting helps. `outcome` is
    the record's word for it. `closes` asks the server to end the client's connection, because the rest of the request
    was never read or because the gateway is going away.
    """

    status = 500
    type = "server_error"
    code: str | None = "internal_error"
    outcome = "failed"
    closes = False
    lane: Lane | None = None
    """The one that the request would have been in."""

    def __init__(
        self,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        reason: str | None = None,
        retry_after_s: float | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.reason = reason
        self.retry_after_s = retry_after_s
        if code is not None:
            self.code = code

    def body(self) -> bytes:
        """The error object as OpenAI clients expect it."""
        error = {"message": self.message, "type": self.type, "param": self.param, "code": self.code}
        return orjson.dumps({"error": error})

    def headers(self) -> Headers:
        """Headers that belong to the error; whole seconds in Retry-After, at least one (RFC 9110, 10.2.3)."""
        headers: Headers = [(b"content-type", b"application/json")]
        if self.retry_after_s is not None:
            headers.append((b"retry-after", b"%d" % max(1, math.ceil(self.retry_after_s))))
        if self.closes:
            headers.append((b"connection", b"close"))
        return headers


class InternalError(GatewayError):
    """A fault of our own; the details are in the log, not in the answer."""

    def __init__(self) -> None:
        super().__init__("The gateway failed to handle this request.")


class BadRequest(GatewayError):
    """The request can't be understood; `param` names the field."""

    status = 400
    type = "invalid_request_error"
    outcome = "bad-request"
    code = None


class ContextTooLong(BadRequest):
    """The prompt alone is longer than what any replica takes."""

    def __init__(self, model: str, prompt_tokens: int, longest_tokens: int) -> None:
        super().__init__(
            f"The maximum context length of `{model}` is {longest_tokens} tokens; the prompt has {prompt_tokens}.",
            code="context_length_exceeded",
        )


class Unauthorized(GatewayError):
    """There is no API key, or none that is known. Says nothing of the key that was sent."""

    status = 401
    type = "invalid_request_error"
    outcome = "bad-request"
    code = "invalid_api_key"

    def headers(self) -> Headers:
        return [*super().headers(), (b"www-authenticate", b"Bearer")]


class Forbidden(GatewayError):
    """The API key is known and doesn't allow this."""

    status = 403
    type = "invalid_request_error"
    outcome = "bad-request"
    code = "forbidden"


class RateLimited(GatewayError):
    """One of the key's limits. Without `retry_after_s` waiting does not help, and OpenAI's clients are told so."""

    status = 429
    type = "rate_limit_error"
    outcome = "rejected"
    code = "rate_limit_exceeded"

    def headers(self) -> Headers:
        headers = super().headers()
        if self.retry_after_s is None:
            headers.append((b"x-should-retry", b"false"))
        return headers


class UnknownModel(GatewayError):
    """No replica serves the model that was asked for."""

    status = 404
    type = "invalid_request_error"
    outcome = "bad-request"
    code = "model_not_found"

    def __init__(self, model: str | None, served: list[str]) -> None:
        """`model` None: none was named, and there is no default."""
        known = ", ".join(f"`{name}`" for name in served) or "none at the moment"
        if model is None:
            message = f"The request names no model and no default_model is set; served here: {known}."
        else:
            message = f"The model `{model[:200]}` does not exist. Served here: {known}."
        super().__init__(message, param="model", reason=Reason.UNKNOWN_MODEL)


class NotFound(GatewayError):
    """There is nothing here, or nothing for this caller."""

    status = 404
    type = "invalid_request_error"
    outcome = "bad-request"
    code = "not_found"

    def __init__(self) -> None:
        super().__init__("Not Found")


class UnservedRoute(GatewayError):
    """The model exists, but no replica that serves it can do this."""

    status = 404
    type = "invalid_request_error"
    outcome = "bad-request"
    code = "route_not_served"

    def __init__(self, path: str) -> None:
        super().__init__(f"No replica of this model serves {path}.")


class MethodNotAllowed(GatewayError):
    """The route exists, with another method."""

    status = 405
    type = "invalid_request_error"
    outcome = "bad-request"
    code = "method_not_allowed"

    def __init__(self, method: str) -> None:
        super().__init__(f"This route takes {method}.")
        self._method = method

    def headers(self) -> Headers:
        return [*super().headers(), (b"allow", self._method.encode())]


class ReceiveTimeout(GatewayError):
    """The client took too long to send its request."""

    status = 408
    type = "invalid_request_error"
    outcome = "bad-request"
    code = "request_timeout"
    closes = True

    def __init__(self, limit_s: float) -> None:
        super().__init__(f"The request did not arrive within {limit_s:g} seconds.")


class BodyTooLarge(GatewayError):
    """The body exceeds `limits.max_body_bytes`."""

    status = 413
    type = "invalid_request_error"
    outcome = "bad-request"
    code = "request_too_large"
    closes = True

    def __init__(self, max_bytes: int) -> None:
        super().__init__(f"The request body exceeds the limit of {max_bytes} bytes.")


class MalformedBody(GatewayError):
    """The framing of the request's body is broken: where it ends can't be known."""

    status = 400
    type = "invalid_request_error"
    outcome = "bad-request"
    code = "malformed_body"
    closes = True

    def __init__(self) -> None:
        super().__init__("The request body is not in valid HTTP/1.1 chunked coding.")


class UnsupportedEncoding(GatewayError):
    """The body is packed in a way that can't be undone here, and scheduling has to read it."""

    status = 415
    type = "invalid_request_error"
    outcome = "bad-request"
    code = "unsupported_content_encoding"
    closes = True

    def __init__(self) -> None:
        super().__init__("The Content-Encodings of a request body that are understood here are gzip and deflate.")

    def headers(self) -> Headers:
        return [*super().headers(), (b"accept-encoding", b"gzip, deflate")]
