"""Every Prometheus metric of the engine, under vLLM's names where vLLM has one: its dashboards and scrapers fit.

All carry vLLM's labels `model_name` and `engine` (always "0").
"""

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

from .outputs import FinishReason, Timing

_LABELS = ("model_name", "engine")
_TTFT_BUCKETS_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 40.0, 80.0, 160.0)
_TOKEN_BUCKETS_S = (0.0025, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 0.75, 1.0, 2.5, 5.0)
_REQUEST_BUCKETS_S = (0.01, 0.05, 0.1, 0.3, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 40.0, 60.0, 120.0, 240.0, 480.0)
_STEP_TOKEN_BUCKETS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192)


class Metrics:
    """Counters and histograms written by the engine's thread, gauges read at scrape. Has its own registry."""

    def __init__(self, model_name: str) -> None:
        self._registry = CollectorRegistry()
        self._model_name = model_name
        self._prompt_tokens = self._counter("vllm:prompt_tokens", "Prompt tokens of scheduled sequences")
        self._generation_tokens = self._counter("vllm:generation_tokens", "Generated tokens")
        self._preemptions = self._counter("vllm:num_preemptions", "Sequences thrown out to be recomputed")
        self._cache_queries = self._counter("vllm:prefix_cache_queries", "Prompt tokens looked up in the prefix cache")
        self._cache_hits = self._counter("vllm:prefix_cache_hits", "Prompt tokens found in the prefix cache")
        self._failures = self._counter("tailgate_backend_requests_failed", "Requests the engine gave up")
        self._policy_errors = self._counter(
            "tailgate_backend_policy_errors", "Step plans that broke a rule and were replaced by chunked FCFS"
        )
        success = Counter(
            "vllm:request_success",
            "Finished sequences by reason",
            (*_LABELS, "finished_reason"),
            registry=self._registry,
        )
        self._success = {reason: success.labels(model_name, "0", reason.value) for reason in FinishReason}
        self._ttft = self._histogram("vllm:time_to_first_token_seconds", "Arrival to first token", _TTFT_BUCKETS_S)
        self._itl = self._histogram("vllm:inter_token_latency_seconds", "Between two tokens", _TOKEN_BUCKETS_S)
        self._tpot = self._histogram(
            "vllm:request_time_per_output_token_seconds", "Mean time between a sequence's tokens", _TOKEN_BUCKETS_S
        )
        self._e2e = self._histogram("vllm:e2e_request_latency_seconds", "Arrival to last token", _REQUEST_BUCKETS_S)
        self._queue = self._histogram("vllm:request_queue_time_seconds", "Arrival to scheduled", _REQUEST_BUCKETS_S)
        self._prefill = self._histogram(
            "vllm:request_prefill_time_seconds", "Scheduled to first token", _REQUEST_BUCKETS_S
        )
        self._decode = self._histogram(
            "vllm:request_decode_time_seconds", "First token to last token", _REQUEST_BUCKETS_S
        )
        self._step = self._histogram("tailgate_backend_step_seconds", "One engine step", _TOKEN_BUCKETS_S)
        self._step_overhead = self._histogram(
            "tailgate_backend_step_overhead_seconds",
            "The part of a step outside the model's forward pass",
            (0.0001, 0.00025, 0.0005, 0.001, 0.002, 0.004, 0.008, 0.016, 0.032, 0.064, 0.128),
        )
        self._step_tokens = self._histogram(
            "tailgate_backend_step_tokens", "Tokens computed in one step", _STEP_TOKEN_BUCKETS
        )

    def bind(
        self,
        *,
        num_running: Callable[[], int],
        num_waiting: Callable[[], int],
        held_blocks: Callable[[], int],
        num_blocks: int,
        block_size: int,
        enable_prefix_caching: bool,
    ) -> None:
        """Add the gauges that are read from the engine at scrape time. Call once."""
        self._gauge("vllm:num_requests_running", "Sequences in the running batch", num_running)
        self._gauge("vllm:num_requests_waiting", "Sequences waiting to be scheduled", num_waiting)
        self._gauge("vllm:kv_cache_usage_perc", "Share of KV blocks held, 0 to 1", lambda: held_blocks() / num_blocks)
        info = Gauge(
            "vllm:cache_config_info",
            "Size of the KV cache",
            (*_LABELS, "block_size", "num_gpu_blocks", "enable_prefix_caching"),
            registry=self._registry,
        )
        info.labels(self._model_name, "0", str(block_size), str(num_blocks), str(enable_prefix_caching)).set(1)

    def observe_scheduled(self, prompt_tokens: int, cached_tokens: int) -> None:
        """A sequence is scheduled for the first time."""
        self._prompt_tokens.inc(prompt_tokens)
        self._cache_queries.inc(prompt_tokens)
        self._cache_hits.inc(cached_tokens)

    def observe_first_token(self, ttft_s: float) -> None:
        self._generation_tokens.inc()
        self._ttft.observe(ttft_s)

    def observe_inter_token(self, itl_s: float) -> None:
        self._generation_tokens.inc()
        self._itl.observe(itl_s)

    def observe_finished(self, timing: Timing, reason: FinishReason, output_tokens: int) -> None:
        """A sequence finished by itself: aborted and failed ones are not here."""
        self._success[reason].inc()
        self._e2e.observe(timing.last_token_s - timing.arrival_s)
        self._queue.observe(timing.queue_s)
        self._prefill.observe(timing.prefill_s)
        self._decode.observe(timing.decode_s)
        if output_tokens > 1:
            self._tpot.observe(timing.decode_s / (output_tokens - 1))

    def observe_failure(self) -> None:
        self._failures.inc()

    def observe_step(
        self, *, step_s: float, forward_s: float, num_tokens: int, num_preempted: int, num_policy_errors: int
    ) -> None:
        """A step was run: planning, forward, sampling and reporting."""
        self._step.observe(step_s)
        self._step_overhead.observe(step_s - forward_s)
        self._step_tokens.observe(num_tokens)
        self._preemptions.inc(num_preempted)
        self._policy_errors.inc(num_policy_errors)

    def render(self) -> tuple[bytes, str]:
        """The exposition and its content type."""
        return generate_latest(self._registry), CONTENT_TYPE_LATEST

    def _counter(self, name: str, description: str) -> Counter:
        return Counter(name, description, _LABELS, registry=self._registry).labels(self._model_name, "0")

    def _histogram(self, name: str, description: str, buckets: tuple[float, ...]) -> Histogram:
        histogram = Histogram(name, description, _LABELS, registry=self._registry, buckets=buckets)
        return histogram.labels(self._model_name, "0")

    def _gauge(self, name: str, description: str, read: Callable[[], float]) -> None:
        gauge = Gauge(name, description, _LABELS, registry=self._registry)
        gauge.labels(self._model_name, "0").set_function(read)
