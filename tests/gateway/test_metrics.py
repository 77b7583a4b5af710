"""The metrics page: what a record adds, what is read live, and that labels stay bounded."""

import asyncio
import time
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from gateway.attribution import Layer, Record
from gateway.config import parse_config
from gateway.metrics import SETTLE_EVERY, Metrics
from gateway.replica_metrics import ReplicaLoad
from gateway.replicas import ReplicaPool
from gateway.series import Families
from policies.config import PolicySpec, build_fallback, build_policy
from policies.guarded import GuardedCore
from policies.types import Lane

from .tiny_replica import until


def samples(metrics: Metrics) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    content, content_type = metrics.render()
    assert content_type.startswith("text/plain")
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(content.decode())
        for sample in family.samples
    }


def value(metrics: Metrics, name: str, **labels: str) -> float | None:
    return samples(metrics).get((name, tuple(sorted(labels.items()))))


def finished(**fields: Any) -> Record:
    record = Record("tg-1", 10.0, route="chat", model="m", **fields)
    record.enter(Layer.QUEUE, 10.5)
    record.enter(Layer.DECODE, 12.5)
    record.finish(16.0)
    return record


def test_a_record_is_counted_once_everywhere() -> None:
    """Outcome, layers, latencies, tokens, count source, prediction error."""
    metrics = Metrics()
    metrics.observe(
        finished(
            lane=Lane.INTERACTIVE,
            prompt_tokens=100,
            prompt_tokens_source="local",
            cached_tokens=64,
            output_tokens=50,
            predicted_output_tokens=100,
            ttft_s=2.5,
            tpot_s=0.02,
            attempt=2,
        )
    )
    lane = {"lane": "interactive"}
    assert value(metrics, "tailgate_requests_total", route="chat", outcome="ok", **lane) == 1
    assert value(metrics, "tailgate_retries_total") == 1
    assert value(metrics, "tailgate_layer_seconds_sum", layer="queue", **lane) == 2.0
    assert value(metrics, "tailgate_layer_seconds_sum", layer="decode", **lane) == 3.5
    assert value(metrics, "tailgate_e2e_seconds_sum", **lane) == 6.0
    assert value(metrics, "tailgate_ttft_seconds_sum", **lane) == 2.5
    assert value(metrics, "tailgate_tpot_seconds_count", **lane) == 1
    assert value(metrics, "tailgate_prompt_tokens_total", **lane) == 100
    assert value(metrics, "tailgate_cached_prompt_tokens_total", **lane) == 64
    assert value(metrics, "tailgate_output_tokens_total", **lane) == 50
    assert value(metrics, "tailgate_prompt_token_counts_total", source="local") == 1
    assert value(metrics, "tailgate_output_prediction_error_ratio_sum", **lane) == 0.5


def test_those_turned_away_are_counted_by_lane_and_reason() -> None:
    """Rejected before queueing or evicted from the queue; a client that left says nothing about predictions."""
    metrics = Metrics()
    metrics.observe(finished(outcome="rejected", reason="queue-full"))
    metrics.observe(finished(outcome="evicted", reason="queue-timeout", lane=Lane.LONG))
    metrics.observe(finished(outcome="client-left", output_tokens=5, predicted_output_tokens=500))
    assert (
        value(metrics, "tailgate_requests_turned_away_total", lane="none", outcome="rejected", reason="queue-full") == 1
    )
    assert (
        value(metrics, "tailgate_requests_turned_away_total", lane="long", outcome="evicted", reason="queue-timeout")
        == 1
    )
    assert value(metrics, "tailgate_requests_total", route="chat", outcome="rejected", lane="none") == 1
    for lane in Lane:
        assert value(metrics, "tailgate_output_prediction_error_ratio_count", lane=lane.value) == 0


def test_tenants_are_counted_and_bounded() -> None:
    """Requests and tokens of each; those beyond a number share one series, however often the key file changes."""
    metrics = Metrics()
    metrics.observe(finished(outcome="ok", tenant="acme", prompt_tokens=7, output_tokens=3))
    metrics.observe(finished(outcome="rejected", tenant="acme"))
    metrics.observe(finished(outcome="ok"))
    assert value(metrics, "tailgate_tenant_requests_total", tenant="acme", outcome="ok") == 1
    assert value(metrics, "tailgate_tenant_requests_total", tenant="acme", outcome="rejected") == 1
    assert value(metrics, "tailgate_tenant_tokens_total", tenant="acme", kind="prompt") == 7
    assert value(metrics, "tailgate_tenant_tokens_total", tenant="acme", kind="output") == 3
    for index in range(1000):
        metrics.observe(finished(outcome="ok", tenant=f"t{index}", prompt_tokens=1))
    tenants = {dict(labels)["tenant"] for name, labels in samples(metrics) if name == "tailgate_tenant_requests_total"}
    assert len(tenants) == 101
    assert value(metrics, "tailgate_tenant_requests_total", tenant="other", outcome="ok") == 901
    assert value(metrics, "tailgate_tenant_tokens_total", tenant="other", kind="prompt") == 901
    metrics.observe(finished(outcome="ok", tenant="acme"))
    assert value(metrics, "tailgate_tenant_requests_total", tenant="acme", outcome="ok") == 2


