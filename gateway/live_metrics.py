"""Figures that exist anyway: asked of their owners whenever the page is asked for, and never kept twice."""

import asyncio
from collections.abc import Callable, Iterator, Mapping
from typing import Protocol

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from policies.adaptive import CHOICES
from policies.guarded import GuardedCore
from policies.types import Lane

from .front import Front
from .replica import Replica


class Replicas(Protocol):
    def all(self) -> list[Replica]: ...


class Keys(Protocol):
    is_refused: bool

    @property
    def has_keys(self) -> bool: ...
    @property
    def num_keys(self) -> int: ...
    @property
    def num_in_flight(self) -> int: ...
    @property
    def in_flight_tokens(self) -> int: ...


class Live:
    """What is so at this moment, asked of whoever owns it."""

    def __init__(
        self,
        core: GuardedCore,
        pool: Replicas,
        num_counts_waiting: Callable[[], int],
        encoders: Callable[[], Mapping[str, str]],
        num_lines_dropped: Callable[[], int],
        keys: Keys | None,
        front: Front | None,
    ) -> None:
        self._core = core
        self._pool = pool
        self._num_counts_waiting = num_counts_waiting
        self._encoders = encoders
        self._num_lines_dropped = num_lines_dropped
        self._keys = keys
        self._front = front

    def collect(self) -> Iterator[Metric]:
        if self._front is not None:
            yield GaugeMetricFamily(
                "tailgate_client_connections", "Open connections of clients.", value=self._front.num_open
            )
            refused = CounterMetricFamily(
                "tailgate_refused_total", "Refused before they were requests, by reason.", labels=["reason"]
            )
            for reason, count in self._front.refused.items():
                refused.add_metric([reason], count)
            yield refused
        queued = GaugeMetricFamily("tailgate_requests_queued", "Requests waiting for dispatch.", labels=["lane"])
        by_lane = self._core.queued_by_lane()
        for lane in Lane:
            queued.add_metric([lane.value], by_lane.get(lane, 0))
        yield queued
        yield GaugeMetricFamily(
            "tailgate_requests_in_flight", "Calls that hold a slot on a replica.", value=self._core.num_in_flight
        )
        yield from self._policy()
        tokens = GaugeMetricFamily(
            "tailgate_in_flight_tokens",
            "Prompt and predicted output tokens in flight, as counted here.",
            labels=["replica"],
        )
        cap = GaugeMetricFamily(
            "tailgate_in_flight_tokens_cap", "Tokens that may be in flight on a replica.", labels=["replica"]
        )
        capacity = GaugeMetricFamily(
            "tailgate_replica_kv_cache_tokens", "What the replica's KV cache holds, where known.", labels=["replica"]
        )
        available = GaugeMetricFamily(
            "tailgate_replica_available", "Whether a replica takes new work (1) or not (0).", labels=["replica"]
        )
        slices = GaugeMetricFamily(
            "tailgate_replica_takes_slices",
            "Whether long prompts may go there in slices (1), since its prefix cache was seen to keep them.",
            labels=["replica"],
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
        prefill = GaugeMetricFamily(
            "tailgate_replica_prompt_token_seconds",
            "Seconds of the replica that a prompt token takes, as fitted to its calls.",
            labels=["replica"],
        )
        decode = GaugeMetricFamily(
            "tailgate_replica_output_token_seconds",
            "Seconds of the replica that an output token takes, as fitted to its calls: its batch shared out.",
            labels=["replica"],
        )
        for replica in self._pool.all():
            name = [replica.replica_id]
            if (view := self._core.view(replica.replica_id)) is not None:
                prefill.add_metric(name, view.timing.prefill_s_per_token)
                decode.add_metric(name, view.timing.decode_s_per_token)
                tokens.add_metric(name, view.in_flight_tokens)
                cap.add_metric(name, view.cap_tokens)
                if view.kv_capacity_tokens is not None:
                    capacity.add_metric(name, view.kv_capacity_tokens)
            available.add_metric(name, float(replica.is_available))
            slices.add_metric(name, float(replica.slice_block_tokens is not None))
            if (load := replica.load) is not None:
                for family, value in (
                    (running, load.num_running),
                    (waiting, load.num_waiting),
                    (usage, load.kv_usage_ratio),
                ):
                    if value is not None:
                        family.add_metric(name, value)
        yield from self._slicing()
        yield from (tokens, cap, capacity, available, slices, running, waiting, usage, prefill, decode)
        idle_s = CounterMetricFamily(
            "tailgate_idle_room_seconds",
            "Time during which a request waited that a replica had room for: kept for another, or for no reason.",
            labels=["why"],
        )
        num_idle = CounterMetricFamily("tailgate_idle_room_events", "How often that began.", labels=["why"])
        for why, seconds in self._core.idle.seconds.items():
            idle_s.add_metric([why.value], seconds)
            num_idle.add_metric([why.value], self._core.idle.num_times[why])
        yield from (idle_s, num_idle)
        yield GaugeMetricFamily("tailgate_tasks", "Tasks of the event loop that haven't ended.", value=_num_tasks())
        yield GaugeMetricFamily(
            "tailgate_tokenizer_waiting", "Prompts waiting for a tokenizer thread.", value=self._num_counts_waiting()
        )
        encoders = GaugeMetricFamily(
            "tailgate_tokenizer_info", "What counts the tokens of a model here.", labels=["model", "encoder"]
        )
        for model, encoder in self._encoders().items():
            encoders.add_metric([model, encoder], 1)
        yield encoders
        yield CounterMetricFamily(
            "tailgate_access_log_dropped_total",
            "Lines of the access log that were lost.",
            value=self._num_lines_dropped(),
        )
        if self._keys is not None and self._keys.has_keys:
            yield GaugeMetricFamily("tailgate_keys", "API keys that count now.", value=self._keys.num_keys)
            yield GaugeMetricFamily(
                "tailgate_limited_requests_in_flight",
                "Requests being served whose keys have limits.",
                value=self._keys.num_in_flight,
            )
            yield GaugeMetricFamily(
                "tailgate_limited_tokens_in_flight",
                "Tokens that they hold of their keys' limits.",
                value=self._keys.in_flight_tokens,
            )
            yield GaugeMetricFamily(
                "tailgate_key_file_refused",
                "Whether the key file as it is was refused (1), so that the keys from before count.",
                value=float(self._keys.is_refused),
            )

    def _slicing(self) -> Iterator[Metric]:
        counts = self._core.slice_counts
        for name, what, value in (
            ("slices", "Calls that computed a part of a long prompt ahead.", counts.num_slices),
            ("stopped_prefills", "Running prefills that were stopped for others.", counts.num_stops),
            ("sliced_requests", "Requests whose prompt went in slices.", counts.num_sliced),
            (
                "slices_in_vain",
                "Of those, the ones that didn't find their slices in the cache.",
                counts.num_in_vain,
            ),
        ):
            yield CounterMetricFamily(f"tailgate_{name}_total", what, value=value)

    def _policy(self) -> Iterator[Metric]:
        info = GaugeMetricFamily("tailgate_policy_info", "The policy that decides.", labels=["policy"])
        info.add_metric([self._core.policy_name], 1)
        yield info
        if (choice := self._core.choice) is not None:
            chosen = GaugeMetricFamily(
                "tailgate_policy_choice",
                "Whether requests are ordered so at present (1) or not (0).",
                labels=["choice"],
            )
            for name in CHOICES:
                chosen.add_metric([name], float(name == choice.name))
            yield chosen
        yield CounterMetricFamily(
            "tailgate_policy_choice_changes_total",
            "Changes of how requests are ordered.",
            value=self._core.num_choice_changes,
        )
        yield CounterMetricFamily(
            "tailgate_policy_failures_total",
            "Times that a part of the policy raised, so that plain order of arrival took its place.",
            value=self._core.num_policy_failures,
        )
        calibration = self._core.calibration
        for name, what, count in (
            ("output_predictions", "Answers whose length had been predicted.", calibration.num_predicted),
            ("output_predictions_covered", "Of those, the ones no longer than predicted.", calibration.num_covered),
            ("short_requests", "Answered requests whose real budget was an interactive one.", calibration.num_short),
            (
                "short_predicted_long",
                "Of those, the ones whose predicted budget was over the standard lane's.",
                calibration.num_short_predicted_long,
            ),
        ):
            yield CounterMetricFamily(f"tailgate_{name}_total", what, value=count)


def _num_tasks() -> int:
    try:
        return len(asyncio.all_tasks())
    except RuntimeError:  # asked outside of the loop
        return 0
