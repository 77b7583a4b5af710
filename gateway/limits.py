"""A request's share of its key's limits: a scope that takes it once and gives it back once, whatever ends the request.

`policies.limits` decides; all of it is synchronous, so no cancellation can come between.
"""

import asyncio
import math
from collections.abc import Callable
from types import TracebackType
from typing import Self

from policies.limits import Account, Limit, Refusal, Standing

from .attribution import Record
from .errors import ClientLeft, Headers, RateLimited, ResponseBroken

_WHAT = {
    Limit.REQUESTS_PER_MIN: "{} requests per minute",
    Limit.TOKENS_PER_MIN: "{} tokens per minute",
    Limit.IN_FLIGHT_REQUESTS: "{} requests at the same time",
    Limit.IN_FLIGHT_TOKENS: "{} tokens in flight",
}
_PAID_ENDS = (ClientLeft, ResponseBroken, asyncio.CancelledError)
BUSY_RETRY_S = 1.0
"""Until requests in flight have ended, which nobody knows."""


class Rates:
    """A key's account, and how it stands in words of HTTP. Implements `attribution.Standing`."""

    __slots__ = ("account", "clock")

    def __init__(self, account: Account, clock: Callable[[], float]) -> None:
        self.account = account
        self.clock = clock

    def headers(self) -> Headers:
        """In OpenAI's names and forms."""
        now_s = self.clock()
        return [
            *_rate_headers(b"requests", self.account.requests_standing(now_s)),
            *_rate_headers(b"tokens", self.account.tokens_standing(now_s)),
        ]


class Unlimited:
    """The scope of a request whose key has no limits."""

    __slots__ = ()

    def __enter__(self) -> "Unlimited | Quota":
        return self

    def reserve(self, prompt_tokens: int, max_output_tokens: int | None) -> None:
        """Takes nothing."""

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        pass


class Quota(Unlimited):
    """What one request holds of its key's account, as a context manager around the request's whole life.

    Entering takes a request credit and a place, `reserve` the tokens; both raise RateLimited. When the scope is left
    the record says what was really used.
    """

    __slots__ = ("_assumed_output_tokens", "_rates", "_record")

    def __init__(self, rates: Rates, record: Record, *, assumed_output_tokens: int) -> None:
        self._rates = rates
        self._record = record
        self._assumed_output_tokens = assumed_output_tokens

    def __enter__(self) -> Self:
        rates, record = self._rates, self._record
        record.standing = rates
        refusal = rates.account.enter(record.request_id, rates.clock())
        if refusal is not None:
            raise _refused(refusal)
        return self

    def reserve(self, prompt_tokens: int, max_output_tokens: int | None) -> None:
        """Takes the tokens it may use; without a bound of the caller's, an assumed number of output tokens."""
        rates = self._rates
        output_tokens = self._assumed_output_tokens if max_output_tokens is None else max_output_tokens
        refusal = rates.account.reserve(self._record.request_id, prompt_tokens, output_tokens, rates.clock())
        if refusal is not None:
            raise _refused(refusal)

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        rates, record = self._rates, self._record
        rates.account.leave(record.request_id, used_tokens(record, exc), rates.clock())


UNLIMITED = Unlimited()


def used_tokens(record: Record, exc: BaseException | None) -> int | None:
    """Prompt and output tokens that a request is charged for; None: it wasn't served, and costs nothing.

    An answer that didn't come about, through us or a replica, is free; of one that broke off, what there was is paid.
    So does a client that leaves: its prompt is being computed from the moment it was sent. The replica's own count goes
    before ours.
    """
    if record.attempt == 0 or not (exc is None or isinstance(exc, _PAID_ENDS)):
        return None
    status = record.status
    if status is not None and status >= 400:
        return None if status >= 500 or status == 429 else 0
    prompt_tokens = record.prompt_tokens if record.replica_prompt_tokens is None else record.replica_prompt_tokens
    return (prompt_tokens or 0) + (record.output_tokens or 0)


def _refused(refusal: Refusal) -> RateLimited:
    what = _WHAT[refusal.limit].format(refusal.allowed)
    if refusal.retry_after_s is None:
        return RateLimited(
            f"This request is larger than this API key's limit of {what} allows.", reason=refusal.limit.value
        )
    return RateLimited(
        f"This API key's limit of {what} is reached.",
        reason=refusal.limit.value,
        retry_after_s=max(refusal.retry_after_s, BUSY_RETRY_S),
    )


def _rate_headers(what: bytes, standing: Standing | None) -> Headers:
    if standing is None:
        return []
    return [
        (b"x-ratelimit-limit-%b" % what, b"%d" % standing.limit),
        (b"x-ratelimit-remaining-%b" % what, b"%d" % standing.remaining),
        (b"x-ratelimit-reset-%b" % what, duration(standing.reset_s).encode()),
    ]


def duration(seconds: float) -> str:
    """A duration in the form of OpenAI's headers: 0s, 20ms, 8.64s, 6m0s."""
    ms = math.ceil(round(seconds * 1e3, 3))
    if ms < 1000:
        return f"{ms}ms" if ms else "0s"
    minutes, ms = divmod(ms, 60_000)
    return (f"{minutes}m" if minutes else "") + f"{ms / 1000:g}s"
