"""The Prometheus names of the gateway; those of what is read when the page is asked for are in `live_metrics.py`.

Labels are bounded: lanes, layers, routes, outcomes and reasons are words of ours, replicas those of the configuration,
tenants those of the key file, of which only so many get series of their own.
"""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4

from policies.guarded import GuardedCore
from policies.objectives import NO_OBJECTIVE, Objective
from policies.types import Lane

from . import goodput
from .attribution import Layer, Record
from .front import Front
from .live_metrics import Keys, Live, Replicas
from .series import Distribution, Families

LATENCY_BUCKETS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)
TPOT_BUCKETS_S = (
    0.001,
    0.0025,
    0.005,
    0.0075,
    0.01,
    0.015,
    0.02,
    0.03,
    0.04,
    0.05,
    0.075,
    0.1,
    0.15,
    0.25,
    0.5,
    1,
    2.5,
)
LAG_BUCKETS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1)
ERROR_BUCKETS = (0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1)
LAG_INTERVAL_S = 0.25

SETTLE_EVERY = 256
"""Requests whose values wait to be put into buckets; that takes some 0.3 ms."""
MAX_TENANTS = 100
OTHER_TENANTS = "other"
"""Of the tenants that came after so many: a key file that changes all the time must not grow the page without end."""

NO_LANE = "none"
"""Of requests that ended before they got one."""


@dataclass(slots=True)
class _OfLane:
    """The series that nearly every request of a lane adds to, so that they needn't be looked up by their labels."""

    name: str
    layers: dict[Layer, Distribution]
    e2e: Distribution
    ttft: Distribution
    tpot: Distribution
    prediction_error: Distribution


