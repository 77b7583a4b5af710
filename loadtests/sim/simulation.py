"""The whole of it: requests, gateways and replicas, put together and run."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from policies.batching import Composer, StepSpec, build_composer
from policies.dispatch import DispatchCore
from policies.policy import Policy
from policies.registry import PolicyConfigError
from policies.types import Effect

from ..answer import Answer
from ..errors import LoadtestError
from .events import EventQueue, Phase
from .gateway import RequestOutcome, SimGateway
from .model import ReplicaModel
from .replica import SimReplica
from .request import MODEL, SimRequest


@dataclass(frozen=True, slots=True)
class SimulatedServer:
    """Implements `ReplicaLike`: a replica as its gateways see it."""

    replica_id: str
    is_available: bool = True
    models: frozenset[str] = frozenset({MODEL})
    features: frozenset[str] = frozenset()
    max_in_flight_tokens: int | None = None
    kv_capacity_tokens: int | None = None
    max_prefill_tokens: int | None = None
    max_in_flight_requests: int | None = None
    slice_block_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class Outage:
    """A replica is down for a while; calls break off, and its cache is lost."""

    replica_index: int
    from_s: float
    to_s: float


@dataclass(frozen=True, slots=True)
class Setup:
    """Everything but requests and policy.

    `network_s`: one way between gateway and replica. `probe_s`: after so long gateways know that a replica went down
    or came back. `max_in_flight_…` and `max_prefill_tokens`: a replica's own caps, None for the policy's.
    `kv_capacity_tokens`: as gateways know it.
    `max_attempts`: calls of a request in all, the failed ones counted. `is_stepwise`: a step is an event.
    """

    model: ReplicaModel
    num_replicas: int = 1
    num_gateways: int = 1
    network_s: float = 0.0
    probe_s: float = 1.0
    step: StepSpec = field(default_factory=StepSpec)
    max_in_flight_tokens: int | None = None
    kv_capacity_tokens: int | None = None
    max_in_flight_requests: int | None = None
    slice_block_tokens: int | None = None
    max_prefill_tokens: int | None = None
    max_attempts: int = 3
    outages: tuple[Outage, ...] = ()
    is_stepwise: bool = False

    def without_caps(self) -> "Setup":
        """Nothing waits in front of the engines."""
        return replace(
            self,
            max_in_flight_tokens=None,
            kv_capacity_tokens=None,
            max_in_flight_requests=None,
            max_prefill_tokens=None,
        )


@dataclass(frozen=True, slots=True)
class Result:
    """Outcomes in order of `request.index`, and what the replicas did."""

    outcomes: tuple[RequestOutcome, ...]
    span_s: float
    busy_s: tuple[float, ...]
    """Of each replica."""
    num_steps: int
    num_preempted: int
    num_policy_errors: int
    num_evicted_chunks: int

    @property
    def utilisation_ratio(self) -> float:
        """Time that replicas spent in steps, of all their time."""
        return sum(self.busy_s) / (self.span_s * len(self.busy_s)) if self.span_s else 0.0

    def answers(self) -> list[Answer]:
        """As the load client would have seen them, so that every report of a live run works on them."""
        return [_answer(outcome) for outcome in self.outcomes]


def simulate(
    requests: Sequence[SimRequest],
    make_policy: Callable[[], Policy],
    setup: Setup,
    *,
    make_composer: Callable[[], Composer] | None = None,
    on_end: Callable[[RequestOutcome], None] | None = None,
    on_effect: Callable[[int, float, Effect], None] | None = None,
) -> Result:
    """Runs until the last request has ended. Nothing is random here: same arguments, same result.

    `make_policy` is called once a gateway (parts own what they learn). `make_composer` replaces `setup.step`, once
    a replica. `on_effect` hears (gateway, instant, effect) of every decision. Requests go to gateways in turn. Raises
    `LoadtestError` for a request that no replica could hold, and for an outage of a replica that doesn't exist.
    """
    _check(requests, setup)
    events = EventQueue()
    outcomes: dict[int, RequestOutcome] = {}

    def ended(outcome: RequestOutcome) -> None:
        outcomes[outcome.request.index] = outcome
        if on_end is not None:
            on_end(outcome)

    servers = [
        SimulatedServer(
            f"r{index:05d}",
            max_in_flight_tokens=setup.max_in_flight_tokens,
            kv_capacity_tokens=setup.kv_capacity_tokens,
            max_prefill_tokens=setup.max_prefill_tokens,
            max_in_flight_requests=setup.max_in_flight_requests,
        )
        for index in range(setup.num_replicas)
    ]
    composer = make_composer or partial(build_composer, setup.step)
    replicas = [
        SimReplica(index, setup.model, composer(), events, network_s=setup.network_s, is_stepwise=setup.is_stepwise)
        for index in range(setup.num_replicas)
    ]
    gateways = []
    for index in range(setup.num_gateways):
        core = DispatchCore(make_policy())
        for server in servers:
            core.replica_changed(server, 0.0)
            core.capacity_granted(server.replica_id, None, 0.0)
        gateway = SimGateway(
            index,
            core,
            replicas,
            [server.replica_id for server in servers],
            events,
            network_s=setup.network_s,
            max_attempts=setup.max_attempts,
            on_end=ended,
            on_effect=on_effect,
        )
        gateways.append(gateway)
    for replica in replicas:
        replica.listeners = [*gateways]
    _schedule_outages(setup, servers, replicas, gateways, events)
    _schedule_arrivals(requests, gateways, events)
    events.run()
    missing = len(requests) - len(outcomes)
    if missing:
        raise RuntimeError(f"{missing} requests never ended: a policy holds them back for ever")
    ordered = tuple(outcomes[index] for index in sorted(outcomes))
    return Result(
        outcomes=ordered,
        span_s=max((outcome.end_s or 0.0 for outcome in ordered), default=0.0),
        busy_s=tuple(replica.busy_s for replica in replicas),
        num_steps=sum(replica.num_steps for replica in replicas),
        num_preempted=sum(replica.num_preempted for replica in replicas),
        num_policy_errors=sum(replica.num_policy_errors for replica in replicas),
        num_evicted_chunks=sum(replica.kv.num_evicted_chunks for replica in replicas),
    )


def _check(requests: Sequence[SimRequest], setup: Setup) -> None:
    try:
        build_composer(setup.step)
    except PolicyConfigError as error:
        raise LoadtestError(f"the engine: {error}") from error
    if setup.model.chunk_tokens % setup.model.block_size:
        raise LoadtestError(f"a prefix chunk of {setup.model.chunk_tokens} tokens isn't a whole number of KV blocks")
    capacity = setup.model.capacity_tokens
    for request in requests:
        if request.prompt_tokens < 1 or request.output_tokens < 1:
            raise LoadtestError(f"request {request.request_id}: prompt and output must be at least one token each")
        if request.prompt_tokens + request.output_tokens > capacity:
            raise LoadtestError(
                f"request {request.request_id} has {request.prompt_tokens} + {request.output_tokens} tokens, and a "
                f"replica holds {capacity}"
            )
    for outage in setup.outages:
        if not 0 <= outage.replica_index < setup.num_replicas or not outage.from_s < outage.to_s:
            raise LoadtestError(f"outage {outage}: no such replica, or no span of time")


def _schedule_arrivals(requests: Sequence[SimRequest], gateways: Sequence[SimGateway], events: EventQueue) -> None:
    """One event at a time is enough, and keeps the queue small."""
    waiting = iter(sorted(requests, key=lambda request: (request.arrival_s, request.index)))

    def arrive(request: SimRequest, place: int, now_s: float) -> None:
        gateways[place].arrives(request, now_s)
        schedule((place + 1) % len(gateways))

    def schedule(place: int) -> None:
        request = next(waiting, None)
        if request is not None:
            events.at(request.arrival_s, Phase.GATEWAY_INPUT, place, partial(arrive, request, place))

    schedule(0)


def _schedule_outages(
    setup: Setup,
    servers: Sequence[SimulatedServer],
    replicas: Sequence[SimReplica],
    gateways: Sequence[SimGateway],
    events: EventQueue,
) -> None:
    for outage in setup.outages:
        place, replica = outage.replica_index, replicas[outage.replica_index]
        events.at(outage.from_s, Phase.REPLICA_INPUT, place, replica.fail)
        events.at(outage.to_s, Phase.REPLICA_INPUT, place, replica.recover)
        for gateway in gateways:
            for at_s, is_available in ((outage.from_s, False), (outage.to_s, True)):
                seen = replace(servers[place], is_available=is_available)
                seen_s = at_s + setup.probe_s
                events.at(seen_s, Phase.GATEWAY_INPUT, gateway.index, partial(gateway.replica_changed, seen))


def _answer(outcome: RequestOutcome) -> Answer:
    request, error = outcome.request, outcome.error
    answer = Answer(
        index=request.index,
        lane=request.group,
        prompt_tokens=request.prompt_tokens,
        output_tokens=request.output_tokens,
        scheduled_s=request.arrival_s,
        sent_s=request.arrival_s,
        end_s=outcome.end_s,
        error=error,
    )
    if error is None:
        answer.head_s = outcome.token_s[0]
        answer.status = 200
        answer.chunk_s = outcome.token_s
        answer.finish_reason = "length"
        answer.usage = {"prompt_tokens": request.prompt_tokens, "completion_tokens": len(outcome.token_s)}
    elif error.startswith("http-"):
        answer.status = int(error.removeprefix("http-"))
    return answer