async def test_gauges_are_read_when_asked_for() -> None:
    """Queue, slots and availability are those of their owners at that moment."""
    metrics = Metrics()
    core = GuardedCore(build_policy(PolicySpec()), lambda: build_fallback(PolicySpec()))
    config = parse_config({"replicas": [{"url": "http://127.0.0.1:9", "models": ["m"]}]}, source="test")
    async with httpx.AsyncClient() as http:
        pool = ReplicaPool(config, http, time.monotonic, lambda _: None)
        core.replica_changed(pool.get("r1"), 0.0)
        waiting = 3
        encoders = {"m": "tiktoken"}
        metrics.bind(
            core, pool, num_counts_waiting=lambda: waiting, encoders=lambda: encoders, num_lines_dropped=lambda: 2
        )
        assert value(metrics, "tailgate_requests_in_flight") == 0
        assert value(metrics, "tailgate_policy_info", policy=core.policy_name) == 1
        assert value(metrics, "tailgate_policy_choice", choice="fcfs") == 1
        assert value(metrics, "tailgate_policy_choice", choice="boost") == 0
        assert value(metrics, "tailgate_policy_choice_changes_total") == 0
        core.calibration.add(10, 20, (10.0, 20.0), (30.0, 90.0))
        core.calibration.add(500, 20, (500.0, 20.0), (30.0, 90.0))
        core.calibration.add(500, 400, (500.0, 400.0), (30.0, 90.0))
        assert [
            value(metrics, f"tailgate_{name}_total")
            for name in (
                "output_predictions",
                "output_predictions_covered",
                "short_requests",
                "short_predicted_long",
            )
        ] == [3, 2, 2, 1]
        core.set_policy(build_policy(PolicySpec(ordering="fcfs")), 0.0)
        assert value(metrics, "tailgate_policy_choice", choice="fcfs") is None
        assert value(metrics, "tailgate_requests_queued", lane="standard") == 0
        assert value(metrics, "tailgate_in_flight_tokens", replica="r1") == 0
        assert value(metrics, "tailgate_in_flight_tokens_cap", replica="r1") == 32768
        assert value(metrics, "tailgate_idle_room_seconds_total", why="violation") == 0
        assert value(metrics, "tailgate_idle_room_events_total", why="kept") == 0
        assert value(metrics, "tailgate_replica_kv_cache_tokens", replica="r1") is None
        pool.get("r1").described_capacity_tokens = 20_000
        assert value(metrics, "tailgate_replica_kv_cache_tokens", replica="r1") == 20_000
        assert value(metrics, "tailgate_in_flight_tokens_cap", replica="r1") == 20_000
        assert value(metrics, "tailgate_replica_prompt_token_seconds", replica="r1") == pytest.approx(1e-4)
        assert value(metrics, "tailgate_replica_output_token_seconds", replica="r1") == pytest.approx(0.025)
        assert value(metrics, "tailgate_replica_available", replica="r1") == 0
        assert value(metrics, "tailgate_tokenizer_waiting") == 3
        assert value(metrics, "tailgate_tokenizer_info", model="m", encoder="tiktoken") == 1
        assert value(metrics, "tailgate_access_log_dropped_total") == 2
        pool.get("r1").is_available = True
        waiting = 0
        assert value(metrics, "tailgate_replica_available", replica="r1") == 1
        assert value(metrics, "tailgate_tokenizer_waiting") == 0
        assert value(metrics, "tailgate_replica_requests_running", replica="r1") is None
        pool.get("r1").load = ReplicaLoad(0.0, "vllm", num_running=2, kv_usage_ratio=0.5)
        assert value(metrics, "tailgate_replica_requests_running", replica="r1") == 2
        assert value(metrics, "tailgate_replica_kv_cache_usage_ratio", replica="r1") == 0.5
        assert value(metrics, "tailgate_replica_requests_waiting", replica="r1") is None


