"""What a replica does wrong before its answer has begun, as its caller is told."""
# ruff: noqa: N818  (named after what happened, as in `errors`)

from .errors import GatewayError


class UpstreamError(GatewayError):
    """A replica failed before its answer began (502), unless a subclass says otherwise."""

    status = 502
    type = "upstream_error"
    code = "upstream_error"


class ConnectFailed(UpstreamError):
    """No connection to the replica. `is_refused`: because nobody listens there, or nothing leads there."""

    code = "upstream_connect_failed"

    def __init__(self, *, is_refused: bool = False) -> None:
        super().__init__("The replica could not be reached.", reason="upstream-connect", retry_after_s=1.0)
        self.is_refused = is_refused


class UpstreamClosed(UpstreamError):
    """The replica closed the connection before its answer was complete."""

    code = "upstream_closed"

    def __init__(self) -> None:
        super().__init__("The replica closed the connection before its answer was complete.", reason="upstream-closed")


class UpstreamGarbled(UpstreamError):
    """What the replica sent is not HTTP/1.1."""

    code = "upstream_protocol_error"

    def __init__(self) -> None:
        super().__init__("The replica sent an invalid response.", reason="upstream-protocol")


class UpstreamTimeout(UpstreamError):
    """The replica kept silent for longer than allowed."""

    status = 504
    type = "timeout_error"
    code = "upstream_timeout"

    def __init__(self, limit_s: float) -> None:
        super().__init__(f"The replica sent nothing for {limit_s:g} seconds.", reason="upstream-timeout")
