"""The live dispatcher and the simulator decide the same, event by event: same core, same replicas, same instants.

The live side is `gateway.dispatcher` itself, with its futures, scopes and timer, on an event loop whose clock is the
simulator's; the replicas are the simulator's own.
"""

import asyncio
import random
from collections.abc import Callable, Sequence
from contextvars import Context
from dataclasses import replace
from functools import partial
from typing import Any, TypeVarTuple

import pytest

from gateway.dispatcher import Dispatcher, Place
from gateway.overload_errors import Evicted, Overloaded
from gateway.state.memory import MemoryCapacity
from loadtests.sim.events import EventQueue, Phase
from loadtests.sim.replica import SimReplica
from loadtests.sim.request import SimRequest
from loadtests.sim.sequence import SimSequence
from loadtests.sim.simulation import Setup, SimulatedServer, simulate
from policies.batching import StepSpec, build_composer
from policies.dispatch import DispatchCore
from policies.policy import Policy
from policies.types import Call, Effect, Outcome, Sample

from .worlds import model, policy, requests

Log = list[tuple[float, object]]
_Ts = TypeVarTuple("_Ts")


def _entry(now_s: float, effect: Effect) -> tuple[float, object]:
    if isinstance(effect, Call):
        return now_s, (effect.call_id, effect.request.request_id, effect.replica_id, effect.lane, effect.waited_for)
    return now_s, effect


class _RecordingCore(DispatchCore):
    def __init__(self, made: Policy, log: Log) -> None:
        super().__init__(made)
        self._log = log

    def poll(self, now_s: float) -> list[Effect]:
        effects = super().poll(now_s)
        self._log += [_entry(now_s, effect) for effect in effects]
        return effects


class _SimulatedLoop(asyncio.SelectorEventLoop):
    """An event loop whose time is the simulation's, and whose timers are its events."""

    def __init__(self, events: EventQueue) -> None:
        super().__init__()
        self._events = events

    def time(self) -> float:
        return self._events.now_s

    def call_at(
        self, when: float, callback: Callable[[*_Ts], object], *args: *_Ts, context: Context | None = None
    ) -> asyncio.TimerHandle:
        handle = asyncio.TimerHandle(when, callback, args, self)

        def fire(_now_s: float) -> None:
            if not handle.cancelled():
                callback(*args)

        self._events.at(when, Phase.GATEWAY_TIMER, 0, fire)
        return handle

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """The event stays, and does nothing."""


class _LiveGateway:
    """Requests as the handler treats them: a place each, calls to replicas, tokens told as the relay tells them."""

    def __init__(
        self, core: DispatchCore, replicas: Sequence[SimReplica], events: EventQueue, network_s: float
    ) -> None:
        capacity = MemoryCapacity()
        self.dispatcher = Dispatcher(core, clock=lambda: events.now_s, capacity=capacity)
        capacity.start(self.dispatcher.capacity_granted)
        self.ends: dict[str, tuple[float, str]] = {}
        self._replicas = {f"r{replica.index:05d}": replica for replica in replicas}
        self._events = events
        self._network_s = network_s
        self._places: dict[int, tuple[Place, asyncio.Future[SimSequence], float]] = {}

    async def handle(self, request: SimRequest) -> None:
        how = "answered"
        try:
            with self.dispatcher.place(request) as place:
                call = await place.next_call()
                replica = self._replicas[call.replica_id]
                answer: asyncio.Future[SimSequence] = asyncio.get_running_loop().create_future()
                self._places[call.call_id] = (place, answer, self._events.now_s)
                self._events.at(
                    self._events.now_s + self._network_s,
                    Phase.REPLICA_INPUT,
                    replica.index,
                    partial(replica.receive, call, request, 0),
                )
                await answer
        except (Overloaded, Evicted) as error:
            how = type(error).__name__
        self.ends[request.request_id] = (self._events.now_s, how)

    def progressed(self, sequence: SimSequence, output_tokens: int, now_s: float) -> None:
        if sequence.request.streams:
            place, _, _ = self._places[sequence.call.call_id]
            if output_tokens == 1:
                place.first_token()
            place.progress(output_tokens)

    def ended(self, sequence: SimSequence, now_s: float) -> None:
        place, answer, dispatched_s = self._places.pop(sequence.call.call_id)
        streams, token_s = sequence.request.streams, sequence.token_s
        count = len(token_s)
        sample = Sample(
            prompt_tokens=sequence.prompt_tokens,
            cached_tokens=sequence.cached_prompt_tokens,
            output_tokens=count,
            upstream_ttft_s=token_s[0] - dispatched_s if streams else None,
            tpot_s=(token_s[-1] - token_s[0]) / (count - 1) if streams and count > 1 else None,
        )
        place.end_call(Outcome.SUCCESS, sample)
        answer.set_result(sequence)

    def failed(self, call: Call, now_s: float) -> None:
        raise AssertionError("no replica fails here")


