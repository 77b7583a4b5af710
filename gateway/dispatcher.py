"""The asynchronous shell of `DispatchCore`: performs its effects, and wakes it when it asked to be woken.

Each request has a `Place`, a scope that owns whatever the core counts for it: its place in the queue, then its slot.
Leaving the scope gives back what is still held, exactly once and by id. All of that is synchronous, so no
cancellation can come between.
"""

import asyncio
import logging
from collections.abc import Callable, Collection
from types import TracebackType
from typing import Self

from policies.dispatch import DispatchCore
from policies.policy import Policy
from policies.types import Call, Evict, Outcome, Reason, ReplicaLike, RequestLike, Sample, StopCall, WantCapacity
from policies.verdict import Admitted, Rejected

from .overload_errors import Evicted, Overloaded
from .state.port import SharedCapacity

logger = logging.getLogger(__name__)

# A core call for every so many output tokens is enough to keep a slot's size right.
PROGRESS_EVERY_TOKENS = 16


class Dispatcher:
    """Owns a core. `clock` is the monotonic clock of all instants given to it; `capacity` grants what it may use, by
    `capacity_granted`.
    """

    def __init__(self, core: DispatchCore, *, clock: Callable[[], float], capacity: SharedCapacity) -> None:
        self.core = core
        self.clock = clock
        self._capacity = capacity
        self._places: dict[str, Place] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._timer_s: float | None = None

    def place(self, request: RequestLike) -> "Place":
        """The scope of one request; see `Place`."""
        return Place(self, request)

    def replica_changed(self, replica: ReplicaLike) -> None:
        """A replica is new, or something of it changed."""
        self.core.replica_changed(replica, self.clock())
        self.pump()

    def replica_removed(self, replica_id: str) -> None:
        """Nothing more is sent there."""
        self.core.replica_removed(replica_id, self.clock())
        self.pump()

    def capacity_granted(self, replica_id: str, tokens: int | None) -> None:
        """Tokens that may be in flight on a replica in all; None: everything."""
        self.core.capacity_granted(replica_id, tokens, self.clock())
        self.pump()

    def set_policy(self, policy: Policy) -> None:
        """From now on this policy decides."""
        self.core.set_policy(policy, self.clock())
        self.pump()

    def close(self) -> None:
        """Stop the timer; what still runs ends by itself."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = self._timer_s = None

    def pump(self) -> None:
        """Let the core decide, perform what it decided, and set the timer. After every input."""
        now_s = self.clock()
        wanted: list[WantCapacity] | None = None
        for effect in self.core.poll(now_s):
            if isinstance(effect, Call):
                self._places[effect.request.request_id].take(effect)
            elif isinstance(effect, Evict):
                self._places[effect.request_id].evicted(effect)
            elif isinstance(effect, StopCall):
                self._places[effect.request_id].stop(effect.call_id)
            elif isinstance(effect, WantCapacity):
                wanted = [*(wanted or ()), effect]
            else:
                level = logging.INFO if effect.error is None else logging.ERROR
                logger.log(level, "%s", effect.text, exc_info=effect.error)
        self._set_timer(now_s)
        # Last, since a grant may come at once, and pumps again.
        for want in wanted or ():
            self._capacity.want(want)

    def _set_timer(self, now_s: float) -> None:
        # Where nobody waits, no instant brings anything: the next request's own pump is early enough.
        wakeup_s = self.core.next_wakeup_s() if self.core.num_queued or self.core.has_parked else None
        if wakeup_s is None or (self._timer_s is not None and self._timer_s <= wakeup_s):
            return  # a timer that is too early looks again and sets the next one
        if self._timer is not None:
            self._timer.cancel()
        loop = asyncio.get_running_loop()
        self._timer_s = wakeup_s
        # Not sooner than a millisecond, the grain of uvloop's clock: a timer that is a little early would spin.
        self._timer = loop.call_at(loop.time() + max(0.001, wakeup_s - now_s), self._on_timer)

    def _on_timer(self) -> None:
        self._timer = self._timer_s = None
        self.pump()

    def enter(self, place: "Place") -> Admitted | Rejected:
        """Offer the request of `place`. For `Place` only, as `leave`."""
        decision = self.core.offer(place.request, self.clock())
        if isinstance(decision, Admitted):
            self._places[place.request.request_id] = place
            self.pump()
        return decision

    def end_call(self, place: "Place", call: Call, outcome: Outcome, sample: Sample) -> None:
        """Give a slot back, and forget the request if that ended it."""
        self.core.call_ended(call.call_id, outcome, sample, self.clock())
        if not self.core.knows(place.request.request_id):
            self._places.pop(place.request.request_id, None)
        self.pump()

    def leave(self, place: "Place") -> None:
        """Forget a request wherever it is, with its place in the queue or its slot."""
        request_id = place.request.request_id
        if self._places.pop(request_id, None) is None:
            return
        call, place.call = place.call, None
        now_s = self.clock()
        # In this order: after the cancel, the end of a call that was being stopped doesn't queue the request again.
        self.core.cancel(request_id, now_s)
        if call is not None:
            self.core.call_ended(call.call_id, Outcome.IGNORED, Sample(), now_s)
        self.pump()


class Place:
    """A request's place: in the queue, then on a replica. A context manager; it raises Overloaded when turned away.

    `call` is the present call, None between calls. `admitted` says what the core decided on entry. `on_stop` is
    called when the core wants the running call closed, and `is_stopping` tells it from a failure.
    """

    __slots__ = (
        "_dispatcher",
        "_eviction",
        "_num_tokens_told",
        "_waiter",
        "admitted",
        "call",
        "is_stopping",
        "on_stop",
        "request",
    )

    def __init__(self, dispatcher: Dispatcher, request: RequestLike) -> None:
        self._dispatcher = dispatcher
        self.request = request
        self.call: Call | None = None
        self.admitted: Admitted | None = None
        self.is_stopping = False
        self.on_stop: Callable[[], None] | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._eviction: Evict | None = None
        self._num_tokens_told = 0

    def __enter__(self) -> Self:
        decision = self._dispatcher.enter(self)
        if isinstance(decision, Rejected):
            # The caller has found the model to exist: without a replica that lists it now, waiting may help.
            is_unserved = decision.reason is Reason.UNKNOWN_MODEL
            reason = Reason.NO_REPLICA if is_unserved else decision.reason
            raise Overloaded(reason, decision.retry_after_s, lane=decision.lane)
        self.admitted = decision
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.on_stop = None
        self._dispatcher.leave(self)

    async def next_call(self) -> Call:
        """Wait for dispatch. Raises Evicted."""
        while self.call is None:
            if self._eviction is not None:
                raise Evicted(self._eviction.reason, self._eviction.retry_after_s)
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        return self.call

    def recount(self, request: RequestLike) -> None:
        """The prompt has been counted after all: the same request, with the tokens it really has."""
        self.request = request
        admitted = self._dispatcher.core.recount(request, self._dispatcher.clock())
        if admitted is not None:
            self.admitted = admitted
        self._dispatcher.pump()

    def first_token(self) -> None:
        """The first output token of the present call came."""
        self._dispatcher.core.first_token(self._held().call_id, self._dispatcher.clock())
        self._dispatcher.pump()

    def progress(self, output_tokens: int) -> None:
        """Output tokens of the present call so far; told to the core in steps."""
        if output_tokens - self._num_tokens_told >= PROGRESS_EVERY_TOKENS:
            self._num_tokens_told = output_tokens
            self._dispatcher.core.progress(self._held().call_id, output_tokens, self._dispatcher.clock())

    def end_call(self, outcome: Outcome, sample: Sample | None = None) -> None:
        """The present call is over: its slot goes back. DROPPED leaves the request to `requeue`."""
        call = self._held()
        self.call = None
        self._num_tokens_told = 0
        self._dispatcher.end_call(self, call, outcome, sample or Sample())

    def requeue(self, exclude: Collection[str]) -> None:
        """Wait again after a dropped call, not to be sent to these replicas."""
        self._dispatcher.core.requeue(self.request.request_id, exclude, self._dispatcher.clock())
        self._dispatcher.pump()

    def take(self, call: Call) -> None:
        """The core dispatched the request. For the dispatcher only, as `evicted` and `stop`."""
        self.call = call
        self.is_stopping = False
        self._wake()

    def evicted(self, eviction: Evict) -> None:
        self._eviction = eviction
        self._wake()

    def stop(self, call_id: int) -> None:
        if self.call is not None and self.call.call_id == call_id:
            self.is_stopping = True
            if self.on_stop is not None:
                self.on_stop()

    def _held(self) -> Call:
        assert self.call is not None, "no call is running"
        return self.call

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
