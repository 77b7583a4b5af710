"""What one key may use: requests and tokens per minute, and how much at the same time.

Rates are credit buckets: full at first, refilled evenly, at most a minute's worth. A request takes one request credit
and a place when it comes in, and as many token credits as it may use once its prompt is counted; when it ends, what it
really used is settled. What was taken is held by request id and given back exactly once.

Somebody who used more than was taken (an answer without a bound may be longer than assumed) is in debt, and waits
until the refill has paid it. So over time the rate holds whatever the requests claim beforehand.
"""

from dataclasses import dataclass
from enum import StrEnum

from .lifecycle import LifecycleError

MINUTE_S = 60.0
# Credits are floats: waiting exactly as long as was asked for must be enough.
_SLACK = 1e-6


class Limit(StrEnum):
    """Which limit held a request back."""

    REQUESTS_PER_MIN = "requests-per-min"
    TOKENS_PER_MIN = "tokens-per-min"
    IN_FLIGHT_REQUESTS = "in-flight-requests"
    IN_FLIGHT_TOKENS = "in-flight-tokens"


@dataclass(frozen=True, slots=True)
class LimitSpec:
    """The limits of one key, each at least 1; None: no such limit."""

    requests_per_min: int | None = None
    tokens_per_min: int | None = None
    max_in_flight_requests: int | None = None
    max_in_flight_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class Refusal:
    """The request was refused by `limit`, which allows `allowed`. `retry_after_s` None: waiting doesn't help."""

    limit: Limit
    allowed: int
    retry_after_s: float | None


@dataclass(frozen=True, slots=True)
class Standing:
    """How far a rate has been used up: what is left at this moment, and seconds until all of it is."""

    limit: int
    remaining: int
    reset_s: float


class CreditBucket:
    """Credits of one rate, from its capacity down below zero (debt). Time that runs back changes nothing."""

    __slots__ = ("_at_s", "_credits", "capacity")

    def __init__(self, capacity: int, now_s: float) -> None:
        self.capacity = capacity
        self._credits = float(capacity)
        self._at_s = now_s

    def credits(self, now_s: float) -> float:
        """What is there now."""
        if now_s > self._at_s:
            refilled = self._credits + (now_s - self._at_s) * self.capacity / MINUTE_S
            self._credits = min(float(self.capacity), refilled)
            self._at_s = now_s
        return self._credits

    def wait_s(self, amount: int, now_s: float) -> float:
        """Seconds until so many credits are there, 0 where they are; of more than fit, until the bucket is full."""
        missing = min(amount, self.capacity) - self.credits(now_s)
        return 0.0 if missing <= _SLACK else missing * MINUTE_S / self.capacity

    def take(self, amount: float, now_s: float) -> None:
        """Takes credits, into debt if need be; a negative amount gives back, up to the capacity."""
        self._credits = min(float(self.capacity), self.credits(now_s) - amount)

    def resize(self, capacity: int, now_s: float) -> None:
        """Another capacity from now on: what was left stays the same share, debt stays the same amount."""
        left = self.credits(now_s)
        self._credits = left * capacity / self.capacity if left > 0 else left
        self.capacity = capacity

    def standing(self, now_s: float) -> Standing:
        left = self.credits(now_s)
        return Standing(self.capacity, max(0, int(left + _SLACK)), (self.capacity - left) * MINUTE_S / self.capacity)


@dataclass(slots=True)
class _Held:
    """What a request holds, and from which bucket: limits may come and go while it runs."""

    requests: CreditBucket | None
    tokens: int | None = None  # None: nothing is reserved yet
    credits: CreditBucket | None = None


