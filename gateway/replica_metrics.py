"""What a replica's /metrics page says about its load, whichever engine wrote it.

Names checked against vLLM 0.33 (older ones are accepted too), Text Generation Inference 3, SGLang 0.5, llama.cpp.
Labels such as `model_name` and `engine` are summed over; ratios are averaged.
"""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

from prometheus_client.parser import text_string_to_metric_families

# Field of `ReplicaLoad` → the names it has, newest first.
SUMS: Mapping[str, tuple[str, ...]] = {
    "num_running": (
        "vllm:num_requests_running",
        "tgi_batch_current_size",
        "sglang:num_running_reqs",
        "llamacpp:requests_processing",
    ),
    "num_waiting": (
        "vllm:num_requests_waiting",
        "tgi_queue_size",
        "sglang:num_queue_reqs",
        "llamacpp:requests_deferred",
    ),
    "prefix_queries_tokens": ("vllm:prefix_cache_queries_total", "vllm:gpu_prefix_cache_queries_total"),
    "prefix_hits_tokens": ("vllm:prefix_cache_hits_total", "vllm:gpu_prefix_cache_hits_total"),
    "num_preemptions": ("vllm:num_preemptions_total",),
    "prompt_tokens": ("vllm:prompt_tokens_total", "sglang:prompt_tokens_total", "llamacpp:prompt_tokens_total"),
    "generation_tokens": (
        "vllm:generation_tokens_total",
        "sglang:generation_tokens_total",
        "llamacpp:tokens_predicted_total",
    ),
    "kv_capacity_tokens": ("sglang:max_total_num_tokens",),
}
MEANS: Mapping[str, tuple[str, ...]] = {
    "kv_usage_ratio": (
        "vllm:kv_cache_usage_perc",
        "vllm:gpu_cache_usage_perc",
        "sglang:token_usage",
        "llamacpp:kv_cache_usage_ratio",
    ),
}
CACHE_CONFIG = "vllm:cache_config_info"
START_TIME = "process_start_time_seconds"
PREFIXES = {"vllm:": "vllm", "tgi_": "tgi", "sglang:": "sglang", "llamacpp:": "llama.cpp"}

WANTED = (
    CACHE_CONFIG,
    START_TIME,
    *(name.removesuffix("_total") for table in (SUMS, MEANS) for names in table.values() for name in names),
)


@dataclass(frozen=True, slots=True)
class ReplicaLoad:
    """Gauges and counters of one scrape; None where the page doesn't have it. Counters run since the engine's start."""

    scraped_s: float
    engine: str
    """Kind of server that writes such names."""
    num_running: int | None = None
    num_waiting: int | None = None
    kv_usage_ratio: float | None = None
    kv_capacity_tokens: int | None = None
    prefix_queries_tokens: int | None = None
    prefix_hits_tokens: int | None = None
    num_preemptions: int | None = None
    prompt_tokens: int | None = None
    generation_tokens: int | None = None
    process_start: float | None = None
    """When the engine's process started, as it says itself (Unix seconds): another value means a restart."""


def parse_load(page: str, now_s: float) -> ReplicaLoad:
    """Raises ValueError or OverflowError for a page in another format, of an unknown engine, or with odd figures."""
    engine = _engine(page)
    if engine is None:
        raise ValueError("no name of a known engine")
    # The parser is slow (pages have hundreds of histogram buckets) and this runs on the event loop:
    # only the lines that are wanted reach it.
    lines = [line for line in page.splitlines() if line.startswith(WANTED)]
    values: dict[str, list[float]] = defaultdict(list)
    kv_capacity = 0.0
    for family in text_string_to_metric_families("\n".join(lines)):
        for sample in family.samples:
            if sample.name == CACHE_CONFIG:
                kv_capacity += _capacity(sample.labels)
            values[sample.name].append(sample.value)
    found: dict[str, int | None] = {}
    for field, names in SUMS.items():
        figures = next((values[name] for name in names if values.get(name)), None)
        found[field] = None if figures is None else int(sum(figures))
    usage = next((values[name] for name in MEANS["kv_usage_ratio"] if values.get(name)), None)
    if kv_capacity:
        found["kv_capacity_tokens"] = int(kv_capacity)
    start = values.get(START_TIME)
    return ReplicaLoad(
        scraped_s=now_s,
        kv_usage_ratio=None if usage is None else sum(usage) / len(usage),
        process_start=start[0] if start else None,
        engine=engine,
        **found,
    )


def _capacity(labels: Mapping[str, str]) -> float:
    """KV capacity in tokens of one engine; 0 while it doesn't know ("None" in the label)."""
    block_size, num_blocks = labels.get("block_size", ""), labels.get("num_gpu_blocks", "")
    return float(block_size) * float(num_blocks) if block_size.isdigit() and num_blocks.isdigit() else 0.0


def _engine(page: str) -> str | None:
    for line in page.splitlines():
        for prefix, kind in PREFIXES.items():
            if line.startswith(prefix):
                return kind
    return None
