"""Every Prometheus name of the gateway.

Labels are bounded: lanes, layers, routes, outcomes and reasons are words of ours, replicas those of the configuration.
Figures that exist anyway (queued, in flight, available) are read when the page is asked for, never kept twice.
"""

import asyncio
from collections.abc import Callable, Iterator
from typing import Protocol

from prometheus_client import CollectorRegistry, Counter, Histogram, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from policies.dispatch import DispatchCore
from policies.types import Lane

from .attribution import Layer, Record
from .replicas import Replica

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

NO_LANE = "none"
"""Of requests that ended before they got one."""


class Replicas(Protocol):
    def all(self) -> list[Replica]: ...


class Metrics:
    """The gateway's own registry. `observe` takes each finished record once."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._requests = Counter(
            "tailgate_requests_total",
            "Finished requests.",
            ["route", "lane", "outcome"],
            registry=self.registry,
        )
        self._turned_away = Counter(
            "tailgate_requests_turned_away_total",
            "Requests rejected before queueing or evicted from the queue, by reason.",
            ["outcome", "reason"],
            registry=self.registry,
        )
        self._retries = Counter(
            "tailgate_retries_total", "Calls to replicas beyond each request's first.", registry=self.registry
        )
        self._layers = Histogram(
            "tailgate_layer_seconds",
            "Time that requests spent in each layer; a request's layers sum to its whole time.",
            ["layer", "lane"],
            buckets=LATENCY_BUCKETS_S,
            registry=self.registry,
        )
        self._ttft = self._histogram("tailgate_ttft_seconds", "Arrival here to the first content sent on.")
        self._e2e = self._histogram("tailgate_e2e_seconds", "Arrival here to the end of the answer.")
        self._tpot = self._histogram(
            "tailgate_tpot_seconds", "Time per output token after the first.", buckets=TPOT_BUCKETS_S
        )
        self._prompt_tokens = Counter(
            "tailgate_prompt_tokens_total", "Prompt tokens of finished requests.", ["lane"], registry=self.registry
        )
        self._cached_tokens = Counter(
            "tailgate_cached_prompt_tokens_total",
            "Prompt tokens that replicas had in their prefix cache.",
            ["lane"],
            registry=self.registry,
        )
        self._output_tokens = Counter(
            "tailgate_output_tokens_total", "Output tokens of finished requests.", ["lane"], registry=self.registry
        )
        self._counts = Counter(
            "tailgate_prompt_token_counts_total",
            "Prompts counted, by source: local tokenizer, replica, or bytes per token.",
            ["source"],
            registry=self.registry,
        )
        self._prediction_error = self._histogram(
            "tailgate_output_prediction_error_ratio",
            "Difference of predicted and actual output tokens, as a share of the larger.",
            buckets=ERROR_BUCKETS,
        )
        self._lag = Histogram(
            "tailgate_event_loop_lag_seconds",
            "How late the event loop ran a timer.",
            buckets=LAG_BUCKETS_S,
            registry=self.registry,
        )
        ProcessCollector(registry=self.registry)
        self._layer_children: dict[tuple[Layer, str], Histogram] = {}
        self._lag_task: asyncio.Task[None] | None = None

    def _histogram(self, name: str, text: str, buckets: tuple[float, ...] = LATENCY_BUCKETS_S) -> Histogram:
        return Histogram(name, text, ["lane"], buckets=buckets, registry=self.registry)

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
            self._lag.observe(max(0.0, loop.time() - due_s))

    def bind(
        self,
        core: DispatchCore,
        pool: Replicas,
        *,
        num_counts_waiting: Callable[[], int] = lambda: 0,
        num_lines_dropped: Callable[[], int] = lambda: 0,
    ) -> None:
        """Adds what is read from its owners whenever the page is asked for. Once."""
        self.registry.register(_Live(core, pool, num_counts_waiting, num_lines_dropped))

    def observe(self, record: Record) -> None:
        """A request ended, however it did."""
        lane = record.lane.value if record.lane is not None else NO_LANE
        self._requests.labels(record.route, lane, record.outcome).inc()
        if record.outcome in ("rejected", "evicted"):
            self._turned_away.labels(record.outcome, record.reason or "unknown").inc()
        if record.attempt > 1:
            self._retries.inc(record.attempt - 1)
        for layer, duration_s in record.layers.items():
            child = self._layer_children.get((layer, lane))
            if child is None:
                child = self._layer_children[layer, lane] = self._layers.labels(layer.value, lane)
            child.observe(duration_s)
        self._e2e.labels(lane).observe(record.total_s)
        if record.ttft_s is not None:
            self._ttft.labels(lane).observe(record.ttft_s)
        if record.tpot_s is not None:
            self._tpot.labels(lane).observe(record.tpot_s)
        if record.prompt_tokens_source is not None:
            self._counts.labels(record.prompt_tokens_source).inc()
        self._observe_tokens(record, lane)

    def _observe_tokens(self, record: Record, lane: str) -> None:
        if record.prompt_tokens:
            self._prompt_tokens.labels(lane).inc(record.prompt_tokens)
        if record.cached_tokens:
            self._cached_tokens.labels(lane).inc(record.cached_tokens)
        if not record.output_tokens:
            return
        self._output_tokens.labels(lane).inc(record.output_tokens)
        # Only answers that ended by themselves say how long they were going to be.
        if record.outcome == "ok" and record.predicted_output_tokens is not None:
            larger = max(record.predicted_output_tokens, record.output_tokens)
            error_tokens = abs(record.predicted_output_tokens - record.output_tokens)
            self._prediction_error.labels(lane).observe(error_tokens / larger)

    def render(self) -> tuple[bytes, str]:
        """The page in Prometheus text format, and its content type."""
        return generate_latest(self.registry), CONTENT_TYPE_LATEST


class _Live:
    """What is so at this moment, asked of whoever owns it."""

    def __init__(
        self,
        core: DispatchCore,
        pool: Replicas,
        num_counts_waiting: Callable[[], int],
        num_lines_dropped: Callable[[], int],
    ) -> None:
        self._core = core
        self._pool = pool
        self._num_counts_waiting = num_counts_waiting
        self._num_lines_dropped = num_lines_dropped

    def collect(self) -> Iterator[Metric]:
        queued = GaugeMetricFamily("tailgate_requests_queued", "Requests waiting for dispatch.", labels=["lane"])
        by_lane = self._core.queued_by_lane()
        for lane in Lane:
            queued.add_metric([lane.value], by_lane.get(lane, 0))
        yield queued
        yield GaugeMetricFamily(
            "tailgate_requests_in_flight", "Calls that hold a slot on a replica.", value=self._core.num_in_flight
        )
        tokens = GaugeMetricFamily(
            "tailgate_in_flight_tokens",
            "Prompt and predicted output tokens in flight, as counted here.",
            labels=["replica"],
        )
        available = GaugeMetricFamily(
            "tailgate_replica_available", "Whether a replica takes new work (1) or not (0).", labels=["replica"]
        )
        running = GaugeMetricFamily(
            "tailgate_replica_requests_running", "Running requests, as the replica says.", labels=["replica"]
        )
        waiting = GaugeMetricFamily(
            "tailgate_replica_requests_waiting", "Requests in the replica's own queue.", labels=["replica"]
        )
        usage = GaugeMetricFamily(
            "tailgate_replica_kv_cache_usage_ratio", "Share of the replica's KV cache in use.", labels=["replica"]
        )
        for replica in self._pool.all():
            name = [replica.replica_id]
            tokens.add_metric(name, self._core.in_flight_tokens(replica.replica_id))
            available.add_metric(name, float(replica.is_available))
            if (load := replica.load) is not None:
                for family, value in (
                    (running, load.num_running),
                    (waiting, load.num_waiting),
                    (usage, load.kv_usage_ratio),
                ):
                    if value is not None:
                        family.add_metric(name, value)
        yield from (tokens, available, running, waiting, usage)
        yield GaugeMetricFamily(
            "tailgate_tokenizer_waiting", "Prompts waiting for a tokenizer thread.", value=self._num_counts_waiting()
        )
        yield CounterMetricFamily(
            "tailgate_access_log_dropped_total",
            "Lines of the access log that were lost.",
            value=self._num_lines_dropped(),
        )