async def test_the_loops_lag_is_sampled_until_closed() -> None:
    """A blocked loop shows."""
    metrics = Metrics()
    metrics.start()
    await asyncio.sleep(0)
    time.sleep(0.4)  # noqa: ASYNC251 - blocking the loop is the point
    await until(lambda: (value(metrics, "tailgate_event_loop_lag_seconds_count") or 0) >= 1)
    assert (value(metrics, "tailgate_event_loop_lag_seconds_sum") or 0) >= 0.1
    await metrics.aclose()
    await metrics.aclose()
    assert not any(task.get_name() == "event-loop-lag" for task in asyncio.all_tasks())


def test_buckets_are_cumulative_and_closed_above() -> None:
    """A value on a bound belongs to that bound; what is over all of them counts in +Inf only."""
    families = Families()
    series = families.histograms("tailgate_x_seconds", "X.", ["lane"], (1.0, 2.0)).at("long")
    for figure in (0.5, 1.0, 1.5, 2.0, 99.0):
        series.add(figure)
    (family,) = text_string_to_metric_families(families.render().decode())
    assert (family.name, family.type, family.documentation) == ("tailgate_x_seconds", "histogram", "X.")
    assert [(sample.name, sample.labels, sample.value) for sample in family.samples] == [
        ("tailgate_x_seconds_bucket", {"lane": "long", "le": "1.0"}, 2.0),
        ("tailgate_x_seconds_bucket", {"lane": "long", "le": "2.0"}, 4.0),
        ("tailgate_x_seconds_bucket", {"lane": "long", "le": "+Inf"}, 5.0),
        ("tailgate_x_seconds_count", {"lane": "long"}, 5.0),
        ("tailgate_x_seconds_sum", {"lane": "long"}, 104.0),
    ]


def test_values_are_put_into_buckets_by_and_by(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every so many requests, so that what waits for it is bounded; none is lost, counted twice or moved by it."""
    num_observed = 0
    settled_after: list[int] = []
    metrics = Metrics()
    settle = metrics.families.settle

    def settle_and_note() -> None:
        settled_after.append(num_observed)
        settle()

    monkeypatch.setattr(metrics.families, "settle", settle_and_note)
    series = metrics.families.histograms("tailgate_y_seconds", "Y.", [], (1.0, 2.0)).at()
    for num_observed in range(1, 2 * SETTLE_EVERY + 2):
        metrics.observe(finished(lane=Lane.LONG))
        series.add(num_observed % 3 + 0.5)
    assert settled_after == [SETTLE_EVERY, 2 * SETTLE_EVERY]
    assert value(metrics, "tailgate_e2e_seconds_count", lane="long") == num_observed
    buckets = [value(metrics, "tailgate_y_seconds_bucket", le=le) for le in ("1.0", "2.0", "+Inf")]
    assert buckets == [num_observed // 3, num_observed // 3 * 2, num_observed]
    assert metrics.families.render() == metrics.families.render()


def test_label_values_may_hold_anything() -> None:
    """Tenants are named by people."""
    families = Families()
    name = 'a "b"\\\n{}'
    families.counters("tailgate_x_total", "X.", ["tenant"]).counts[name,] += 1.0
    (family,) = text_string_to_metric_families(families.render().decode())
    assert family.samples[0].labels == {"tenant": name}


def test_names_follow_one_scheme() -> None:
    """Prefix, units in the name, no milliseconds, none twice."""
    metrics = Metrics()
    for again in (
        lambda: metrics.families.counters("tailgate_retries_total", "", []),
        lambda: metrics.families.histograms("tailgate_retries_total", "", [], ()),
    ):
        with pytest.raises(ValueError, match="two metrics tailgate_retries_total"):
            again()
    names = [family.name for family in metrics.registry.collect() if not family.name.startswith("process_")]
    for name in [*names, *metrics.families.names]:
        assert name.startswith("tailgate_")
        assert not name.endswith(("_ms", "_s", "_seconds_total"))


def test_the_page_hardly_grows_with_traffic() -> None:
    """Every histogram is there from the start: each kind of request adds a line or two, and each more of it none."""
    metrics = Metrics()
    num_before = metrics.render()[0].count(b"\n")
    for index in range(500):
        lane = list(Lane)[index % len(Lane)]
        record = finished(
            lane=lane, prompt_tokens=9, output_tokens=9, predicted_output_tokens=9, ttft_s=1.0, tpot_s=0.1
        )
        for layer in Layer:
            record.enter(layer, 20.0 + index)
        metrics.observe(record)
    assert metrics.render()[0].count(b"\n") - num_before <= 3 * len(Lane)
