"""The pool: what probing finds out, whom it tells, and what it survives."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest

from gateway.api.openai_fields import TOKENIZE
from gateway.config import GatewayConfig, parse_config
from gateway.replica import Replica
from gateway.replica_health import EjectionRule
from gateway.replica_metrics import parse_load
from gateway.replica_probe import MAX_ANSWER_BYTES, Health, Prober
from gateway.replicas import ReplicaPool
from policies.admission.bounds import highest_cap

from .tiny_replica import TinyReplica, models_page, tiny_replica, until

VLLM_METRICS = """# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="m"} 2.0
vllm:num_requests_running{engine="1",model_name="m"} 1.0
vllm:num_requests_waiting{engine="0",model_name="m"} 4.0
vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.25
vllm:kv_cache_usage_perc{engine="1",model_name="m"} 0.75
vllm:cache_config_info{block_size="16",engine="0",num_gpu_blocks="100"} 1.0
vllm:cache_config_info{block_size="16",engine="1",num_gpu_blocks="100"} 1.0
process_start_time_seconds 100.0
"""


def config_of(
    *replicas: TinyReplica | str, interval_s: float = 0.02, timeout_s: float = 2.0, **more: Any
) -> GatewayConfig:
    urls = [replica if isinstance(replica, str) else replica.url for replica in replicas]
    data = {
        "replicas": [{"url": url} for url in urls],
        "probes": {"interval_s": interval_s, "timeout_s": timeout_s},
        **more,
    }
    return parse_config(data, source="test")


class Told:
    """What the pool told: a snapshot for every change."""

    def __init__(self) -> None:
        self.changes: list[tuple[str, bool, frozenset[str]]] = []

    def __call__(self, replica: Replica) -> None:
        self.changes.append((replica.replica_id, replica.is_available, replica.models))


@asynccontextmanager
async def running_pool(
    config: GatewayConfig, told: Told | None = None, rule: EjectionRule | None = None
) -> AsyncIterator[ReplicaPool]:
    async with httpx.AsyncClient(trust_env=False) as http:
        pool = ReplicaPool(config, http, time.monotonic, told or Told(), ejection_rule=rule)
        pool.start()
        try:
            yield pool
        finally:
            await pool.aclose()


def good(**pages: Any) -> dict[str, Any]:
    return {"health": (200, ""), "v1_models": models_page("m", max_model_len=4096), **pages}


async def test_a_replica_is_available_once_a_probe_succeeded() -> None:
    """The first probe comes at once; models and their bounds are known from then on."""
    told = Told()
    async with tiny_replica(**good()) as fake, running_pool(config_of(fake, interval_s=60), told) as pool:
        replica = pool.get("r1")
        assert not replica.is_available
        await until(lambda: replica.is_available)
        assert replica.models == {"m"}
        assert replica.max_model_len == {"m": 4096}
        assert (replica.host, replica.port) == ("127.0.0.1", int(fake.url.rsplit(":")[-1]))
        assert told.changes == [("r1", False, frozenset()), ("r1", True, frozenset({"m"}))]


async def test_only_changes_are_told() -> None:
    """Probes that find the same again tell nobody; a new model does, and so does its going."""
    told = Told()
    async with tiny_replica(**good()) as fake, running_pool(config_of(fake), told) as pool:
        await until(lambda: pool.get("r1").is_available)
        probes = fake.asked.count("/health")
        await until(lambda: fake.asked.count("/health") > probes + 3)
        assert len(told.changes) == 2
        fake.pages["/v1/models"] = models_page("m", "adapter")
        await until(lambda: len(told.changes) == 3)
        assert told.changes[-1] == ("r1", True, frozenset({"m", "adapter"}))


async def test_a_replica_that_goes_is_unavailable_and_comes_back() -> None:
    """A red health check takes it out, a green one brings it back and asks again who it is."""
    async with tiny_replica(**good(version=(200, {"version": "0.33"}))) as fake, running_pool(config_of(fake)) as pool:
        await until(lambda: pool.get("r1").is_available)
        assert pool.get("r1").kind == "vllm"
        asked = fake.asked.count("/version")
        fake.pages["/health"] = (503, "")
        await until(lambda: not pool.get("r1").is_available)
        assert pool.get("r1").last_error == "its health check failed: status 503 at /health"
        fake.pages["/v1/models"] = models_page("m", owned_by="sglang")
        fake.pages["/health"] = (200, "")
        await until(lambda: pool.get("r1").is_available)
        assert pool.get("r1").kind == "sglang"
        assert pool.get("r1").last_error is None
        assert fake.asked.count("/version") == asked == 1


async def test_nobody_listening_is_unavailable() -> None:
    """And costs the other replicas nothing."""
    async with tiny_replica(**good()) as fake, running_pool(config_of("http://127.0.0.1:9", fake)) as pool:
        await until(lambda: pool.get("r2").is_available)
        await until(lambda: pool.get("r1").last_error is not None)
        assert not pool.get("r1").is_available
        assert pool.get("r1").last_error == "its health check failed: connection refused"


async def test_a_slow_health_check_needs_three_in_a_row() -> None:
    """A busy engine may answer late once; one that never answers is down. It never delays another's probes."""
    asked = 0

    async def never(_: bytes) -> tuple[int, str]:
        nonlocal asked
        asked += 1
        await asyncio.Event().wait()
        return 200, ""

    async with (
        tiny_replica(**good()) as slow,
        tiny_replica(**good()) as quick,
        running_pool(config_of(slow, quick, timeout_s=0.25)) as pool,
    ):
        await until(lambda: pool.get("r1").is_available and pool.get("r2").is_available)
        slow.pages["/health"] = never
        await until(lambda: asked == 2)
        assert pool.get("r1").is_available
        await until(lambda: not pool.get("r1").is_available)
        assert asked >= 3
        assert pool.get("r1").last_error == "its health check failed: no answer from /health within 0.25 s"
        assert pool.get("r2").is_available