class Metrics:
    """Everything on the page. `observe` takes each finished record once."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        """Of what is read when the page is asked for."""
        self.families = families = Families()
        self._counters, self._histograms = families.counters, families.histograms
        lane = ["lane"]
        self._requests = self._counters("tailgate_requests_total", "Finished requests.", ["route", "lane", "outcome"])
        self._turned_away = self._counters(
            "tailgate_requests_turned_away_total",
            "Requests rejected before queueing or evicted from the queue, by lane and reason.",
            ["lane", "outcome", "reason"],
        )
        self.objectives: Mapping[Lane, Objective] = {}
        """Of the lanes that have any."""
        self._judged = self._counters(
            "tailgate_requests_judged_total",
            "Requests with objectives: met, or the first missed of not-served, ttft, tpot, e2e.",
            ["lane", "result"],
        )
        self._downgraded = self._counters(
            "tailgate_requests_downgraded_total",
            "Requests that overload moved to the background lane, by the lane that was theirs.",
            lane,
        )
        self._retries = self._counters("tailgate_retries_total", "Calls to replicas beyond each request's first.", [])
        self._layers = self._histograms(
            "tailgate_layer_seconds",
            "Time that requests spent in each layer; a request's layers sum to its whole time.",
            ["layer", "lane"],
            LATENCY_BUCKETS_S,
        )
        self._ttft = self._histograms(
            "tailgate_ttft_seconds", "Arrival here to the first content sent on.", lane, LATENCY_BUCKETS_S
        )
        self._e2e = self._histograms(
            "tailgate_e2e_seconds", "Arrival here to the end of the answer.", lane, LATENCY_BUCKETS_S
        )
        self._tpot = self._histograms(
            "tailgate_tpot_seconds", "Time per output token after the first.", lane, TPOT_BUCKETS_S
        )
        self._prompt_tokens = self._counters(
            "tailgate_prompt_tokens_total", "Prompt tokens of finished requests.", lane
        )
        self._cached_tokens = self._counters(
            "tailgate_cached_prompt_tokens_total", "Prompt tokens that replicas had in their prefix cache.", lane
        )
        self._output_tokens = self._counters(
            "tailgate_output_tokens_total", "Output tokens of finished requests.", lane
        )
        self._counts = self._counters(
            "tailgate_prompt_token_counts_total",
            "Prompts counted, by source: local tokenizer, replica, or bytes per token.",
            ["source"],
        )
        self._prediction_error = self._histograms(
            "tailgate_output_prediction_error_ratio",
            "Difference of predicted and actual output tokens, as a share of the larger.",
            lane,
            ERROR_BUCKETS,
        )
        self._lag = self._histograms(
            "tailgate_event_loop_lag_seconds", "How late the event loop ran a timer.", [], LAG_BUCKETS_S
        )
        self._tenant_requests = self._counters(
            "tailgate_tenant_requests_total", "Finished requests with an API key.", ["tenant", "outcome"]
        )
        self._tenant_tokens = self._counters(
            "tailgate_tenant_tokens_total", "Tokens of requests with an API key.", ["tenant", "kind"]
        )
        self._tenants: set[str] = set()
        self._lanes: dict[Lane | None, _OfLane] = {}
        self._num_unsettled = 0
        self._begin()
        ProcessCollector(registry=self.registry)
        self._lag_task: asyncio.Task[None] | None = None

    def _begin(self) -> None:
        """All histograms are there from the start, at zero: traffic, whatever it is, adds next to nothing."""
        for lane in Lane:
            of = self._of_lane(lane)
            for layer in Layer:
                of.layers[layer] = self._layers.at(layer.value, of.name)
        of = self._of_lane(None)
        for layer in (Layer.ACCEPT, Layer.TOKENIZE, Layer.OTHER):
            of.layers[layer] = self._layers.at(layer.value, of.name)
        self._lag.at()

    def start(self) -> None:
        """Begins sampling the event loop's lag. Call on the loop."""
        self._lag_task = asyncio.create_task(self._sample_lag(), name="event-loop-lag")

    async def aclose(self) -> None:
        task, self._lag_task = self._lag_task, None
        if task is not None:
            task.cancel()
            await asyncio.wait([task])

    async def _sample_lag(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            due_s = loop.time() + LAG_INTERVAL_S
            await asyncio.sleep(LAG_INTERVAL_S)
            lag = self._lag.at()
            lag.add(max(0.0, loop.time() - due_s))
            lag.settle()

    def bind(
        self,
        core: GuardedCore,
        pool: Replicas,
        *,
        num_counts_waiting: Callable[[], int] = lambda: 0,
        encoders: Callable[[], Mapping[str, str]] = dict,
        num_lines_dropped: Callable[[], int] = lambda: 0,
        keys: Keys | None = None,
        front: Front | None = None,
    ) -> None:
        """Adds what is read from its owners whenever the page is asked for. Once."""
        self.registry.register(Live(core, pool, num_counts_waiting, encoders, num_lines_dropped, keys, front))

    def observe(self, record: Record) -> None:
        """A request ended, however it did."""
        of = self._lanes[record.lane]
        lane, outcome, output_tokens = of.name, record.outcome, record.output_tokens
        self._requests.counts[record.route, lane, outcome] += 1.0
        if outcome in ("rejected", "evicted"):
            self._turned_away.counts[lane, outcome, record.reason or "unknown"] += 1.0
        if record.own_lane is not None and record.own_lane is not record.lane:
            self._downgraded.counts[record.own_lane.value,] += 1.0
        if self.objectives or record.first_token_by_s is not None:
            self._judge(record)
        if record.attempt > 1:
            self._retries.counts[()] += record.attempt - 1
        layers = of.layers
        for layer, duration_s in record.layers.items():
            if layer not in layers:
                layers[layer] = self._layers.at(layer.value, lane)
            layers[layer].add(duration_s)
        of.e2e.add(record.total_s)
        if record.ttft_s is not None:
            of.ttft.add(record.ttft_s)
        if record.tpot_s is not None:
            of.tpot.add(record.tpot_s)
        if record.tenant:
            self._observe_tenant(record)
        if record.prompt_tokens_source is not None:
            self._counts.counts[record.prompt_tokens_source,] += 1.0
        if record.prompt_tokens:
            self._prompt_tokens.counts[lane,] += record.prompt_tokens
        if record.cached_tokens:
            self._cached_tokens.counts[lane,] += record.cached_tokens
        if output_tokens:
            self._output_tokens.counts[lane,] += output_tokens
            # Only answers that ended by themselves say how long they were going to be.
            predicted_tokens = record.predicted_output_tokens
            if outcome == "ok" and predicted_tokens is not None:
                error_tokens = abs(predicted_tokens - output_tokens)
                of.prediction_error.add(error_tokens / max(predicted_tokens, output_tokens))
        self._num_unsettled += 1
        if self._num_unsettled >= SETTLE_EVERY:
            self._num_unsettled = 0
            self.families.settle()

    def _of_lane(self, lane: Lane | None) -> "_OfLane":
        name = NO_LANE if lane is None else lane.value
        families = (self._e2e, self._ttft, self._tpot, self._prediction_error)
        of = self._lanes[lane] = _OfLane(name, {}, *(family.at(name) for family in families))
        return of

    def _judge(self, record: Record) -> None:
        lane = record.own_lane or record.lane
        if lane is None:
            return  # it wasn't the queue that turned it away
        objective = self.objectives.get(lane, NO_OBJECTIVE)
        if objective is NO_OBJECTIVE and record.first_token_by_s is None:
            return
        if (result := goodput.result(record, objective)) is not None:
            self._judged.counts[lane.value, result] += 1.0

    def _observe_tenant(self, record: Record) -> None:
        tenant = record.tenant
        if tenant not in self._tenants:
            if len(self._tenants) < MAX_TENANTS:
                self._tenants.add(tenant)
            else:
                tenant = OTHER_TENANTS
        self._tenant_requests.counts[tenant, record.outcome] += 1.0
        if record.prompt_tokens:
            self._tenant_tokens.counts[tenant, "prompt"] += record.prompt_tokens
        if record.output_tokens:
            self._tenant_tokens.counts[tenant, "output"] += record.output_tokens

    def render(self) -> tuple[bytes, str]:
        """The page in Prometheus text format, and its content type."""
        return self.families.render() + generate_latest(self.registry), CONTENT_TYPE_PLAIN_0_0_4
