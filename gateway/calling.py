"""Calling replicas until one answers: attempts, retries, and what each says of its replica."""

from collections.abc import Callable
from typing import Any, Protocol

from policies.types import Call, Outcome

from .api import tgi
from .attribution import Layer, Record
from .dispatcher import Place
from .errors import ResponseBroken
from .relay import Relay
from .retry_budget import RetryBudget
from .sending import Sending
from .slice_calls import SliceCalls
from .unanswered import UnansweredCalls
from .upstream import Upstreams
from .upstream_errors import ConnectFailed, UpstreamClosed, UpstreamError

# Statuses that say "not me, not now": another replica may take the request.
_ELSEWHERE = frozenset({429, 503})
# Statuses that speak against a replica. 4xx are the caller's doing, 501 its question, 503 says "not now".
_BROKEN = frozenset({500, 502, 504})


class Replicas(Protocol):
    """What calls ask the pool of replicas, and tell it."""

    def get(self, replica_id: str) -> Any: ...
    def report_failure(self, replica_id: str) -> None: ...
    def report_refused(self, replica_id: str) -> None: ...
    def report_answered(self, replica_id: str) -> None: ...
    def report_success(self, replica_id: str) -> None: ...


class Learner(Protocol):
    """Learns from what replicas counted."""

    def learn(self, model: str, num_body_bytes: int, prompt_tokens: int) -> None: ...


class CanServe(Protocol):
    """Whether a replica outside `exclude` could take a request; see `DispatchCore.can_serve`."""

    def __call__(self, model: str, exclude: set[str], *, feature: str | None) -> bool: ...


class Caller:
    """One for the whole gateway; it keeps no state of a request. What is public may be replaced at any time."""

    def __init__(
        self,
        *,
        max_attempts: int,
        retries: RetryBudget,
        heartbeat_s: float | None,
        pool: Replicas,
        upstreams: Upstreams,
        unanswered: UnansweredCalls,
        counter: Learner,
        can_serve: CanServe,
        clock: Callable[[], float],
    ) -> None:
        self.max_attempts = max_attempts
        self.retries = retries
        self.heartbeat_s = heartbeat_s
        self._pool = pool
        self._upstreams = upstreams
        self._unanswered = unanswered
        self._counter = counter
        self._can_serve = can_serve
        self._clock = clock
        self._slices = SliceCalls(pool=pool, upstreams=upstreams, unanswered=unanswered, clock=clock)

    async def answer(self, sending: Sending, place: Place, record: Record) -> None:
        """Call replicas until one answers, at most as many as allowed."""
        tried: set[str] = set()
        self.retries.requested(self._clock())
        while True:
            if place.call is None:
                call = await place.next_call()
                if call.waited_for is not None:
                    record.notes[Layer.QUEUE] = call.waited_for.value
                    record.reason = record.reason or call.waited_for.value
            else:
                call = place.call
            if call.slice_end_tokens is not None:
                await self._slices.run(sending, place, call, record)
                continue
            tried.add(call.replica_id)
            try:
                await self._attempt(sending, place, call, record, tried)
            except _ElsewhereError as failure:
                record.fail_attempt(self._clock(), failure.note)
                place.end_call(Outcome.DROPPED)
                place.requeue(tried)
            except _StoppedError:
                record.stop_attempt(self._clock())
                tried.discard(call.replica_id)
                place.end_call(Outcome.IGNORED)
            else:
                return

    def _may_retry(self, record: Record, place: Place, tried: set[str]) -> bool:
        return self._can_serve(place.request.model, tried, feature=place.request.feature) and self._may_repeat(record)

    def _may_repeat(self, record: Record) -> bool:
        return record.attempt < self.max_attempts and self.retries.take(self._clock())

    async def _attempt(self, sending: Sending, place: Place, call: Call, record: Record, tried: set[str]) -> None:
        """One call. Raises _ElsewhereError or _StoppedError, which leave the request to be called again."""
        record.begin_attempt(self._clock(), call.replica_id, call.why)
        replica = self._pool.get(call.replica_id)
        upstream = self._upstreams.of(call.replica_id, replica.url)
        body = sending.body_for(replica, place.request.model)
        exchange = upstream.exchange(sending.head_for(replica, call.lane, upstream.authority, len(body)), body)
        num_body_bytes = len(sending.body)
        del body
        place.on_stop = exchange.stop
        relay = Relay(exchange, place, sending, record, self._clock, self.heartbeat_s)
        unanswered = self._unanswered.add(call.replica_id, exchange, lambda: self._may_retry(record, place, tried))
        try:
            _check_stop(place)  # before anything was there to be closed
            await exchange.send()
            relay.request_written()
            status, headers = await exchange.head()
            self._unanswered.answered(call.replica_id, unanswered)
            if status < 500:
                self._pool.report_answered(call.replica_id)
            is_busy = status in _ELSEWHERE or (
                replica.kind == "tgi" and record.streams and tgi.is_overloaded(await exchange.peek())
            )
            if is_busy and self._may_retry(record, place, tried):
                raise _ElsewhereError(f"{call.replica_id}: status {status}")
            if place.request.can_be_sliced and record.streams and replica.slice_block_tokens is not None:
                # The engine may send its head at once: until the first token the call may be stopped for others, so
                # the client gets none of it yet.
                await exchange.peek()
            _check_stop(place)  # as the answer came
            place.on_stop = None
            sending.body = b""  # nobody is called after this one
            await relay.run(status, headers)
            if status < 400:
                self._pool.report_success(call.replica_id)
            elif status in _BROKEN:
                self._pool.report_failure(call.replica_id)
            self._learn(relay, record, num_body_bytes)
        except UpstreamError as error:
            if place.is_stopping and isinstance(error, UpstreamClosed):
                raise _StoppedError from error
            if isinstance(error, ConnectFailed) and error.is_refused:
                self._pool.report_refused(call.replica_id)
                if not self._can_serve(place.request.model, tried, feature=place.request.feature):
                    tried.clear()  # nothing was sent: who is alone may return while the request waits
            else:
                self._pool.report_failure(call.replica_id)
            if (
                unanswered.is_given_up
                or (not tried and self._may_repeat(record))
                or self._may_retry(record, place, tried)
            ):
                raise _ElsewhereError(f"{call.replica_id}: {error.reason}") from error
            place.end_call(Outcome.DROPPED)
            raise
        except ResponseBroken as broken:
            if isinstance(broken.__cause__, UpstreamError):
                self._pool.report_failure(call.replica_id)
            raise
        finally:
            place.on_stop = None
            self._unanswered.remove(call.replica_id, unanswered)
            exchange.close()

    def _learn(self, relay: Relay, record: Record, num_body_bytes: int) -> None:
        if relay.usage is not None and relay.usage.prompt_tokens:
            self._counter.learn(record.model, num_body_bytes, relay.usage.prompt_tokens)


def _check_stop(place: Place) -> None:
    """Raises UpstreamClosed for a call that was stopped while its task had yet to go on: its connection is closed."""
    if place.is_stopping:
        raise UpstreamClosed


class _ElsewhereError(Exception):
    """The attempt failed before anything was sent to the client, and another replica may do better."""

    def __init__(self, note: str) -> None:
        super().__init__(note)
        self.note = note


class _StoppedError(Exception):
    """The core had the call closed; it will dispatch the request again."""
