"""A simulated gateway: the shell of one `DispatchCore`, as the live dispatcher is."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

from policies.dispatch import DispatchCore
from policies.types import Call, Effect, Evict, Outcome, Reason, ReplicaLike, Sample, StopCall, WantCapacity
from policies.verdict import Rejected

from .events import EventQueue, Phase
from .replica import SimReplica
from .request import SimRequest
from .sequence import SimSequence

_TIMER_GRAIN_S = 0.001  # as the live dispatcher's


@dataclass(slots=True)
class RequestOutcome:
    """What became of one request; instants as the gateway sees them."""

    request: SimRequest
    dispatched_s: float | None = None
    """Of the call that was answered."""
    replica_index: int | None = None
    scheduled_s: float | None = None
    cached_tokens: int = 0
    num_calls: int = 0
    lane: str | None = None
    token_s: list[float] = field(default_factory=list)
    end_s: float | None = None
    error: str | None = None
    """"http-429": turned away or evicted; "failed": no replica answered it."""


class SimGateway:
    """Implements `Listener`. `on_end` is called once a request."""

    def __init__(
        self,
        index: int,
        core: DispatchCore,
        replicas: Sequence[SimReplica],
        replica_ids: Sequence[str],
        events: EventQueue,
        *,
        network_s: float,
        max_attempts: int,
        on_end: Callable[[RequestOutcome], None],
        on_effect: Callable[[int, float, Effect], None] | None,
    ) -> None:
        self.index = index
        self.core = core
        self._replicas = replicas
        self._index_of = {replica_id: place for place, replica_id in enumerate(replica_ids)}
        self._events = events
        self._network_s = network_s
        self._max_attempts = max_attempts
        self._on_end = on_end
        self._on_effect = on_effect
        self._outcomes: dict[str, RequestOutcome] = {}
        self._calls: dict[int, tuple[Call, float]] = {}
        self._timer_s: float | None = None

    def arrives(self, request: SimRequest, now_s: float) -> None:
        """A client's request."""
        outcome = RequestOutcome(request)
        decision = self.core.offer(request, now_s)
        if isinstance(decision, Rejected):
            self._close(outcome, now_s, "http-503" if decision.reason is Reason.UNKNOWN_MODEL else "http-429")
            return
        outcome.lane = decision.lane
        self._outcomes[request.request_id] = outcome
        self.pump(now_s)

    def replica_changed(self, replica: ReplicaLike, now_s: float) -> None:
        """A probe saw that a replica went down or came back."""
        self.core.replica_changed(replica, now_s)
        self.pump(now_s)

    def progressed(self, sequence: SimSequence, output_tokens: int, now_s: float) -> None:
        call_id = sequence.call.call_id
        if call_id not in self._calls:
            return
        if output_tokens == 1:
            if sequence.request.streams:
                self.core.first_token(call_id, now_s)
                self.pump(now_s)
        elif sequence.request.streams:
            self.core.progress(call_id, output_tokens, now_s)

    def ended(self, sequence: SimSequence, now_s: float) -> None:
        call, dispatched_s = self._calls.pop(sequence.call.call_id, (None, 0.0))
        if call is None:
            return
        request, token_s = sequence.request, sequence.token_s
        count = len(token_s)
        sample = Sample(
            prompt_tokens=sequence.prompt_tokens,
            cached_tokens=sequence.cached_prompt_tokens,
            output_tokens=count,
            upstream_ttft_s=token_s[0] - dispatched_s if request.streams else None,
            tpot_s=(token_s[-1] - token_s[0]) / (count - 1) if request.streams and count > 1 else None,
        )
        self.core.call_ended(call.call_id, Outcome.SUCCESS, sample, now_s)
        if call.slice_end_tokens is None:
            outcome = self._outcomes.pop(request.request_id)
            outcome.dispatched_s, outcome.scheduled_s = dispatched_s, sequence.scheduled_s
            outcome.cached_tokens = sequence.cached_prompt_tokens
            outcome.token_s = token_s
            self._close(outcome, now_s, None)
        self.pump(now_s)

    def failed(self, call: Call, now_s: float) -> None:
        if self._calls.pop(call.call_id, None) is None:
            return
        request_id = call.request.request_id
        self.core.call_ended(call.call_id, Outcome.DROPPED, Sample(), now_s)
        self.pump(now_s)  # as live: others may go before this one waits again
        outcome = self._outcomes[request_id]
        if outcome.num_calls < self._max_attempts and self.core.can_serve(call.request.model, {call.replica_id}):
            self.core.requeue(request_id, {call.replica_id}, now_s)
        else:
            self.core.cancel(request_id, now_s)
            self._close(self._outcomes.pop(request_id), now_s, "failed")
        self.pump(now_s)

    def pump(self, now_s: float) -> None:
        """Lets the core decide, performs what it decided, and sets the timer. After every input."""
        wanted: list[WantCapacity] = []
        for effect in self.core.poll(now_s):
            if self._on_effect is not None:
                self._on_effect(self.index, now_s, effect)
            if isinstance(effect, Call):
                self._send(effect, now_s)
            elif isinstance(effect, Evict):
                self._close(self._outcomes.pop(effect.request_id), now_s, "http-429")
            elif isinstance(effect, StopCall):
                self._stop(effect, now_s)
            elif isinstance(effect, WantCapacity):
                wanted.append(effect)
        self._set_timer(now_s)
        for want in wanted:  # nobody shares the capacity by leases here: all of it is granted
            self.core.capacity_granted(want.replica_id, None, now_s)
            self.pump(now_s)

    def _send(self, call: Call, now_s: float) -> None:
        outcome = self._outcomes[call.request.request_id]
        place = self._index_of[call.replica_id]
        outcome.num_calls += 1
        outcome.replica_index = place
        self._calls[call.call_id] = (call, now_s)
        replica = self._replicas[place]
        self._events.at(
            now_s + self._network_s,
            Phase.REPLICA_INPUT,
            place,
            partial(replica.receive, call, outcome.request, self.index),
        )

    def _stop(self, stop: StopCall, now_s: float) -> None:
        """Closes the connection; the slot goes back at once, and what was computed stays in the replica's cache."""
        place = self._index_of[stop.replica_id]
        self._calls.pop(stop.call_id)
        replica = self._replicas[place]
        abort = partial(replica.abort, stop.call_id, self.index)
        self._events.at(now_s + self._network_s, Phase.REPLICA_INPUT, place, abort)
        self._events.at(now_s, Phase.GATEWAY_INPUT, self.index, partial(self._stopped, stop.call_id))

    def _stopped(self, call_id: int, now_s: float) -> None:
        self.core.call_ended(call_id, Outcome.IGNORED, Sample(), now_s)
        self.pump(now_s)

    def _set_timer(self, now_s: float) -> None:
        wakeup_s = self.core.next_wakeup_s() if self.core.num_queued else None
        if wakeup_s is None or (self._timer_s is not None and self._timer_s <= wakeup_s):
            return  # a timer that is too early looks again and sets the next one
        self._timer_s = wakeup_s
        at_s = max(now_s + _TIMER_GRAIN_S, wakeup_s)
        self._events.at(at_s, Phase.GATEWAY_TIMER, self.index, partial(self._on_timer, wakeup_s))

    def _on_timer(self, wakeup_s: float, now_s: float) -> None:
        if self._timer_s == wakeup_s:
            self._timer_s = None
            self.pump(now_s)

    def _close(self, outcome: RequestOutcome, now_s: float, error: str | None) -> None:
        outcome.end_s, outcome.error = now_s, error
        self._on_end(outcome)