async def test_why_a_health_check_fails_is_told_in_words() -> None:
    """Whatever lies beneath what the HTTP library says of it."""

    async def why(url: str) -> str:
        health, said = await Prober(http, url, None, 5.0).health()
        assert health is Health.DOWN
        return said

    async with httpx.AsyncClient(trust_env=False) as http:
        assert await why("http://no.such.host.invalid") == "no such host"
        assert await why("http://127.0.0.1:9") == "connection refused"
        async with tiny_replica(health=(200, "x" * (MAX_ANSWER_BYTES + 1))) as fake:
            assert await why(fake.url) == "an answer over 4194304 bytes at /health"
        async with tiny_replica(v1_models=(401, "{}")) as fake:
            assert await why(fake.url) == "status 401 at /v1/models"
        async with tiny_replica(health=(200, "")) as fake:
            fake.extra_header = "content-encoding: gzip\r\n"
            assert await why(fake.url) == "a packed answer at /health"

        async def babbles(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(b"neither TLS nor HTTP\r\n\r\n")
            writer.close()

        async with await asyncio.start_server(babbles, "127.0.0.1", 0) as server:
            host = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
            assert await why(f"https://{host}") == "TLS: WRONG_VERSION_NUMBER"
            assert "status line" in await why(f"http://{host}")


@pytest.mark.parametrize(
    ("pages", "kind"),
    [
        ({"v1_models": models_page("m", owned_by="tailgate")}, "tailgate-backend"),
        ({"v1_models": models_page("m", owned_by="vllm")}, "vllm"),
        ({"v1_models": models_page("m", owned_by="llamacpp")}, "llama.cpp"),
        ({"version": (200, {"version": "0.33.0"})}, "vllm"),
        ({"metrics": (200, "sglang:num_running_reqs 0\n")}, "sglang"),
        ({"metrics": (200, "tgi_queue_size 1\n")}, "tgi"),
        ({"info": (200, {"model_id": "org/m", "max_concurrent_requests": 128})}, "tgi"),
        ({"props": (200, {"default_generation_settings": {}})}, "llama.cpp"),
        ({}, "openai"),
        ({"version": (200, "not json"), "info": (200, [1]), "props": (500, "")}, "openai"),
    ],
)
async def test_the_kind_is_found_out(pages: dict[str, Any], kind: str) -> None:
    """By the owner of its models, its version, its metrics or its own pages; else a plain OpenAI server."""
    async with tiny_replica(**good(**pages)) as fake, running_pool(config_of(fake)) as pool:
        await until(lambda: pool.get("r1").is_available)
        assert pool.get("r1").kind == kind


async def test_a_configured_kind_is_not_asked_for() -> None:
    """Configured names and kinds win over what a replica says."""
    async with tiny_replica(**good()) as fake:
        config = parse_config(
            {"replicas": [{"url": fake.url, "kind": "vllm", "models": ["configured"]}]}, source="test"
        )
        async with running_pool(config) as pool:
            assert pool.get("r1").models == {"configured"}
            await until(lambda: pool.get("r1").is_available)
            assert pool.get("r1").kind == "vllm"
            assert pool.get("r1").models == {"configured"}
            assert "/version" not in fake.asked


async def test_a_tgi_without_a_model_list_is_named_by_its_info() -> None:
    """/info gives the model and its bound."""
    info = (200, {"model_id": "org/m", "max_concurrent_requests": 128, "max_total_tokens": 2048})
    async with tiny_replica(health=(200, ""), info=info) as fake, running_pool(config_of(fake)) as pool:
        await until(lambda: pool.get("r1").is_available)
        assert pool.get("r1").max_model_len == {"org/m": 2048}


async def test_a_server_without_health_is_judged_by_its_models() -> None:
    """Plain OpenAI servers have no /health."""
    async with tiny_replica(v1_models=models_page("m")) as fake, running_pool(config_of(fake)) as pool:
        await until(lambda: pool.get("r1").is_available)
        fake.pages.clear()
        await until(lambda: not pool.get("r1").is_available)


async def test_a_replica_that_names_no_models_is_not_available() -> None:
    """Nothing could be sent there; the reason can be read."""
    async with (
        tiny_replica(health=(200, ""), v1_models=(200, {"data": [{"id": 7}, 8]})) as fake,
        running_pool(config_of(fake)) as pool,
    ):
        await until(lambda: pool.get("r1").last_error is not None)
        assert "models" in str(pool.get("r1").last_error)
        assert not pool.get("r1").is_available


async def test_load_is_scraped_and_capacity_follows_from_it() -> None:
    """Sums over engines, a mean for the ratio, the KV capacity from the cache's configuration."""
    async with tiny_replica(**good(metrics=(200, VLLM_METRICS))) as fake, running_pool(config_of(fake)) as pool:
        replica = pool.get("r1")
        await until(lambda: replica.is_available)
        assert replica.load is not None
        assert (replica.load.num_running, replica.load.num_waiting) == (3, 4)
        assert replica.load.kv_usage_ratio == pytest.approx(0.5)
        assert replica.kv_capacity_tokens == replica.load.kv_capacity_tokens == 3200
        assert replica.max_in_flight_tokens is None


async def test_more_is_configured_than_the_cache_holds(caplog: pytest.LogCaptureFixture) -> None:
    """The capacity is what holds, and the log says so once, however often it is scraped."""
    async with tiny_replica(**good(metrics=(200, VLLM_METRICS))) as fake:
        config = config_of(fake)
        own = config.replicas[0].model_copy(update={"max_in_flight_tokens": 5000})
        async with running_pool(config.model_copy(update={"replicas": (own,)})) as pool:
            await until(lambda: pool.get("r1").is_available)
            num_asked = len(fake.asked)
            await until(lambda: len(fake.asked) > num_asked + 10)
            assert highest_cap(pool.get("r1")) == 3200
    lines = [line for line in caplog.messages if "max_in_flight_tokens" in line]
    assert lines == ["replica r1: max_in_flight_tokens: 5000 is more than its KV cache holds, so that the cap is 3200"]


@pytest.mark.parametrize(
    ("labels", "expected"),
    [
        (
            # vLLM 0.32 for CPUs; some labels left out.
            '_block_size_resolved="True",block_size="32",cache_dtype="auto",cache_hit_alignment_tokens="None",'
            'effective_attention_block_size="32",enable_prefix_caching="True",engine="0",gpu_memory_utilization="0.92",'
            'is_attention_free="False",kv_cache_dtype_skip_layers="[]",kv_cache_max_concurrency="8.0",'
            'kv_cache_memory_bytes="2147483648",kv_cache_size_tokens="262144",num_cpu_blocks="None",'
            'num_gpu_blocks="8192",num_gpu_blocks_override="None",prefix_caching_hash_algo="sha256",'
            'sliding_window="None",user_specified_block_size="True"',
            262_144,
        ),
        ('block_size="16",engine="0",num_gpu_blocks="None"', None),
        ('block_size="None",engine="0",num_gpu_blocks="10"', None),
        ('engine="0"', None),
    ],
)
def test_the_cache_configuration_of_vllm(labels: str, expected: int | None) -> None:
    """Blocks times their size; nothing while the engine doesn't know them."""
    page = f"# TYPE vllm:cache_config_info gauge\nvllm:cache_config_info{{{labels}}} 1.0\n"
    assert parse_load(page, 0.0).kv_capacity_tokens == expected


@pytest.mark.parametrize(
    "page",
    [(500, ""), (200, "vllm:num_requests_running{ 1"), (200, "vllm:num_requests_running NaN"), (200, "\x00\xff")],
)
async def test_a_scrape_that_fails_stops_nothing(page: tuple[int, str]) -> None:
    """The replica stays available and the last figures stay."""
    async with tiny_replica(**good(metrics=(200, VLLM_METRICS))) as fake, running_pool(config_of(fake)) as pool:
        replica = pool.get("r1")
        await until(lambda: replica.is_available)
        fake.pages["/metrics"] = page
        scrapes = fake.asked.count("/metrics")
        await until(lambda: fake.asked.count("/metrics") > scrapes + 2)
        assert replica.is_available
        assert replica.load is not None
        assert replica.load.num_running == 3


async def test_a_restart_between_two_probes_is_seen() -> None:
    """The process's start time changes: who it is is asked again."""
    async with tiny_replica(**good(metrics=(200, VLLM_METRICS))) as fake, running_pool(config_of(fake)) as pool:
        await until(lambda: pool.get("r1").is_available)
        assert fake.asked.count("/version") == 1
        fake.pages["/metrics"] = (200, VLLM_METRICS.replace(" 100.0", " 200.0"))
        await until(lambda: fake.asked.count("/version") == 2)


async def test_answers_are_bounded() -> None:
    """A page over the limit is no answer, and neither is a packed one."""
    async with tiny_replica(**good(metrics=(200, "x" * 5_000_000))) as fake, running_pool(config_of(fake)) as pool:
        await until(lambda: pool.get("r1").is_available)
        assert pool.get("r1").load is None
        fake.extra_header = "content-encoding: gzip\r\n"
        await until(lambda: not pool.get("r1").is_available)


async def test_a_redirect_is_not_followed() -> None:
    """A replica can't send the gateway elsewhere."""
    async with tiny_replica(**good()) as target, tiny_replica(health=(307, "")) as fake:
        fake.extra_header = f"location: {target.url}/health\r\n"
        async with running_pool(config_of(fake)) as pool:
            await until(lambda: pool.get("r1").last_error is not None)
            assert target.asked == []


async def test_the_replicas_own_key_is_sent() -> None:
    """Probes carry the configured authorization."""
    async with tiny_replica(**good()) as fake:
        replicas = [{"url": fake.url, "authorization": "Bearer k"}]
        async with running_pool(parse_config({"replicas": replicas}, source="test")) as pool:
            await until(lambda: pool.get("r1").is_available)
            assert all("authorization: bearer k" in head.lower() for head in fake.headers)


@pytest.mark.parametrize("has_it", [True, False])
async def test_tokenize_is_a_feature_only_where_it_answers(has_it: bool) -> None:
    """Seen to work, not assumed from the kind."""
    pages = {"tokenize": (200, {"count": 2, "tokens": [1, 2]})} if has_it else {}
    async with (
        tiny_replica(**good(v1_models=models_page("m", owned_by="vllm"), **pages)) as fake,
        running_pool(config_of(fake)) as pool,
    ):
        await until(lambda: pool.get("r1").is_available)
        assert (TOKENIZE in pool.get("r1").features) is has_it


async def test_failing_calls_eject_whatever_health_says_and_a_trial_brings_back() -> None:
    """Green probes go on meanwhile; on trial the cap lets one request in; a success ends it."""
    rule = EjectionRule(num_failures=3, first_s=0.2, longest_s=1.0)
    async with (
        tiny_replica(**good()) as bad,
        tiny_replica(**good()) as other,
        running_pool(config_of(bad, other), rule=rule) as pool,
    ):
        await until(lambda: pool.get("r1").is_available and pool.get("r2").is_available)
        pool.report_failure("r1")
        pool.report_failure("r1")
        assert pool.get("r1").is_available
        pool.report_success("r1")
        for _ in range(3):
            pool.report_failure("r1")
        assert not pool.get("r1").is_available
        probes = bad.asked.count("/health")
        await until(lambda: bad.asked.count("/health") > probes + 2)
        assert not pool.get("r1").is_available
        await until(lambda: pool.get("r1").is_available)
        assert pool.get("r1").max_in_flight_tokens == 1
        pool.report_success("r1")
        assert pool.get("r1").is_available
        assert pool.get("r1").max_in_flight_tokens is None


async def test_the_last_replica_of_a_model_stays() -> None:
    """A doubtful replica is better than none: it goes only where another serves all its models."""
    async with (
        tiny_replica(**good()) as first,
        tiny_replica(**good()) as second,
        running_pool(config_of(first, second)) as pool,
    ):
        await until(lambda: pool.get("r1").is_available and pool.get("r2").is_available)
        for _ in range(3):
            pool.report_failure("r1")
        assert not pool.get("r1").is_available
        for _ in range(3):
            pool.report_failure("r2")
        assert pool.get("r1").is_available
        assert pool.get("r2").is_available
        second.pages["/health"] = (503, "")
        await until(lambda: not pool.get("r2").is_available)
        assert pool.get("r1").is_available


async def test_what_changes_nothing_for_others_looks_at_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """Among a thousand replicas a probe that finds all as it was, or one failed call, costs a look at that replica."""
    rule = EjectionRule(num_failures=2)
    async with (
        tiny_replica(**good()) as one,
        tiny_replica(**good()) as two,
        running_pool(config_of(one, two, interval_s=60.0), rule=rule) as pool,
    ):
        await until(lambda: all(replica.is_available for replica in pool.all()))
        looked_at: list[str] = []
        as_seen = Replica.as_seen

        def watched(replica: Replica) -> tuple[object, ...]:
            looked_at.append(replica.replica_id)
            return as_seen(replica)

        monkeypatch.setattr(Replica, "as_seen", watched)
        pool.report_failure("r1")
        assert looked_at == ["r1"]
        pool.report_failure("r1")
        assert set(looked_at) == {"r1", "r2"}, "the second takes it out, which may concern others"


async def test_names_aliases_and_the_default_resolve() -> None:
    """What a request may call a model; anything else is None."""
    async with tiny_replica(**good()) as fake:
        config = config_of(fake, models=[{"name": "m", "aliases": ["gpt"]}, {"name": "later"}], default_model="gpt")
        async with running_pool(config) as pool:
            await until(lambda: pool.get("r1").is_available)
            assert [pool.resolve(name) for name in ("m", "gpt", None, "later", "x", "")] == [
                "m",
                "m",
                "m",
                "later",
                None,
                None,
            ]
        plain = ReplicaPool(config_of(fake), httpx.AsyncClient(), time.monotonic, Told())
        assert plain.resolve(None) is None


async def test_models_are_merged() -> None:
    """One entry a model, with the shortest bound and who serves it."""
    async with (
        tiny_replica(**good(v1_models=models_page("m", "a", max_model_len=100))) as first,
        tiny_replica(**good()) as second,
        running_pool(config_of(first, second)) as pool,
    ):
        await until(lambda: pool.get("r1").is_available and pool.get("r2").is_available)
        models = pool.models()
        assert list(models) == ["a", "m"]
        assert models["m"].max_model_len == 100
        assert models["m"].replica_ids == ("r1", "r2")
        assert models["a"].replica_ids == ("r1",)
        assert models["a"].is_available


async def test_closing_ends_every_task() -> None:
    """Also in the middle of a probe, and twice."""

    async def never(_: bytes) -> tuple[int, str]:
        await asyncio.Event().wait()
        return 200, ""

    async with tiny_replica(health=never) as fake, httpx.AsyncClient() as http:
        before = asyncio.all_tasks()
        pool = ReplicaPool(config_of(fake), http, time.monotonic, Told())
        pool.start()
        await until(lambda: fake.asked == ["/health"])
        await pool.aclose()
        await pool.aclose()
        names = {task.get_name() for task in asyncio.all_tasks() - before}
        assert not any(name.startswith("probe-") for name in names)