class Account:
    """One key's buckets, and what each of its requests holds. Not thread-safe; one shell owns it.

    A request goes through `enter`, at most one `reserve`, and `leave`. What breaks that order raises LifecycleError
    and changes nothing.
    """

    __slots__ = ("_held", "_in_flight_tokens", "_requests", "_tokens", "spec")

    def __init__(self, spec: LimitSpec, now_s: float) -> None:
        self.spec = spec
        self._requests = _bucket(spec.requests_per_min, None, now_s)
        self._tokens = _bucket(spec.tokens_per_min, None, now_s)
        self._held: dict[str, _Held] = {}  # by request id
        self._in_flight_tokens = 0

    @property
    def num_in_flight(self) -> int:
        """Requests that have entered and not left."""
        return len(self._held)

    @property
    def in_flight_tokens(self) -> int:
        """Tokens that they have reserved."""
        return self._in_flight_tokens

    def enter(self, request_id: str, now_s: float) -> Refusal | None:
        """A request comes in: one request credit and a place. Refused, it holds nothing."""
        if request_id in self._held:
            raise LifecycleError(f"request {request_id} has entered already")
        spec = self.spec
        if spec.max_in_flight_requests is not None and self.num_in_flight >= spec.max_in_flight_requests:
            return Refusal(Limit.IN_FLIGHT_REQUESTS, spec.max_in_flight_requests, 0.0)
        if self._requests is not None:
            if wait_s := self._requests.wait_s(1, now_s):
                return Refusal(Limit.REQUESTS_PER_MIN, self._requests.capacity, wait_s)
            self._requests.take(1, now_s)
        self._held[request_id] = _Held(self._requests)
        return None

    def reserve(self, request_id: str, prompt_tokens: int, output_tokens: int, now_s: float) -> Refusal | None:
        """Takes the tokens that a request will use at most. Refused, it holds what it held before.

        A prompt that is larger than a limit is refused for good. A larger sum of prompt and output only has to wait
        until the limit is there as a whole, since few answers are as long as they may be.
        """
        held = self._held.get(request_id)
        if held is None or held.tokens is not None:
            raise LifecycleError(f"request {request_id} has not entered, or has reserved already")
        spec, tokens = self.spec, prompt_tokens + output_tokens
        for limit, allowed in (
            (Limit.TOKENS_PER_MIN, spec.tokens_per_min),
            (Limit.IN_FLIGHT_TOKENS, spec.max_in_flight_tokens),
        ):
            if allowed is not None and prompt_tokens > allowed:
                return Refusal(limit, allowed, None)
        most = spec.max_in_flight_tokens
        if most is not None and self._in_flight_tokens + min(tokens, most) > most:
            return Refusal(Limit.IN_FLIGHT_TOKENS, most, 0.0)
        if self._tokens is not None:
            if wait_s := self._tokens.wait_s(tokens, now_s):
                return Refusal(Limit.TOKENS_PER_MIN, self._tokens.capacity, wait_s)
            self._tokens.take(tokens, now_s)
        held.tokens, held.credits = tokens, self._tokens
        self._in_flight_tokens += tokens
        return None

    def leave(self, request_id: str, used_tokens: int | None, now_s: float) -> None:
        """A request ends, once: its place is free, and its token credits are settled by what it used.

        None: it was not served at all, so its request credit comes back as well.
        """
        held = self._held.pop(request_id, None)
        if held is None:
            raise LifecycleError(f"request {request_id} has not entered, or has left already")
        held_tokens = held.tokens or 0
        self._in_flight_tokens -= held_tokens
        if used_tokens is None and held.requests is not None:
            held.requests.take(-1, now_s)
        if held.credits is not None:
            held.credits.take((used_tokens or 0) - held_tokens, now_s)

    def set_spec(self, spec: LimitSpec, now_s: float) -> None:
        """Other limits from now on; what is held stays held, and what was used stays used."""
        self.spec = spec
        self._requests = _bucket(spec.requests_per_min, self._requests, now_s)
        self._tokens = _bucket(spec.tokens_per_min, self._tokens, now_s)

    def requests_standing(self, now_s: float) -> Standing | None:
        """Of the requests per minute; None without such a limit."""
        return None if self._requests is None else self._requests.standing(now_s)

    def tokens_standing(self, now_s: float) -> Standing | None:
        """Of the tokens per minute; None without such a limit."""
        return None if self._tokens is None else self._tokens.standing(now_s)

    def check_integrity(self) -> None:
        """Raises AssertionError where two records of the same fact differ, or something is impossible."""
        assert self._in_flight_tokens == sum(held.tokens or 0 for held in self._held.values())
        assert self._requests is None or 0 <= self._requests.credits(0.0) <= self._requests.capacity
        assert self._tokens is None or self._tokens.credits(0.0) <= self._tokens.capacity


def _bucket(capacity: int | None, present: CreditBucket | None, now_s: float) -> CreditBucket | None:
    if capacity is None:
        return None
    if present is None:
        return CreditBucket(capacity, now_s)
    present.resize(capacity, now_s)
    return present
