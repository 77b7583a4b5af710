"""Requests, replicas and a small world for `DispatchCore`, without any I/O."""

import heapq
import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from policies.config import PolicySpec, build_policy
from policies.dispatch import DispatchCore
from policies.types import Call, Effect, Evict, Lane, Notice, Outcome, Sample, StopCall, WantCapacity
from policies.verdict import Admitted


@dataclass(frozen=True)
class FakeRequest:
    request_id: str = "q"
    arrival_s: float = 0.0
    model: str = "m"
    adapter: str | None = None
    feature: str | None = None
    tenant: str = "t"
    route: str = "chat"
    declared_lane: Lane | None = None
    prompt_tokens: int = 10
    max_output_tokens: int | None = 10
    num_choices: int = 1
    can_be_sliced: bool = False
    streams: bool = True
    deadline_s: float | None = None
    body_bytes: int = 0
    first_token_by_s: float | None = None


@dataclass(frozen=True)
class FakeReplica:
    replica_id: str = "r1"
    models: frozenset[str] = frozenset({"m"})
    features: frozenset[str] = frozenset()
    is_available: bool = True
    max_in_flight_tokens: int | None = None
    kv_capacity_tokens: int | None = None
    max_prefill_tokens: int | None = None
    max_in_flight_requests: int | None = None
    slice_block_tokens: int | None = None


def make_core(*replicas: FakeReplica, grant: bool = True, **spec: Any) -> DispatchCore:
    """A core with these replicas (one by default), all capacity granted."""
    core = DispatchCore(build_policy(PolicySpec(**spec)))
    for replica in replicas or (FakeReplica(),):
        core.replica_changed(replica, 0.0)
        if grant:
            core.capacity_granted(replica.replica_id, None, 0.0)
    return core


def offer(core: DispatchCore, request_id: str, now_s: float = 0.0, **fields: Any) -> Any:
    fields.setdefault("arrival_s", now_s)
    return core.offer(FakeRequest(request_id=request_id, **fields), now_s)


def calls(effects: list[Effect]) -> list[tuple[str, str]]:
    """(request id, replica id) of each Call, in order."""
    return [(effect.request.request_id, effect.replica_id) for effect in effects if isinstance(effect, Call)]


def only_call(effects: list[Effect]) -> Call:
    (effect,) = (effect for effect in effects if not isinstance(effect, Notice))
    assert isinstance(effect, Call)
    return effect


@dataclass
class World:
    """Drives a core through time: each replica serves its calls side by side, each taking its service time.

    `log` holds (instant, effect) of everything the core did: two worlds with the same inputs must have equal logs.
    """

    core: DispatchCore
    service_s: Callable[[FakeRequest], float]
    log: list[tuple[float, Effect]] = field(default_factory=list)
    ended: list[str] = field(default_factory=list)
    rejected: list[str] = field(default_factory=list)
    dispatched_s: dict[str, float] = field(default_factory=dict)
    after_poll: Callable[[DispatchCore, float], None] = lambda core, now_s: None
    _events: list[tuple[float, int, Callable[[float], None]]] = field(default_factory=list)
    _num_events: int = 0
    _over: set[int] = field(default_factory=set)

    def at(self, when_s: float, what: Callable[[float], None]) -> None:
        self._num_events += 1
        heapq.heappush(self._events, (when_s, self._num_events, what))

    def arrives(self, request: FakeRequest) -> None:
        def offer_it(now_s: float) -> None:
            if not isinstance(self.core.offer(request, now_s), Admitted):
                self.rejected.append(request.request_id)

        self.at(request.arrival_s, offer_it)

    def run(self, *, max_events: int = 100_000) -> None:
        for _ in range(max_events):
            wakeup_s = self.core.next_wakeup_s()
            if self._events and (wakeup_s is None or self._events[0][0] <= wakeup_s):
                now_s, _, what = heapq.heappop(self._events)
                what(now_s)
            elif wakeup_s is not None:
                now_s = wakeup_s
            else:
                return
            for effect in self.core.poll(now_s):
                self.log.append((now_s, effect))
                self._perform(effect, now_s)
            self.core.check_integrity()
            self.after_poll(self.core, now_s)
        raise AssertionError("the world didn't come to rest")

    def _perform(self, effect: Effect, now_s: float) -> None:
        if isinstance(effect, Call):
            request: Any = effect.request
            self.dispatched_s.setdefault(request.request_id, now_s)
            took_s = self.service_s(request)
            if effect.slice_end_tokens is not None:
                took_s *= effect.slice_end_tokens / request.prompt_tokens
            elif request.streams:
                self.at(now_s + took_s / 2, lambda at_s: self._first_token(effect.call_id, at_s))
            self.at(now_s + took_s, lambda at_s: self._ended(effect, at_s))
        elif isinstance(effect, StopCall):
            self.at(now_s, lambda at_s: self._stopped(effect.call_id, at_s))
        elif isinstance(effect, Evict):
            self.ended.append(effect.request_id)
        elif isinstance(effect, WantCapacity):
            self.core.capacity_granted(effect.replica_id, None, now_s)

    def _stopped(self, call_id: int, now_s: float) -> None:
        if call_id not in self._over:  # it may have ended at this very instant
            self._over.add(call_id)
            self.core.call_ended(call_id, Outcome.IGNORED, Sample(), now_s)

    def _first_token(self, call_id: int, now_s: float) -> None:
        if call_id in self._over:
            return
        self.core.first_token(call_id, now_s)
        self.core.progress(call_id, 1, now_s)

    def _ended(self, call: Call, now_s: float) -> None:
        if call.call_id in self._over:
            return
        self._over.add(call.call_id)
        request = call.request
        if call.slice_end_tokens is not None:
            self.core.call_ended(call.call_id, Outcome.SUCCESS, Sample(), now_s)
            return
        sample = Sample(request.prompt_tokens, 0, request.max_output_tokens, None, None)
        self.core.call_ended(call.call_id, Outcome.SUCCESS, sample, now_s)
        self.ended.append(request.request_id)


def random_requests(rng: random.Random, count: int, *, rate_per_s: float = 2.0) -> list[FakeRequest]:
    """A mixed load: mostly short, some long, several tenants, lanes declared now and then."""
    now_s = 0.0
    made = []
    for index in range(count):
        now_s += rng.expovariate(rate_per_s)
        is_long = rng.random() < 0.15
        made.append(
            FakeRequest(
                request_id=f"q{index}",
                arrival_s=now_s,
                tenant=rng.choice("abc"),
                prompt_tokens=rng.randint(800, 4000) if is_long else rng.randint(5, 200),
                max_output_tokens=rng.randint(1, 200),
                can_be_sliced=is_long,
                streams=rng.random() < 0.7,
                declared_lane=rng.choice([None, None, None, Lane.INTERACTIVE, Lane.LONG]),
            )
        )
    return made


def changed(replica: FakeReplica, **fields: Any) -> FakeReplica:
    return replace(replica, **fields)