def _live(mix: Sequence[SimRequest], make_policy: Callable[[], Policy], setup: Setup) -> tuple[Log, dict[str, Any]]:
    events, log = EventQueue(), Log()
    loop = _SimulatedLoop(events)

    async def main() -> dict[str, Any]:
        replicas = [
            SimReplica(index, setup.model, build_composer(setup.step), events, network_s=setup.network_s)
            for index in range(setup.num_replicas)
        ]
        gateway = _LiveGateway(_RecordingCore(make_policy(), log), replicas, events, setup.network_s)
        for replica in replicas:
            replica.listeners = [gateway]
            gateway.dispatcher.replica_changed(
                SimulatedServer(
                    f"r{replica.index:05d}",
                    max_in_flight_tokens=setup.max_in_flight_tokens,
                    kv_capacity_tokens=setup.kv_capacity_tokens,
                    max_in_flight_requests=setup.max_in_flight_requests,
                )
            )
        tasks: list[asyncio.Task[None]] = []

        def arrive(request: SimRequest, _now_s: float) -> None:
            tasks.append(loop.create_task(gateway.handle(request)))

        for request in mix:
            events.at(request.arrival_s, Phase.GATEWAY_INPUT, 0, partial(arrive, request))
        while events.step():
            for _ in range(4):  # until every task that this event woke has come to rest
                await asyncio.sleep(0)
        gateway.dispatcher.close()
        await asyncio.gather(*tasks)
        gateway.dispatcher.core.check_integrity()
        return gateway.ends

    try:
        return log, loop.run_until_complete(main())
    finally:
        loop.close()


@pytest.mark.parametrize(
    "spec",
    [
        {},
        {"ordering": "fcfs", "lanes": "single"},
        {"ordering": "boost"},
        {"ordering": "slack-edf", "shedding": "ladder"},
    ],
    ids=str,
)
def test_the_live_dispatcher_decides_what_the_simulator_decides(spec: dict[str, Any]) -> None:
    """Every dispatch with its instant, lane and reason, every eviction, and when each answer ended."""
    num_waited = 0
    for number in range(8):
        seed = f"parity/{number}"
        print(seed)
        rng = random.Random(seed)
        engine = model(rng, tight=False)
        setup = Setup(
            engine,
            num_replicas=rng.randint(1, 3),
            network_s=rng.choice([0.0, 0.002]),
            step=StepSpec(order=rng.choice(["fcfs", "priority"])),
            max_in_flight_tokens=rng.choice([300, 900]),
            max_in_flight_requests=rng.choice([None, 3]),
        )
        mix = requests(rng, 80, rate_per_s=rng.choice([8.0, 60.0]))
        late = rng.uniform(0.1, 2.0)
        mix = [replace(one, deadline_s=one.arrival_s + late) if one.index % 5 == 0 else one for one in mix]
        mix = [replace(one, first_token_by_s=one.deadline_s) if one.index % 10 == 0 else one for one in mix]
        limits = {"max_requests": rng.choice([20, 1000])}

        def make_policy(limits: dict[str, int] = limits) -> Policy:
            return policy(**spec, options={"queue": limits})

        simulated: Log = []

        def note(_gateway: int, now_s: float, effect: Effect, log: Log = simulated) -> None:
            log.append(_entry(now_s, effect))

        result = simulate(mix, make_policy, setup, on_effect=note)
        live, ends = _live(mix, make_policy, setup)
        assert [entry for entry in live if not _is_grant(entry)] == [e for e in simulated if not _is_grant(e)]
        for outcome in result.outcomes:
            end_s, how = ends[outcome.request.request_id]
            assert end_s == outcome.end_s
            assert (how == "answered") == (outcome.error is None)
        num_waited += sum(entry[1][4] is not None for entry in simulated if isinstance(entry[1], tuple))
    assert num_waited > 50


def _is_grant(entry: tuple[float, object]) -> bool:
    """The simulator grants everything beforehand, the live gateway when it is wanted: no decision."""
    return type(entry[1]).__name__ == "WantCapacity"
