"""Requests that are understood and not served, because there is no room, no replica or no time left for them."""
# ruff: noqa: N818  (named after what happened, as in `errors`)

from policies.types import Lane, Reason

from .errors import GatewayError

_RATE_LIMITED = frozenset({Reason.QUEUE_FULL, Reason.CAPACITY, Reason.LANE, Reason.OVERLOAD})
_WHY = {
    Reason.CAPACITY: "the request needs more tokens than the replicas may hold",
    Reason.LANE: "this lane takes no more requests",
    Reason.NO_REPLICA: "no replica is available for this model",
    Reason.QUEUE_FULL: "the queue is full",
    Reason.QUEUE_TIMEOUT: "it waited too long for a replica",
    Reason.DEADLINE: "its deadline came before a replica had room for it",
    Reason.OVERLOAD: "more comes than can be served, and what others sent goes before it",
    Reason.UNKNOWN_MODEL: "no replica serves this model",
    Reason.DRAINING: "the gateway is shutting down",
}
_DEFAULT_RETRY_AFTER_S = 1.0


class Overloaded(GatewayError):
    """Turned away before queueing: 429 where the caller sends too much, 503 where the service can't, 504 where the
    time that the caller gave is over."""

    outcome = "rejected"

    def __init__(
        self, reason: Reason, retry_after_s: float | None = None, *, closes: bool = False, lane: Lane | None = None
    ) -> None:
        super().__init__(
            f"The request was not served: {_WHY[reason]}.",
            code=str(reason).replace("-", "_"),
            reason=str(reason),
            retry_after_s=_DEFAULT_RETRY_AFTER_S if retry_after_s is None else retry_after_s,
        )
        self.closes = closes
        self.lane = lane
        if reason in _RATE_LIMITED:
            self.status, self.type = 429, "rate_limit_error"
        elif reason is Reason.DEADLINE:
            self.status, self.type = 504, "timeout_error"
        else:
            self.status, self.type = 503, "service_unavailable_error"


class ShuttingDown(GatewayError):
    """The request was being served when the time to shut down was over."""

    status = 503
    type = "service_unavailable_error"
    code = "draining"
    closes = True

    def __init__(self) -> None:
        super().__init__("The gateway shut down before the answer was complete.", reason="draining", retry_after_s=1.0)


class Evicted(Overloaded):
    """Left the queue undispatched."""

    outcome = "evicted"
