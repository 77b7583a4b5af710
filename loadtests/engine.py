"""Output tokens a second of the bundled engine against another OpenAI server, on the same model and one core each.

Both run at once and are measured in turn, round by round, so that a busy machine hurts both alike; what is printed is
the ratio within a round, its median and its spread.
"""

import os
import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from .answer import Answer
from .client import LoadClient
from .compare import OnStep
from .errors import TargetError
from .machine import current_commit, describe_machine
from .processes import bundled_engine, free_port, pinned, running, wait_until_ready
from .prompts import PromptMaker
from .stats import makespan_s
from .workload import PlannedRequest

_VLLM_ENVIRONMENT = {
    "VLLM_TARGET_DEVICE": "cpu",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "OMP_NUM_THREADS": "1",
    "HF_HUB_OFFLINE": "1",
}
_VLLM_START_LIMIT_S = 300.0
_REQUESTS_PER_CLIENT = 2
_LEAST_REQUESTS = 4


@dataclass(frozen=True, slots=True)
class EngineRun:
    """What to send: concurrencies, lengths, rounds."""

    concurrencies: tuple[int, ...] = (1, 8, 32)
    prompt_tokens: int = 64
    output_tokens: int = 64
    rounds: int = 3


@asynccontextmanager
async def vllm_server(python: Path, model_dir: Path, *, core: int) -> AsyncIterator[tuple[str, str]]:
    """vLLM's CPU build from an environment of its own, pinned to one core, eager; yields URL and model name."""
    port = free_port()
    name = "model"
    command = [
        *pinned(core), str(python), "-m", "vllm.entrypoints.openai.api_server", "--model", str(model_dir),
        "--served-model-name", name, "--host", "127.0.0.1", "--port", str(port), "--enforce-eager",
        "--block-size", "32", "--max-model-len", "2048", "--dtype", "bfloat16",
    ]  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        log_path = Path(folder) / "vllm.log"
        url = f"http://127.0.0.1:{port}"
        async with running(command, log_path, _VLLM_ENVIRONMENT) as process:
            await wait_until_ready(f"{url}/health", process, log_path, _VLLM_START_LIMIT_S)
            yield url, name


async def compare_engines(
    sizes: EngineRun, *, model_dir: Path | None, against: str | None, vllm_python: Path | None, on_step: OnStep
) -> dict[str, Any]:
    """Rates of both engines at each concurrency, as plain values.

    `against` is the URL of a server that runs already; else vLLM is started from `vllm_python` on `model_dir`. Raises
    `TargetError` where neither is given, or an answer fails.
    """
    cores = sorted(os.sched_getaffinity(0))
    flags = ["--threads", "1", "--no-prefix-caching", "--max-num-seqs", str(max(sizes.concurrencies))]
    if model_dir is not None:
        flags += ["--model", str(model_dir)]
    async with AsyncExitStack() as stack:
        on_step("starting the bundled engine", None)
        ours = await stack.enter_async_context(bundled_engine(flags, prefix=pinned(cores[0])))
        if against is not None:
            theirs = (against, "")
        elif vllm_python is not None and model_dir is not None:
            on_step("starting vLLM", None)
            theirs = await stack.enter_async_context(vllm_server(vllm_python, model_dir, core=cores[-1]))
        else:
            raise TargetError("needs --against URL, or both --vllm-python and --model-dir")
        clients = {}
        for label, (url, model) in (("bundled", ours), ("other", theirs)):
            client = await stack.enter_async_context(LoadClient(url, model))
            client.model = model or await client.first_model()
            clients[label] = (client, await PromptMaker.calibrate(client))
        results = []
        for concurrency in sizes.concurrencies:
            rates: dict[str, list[float]] = {label: [] for label in clients}
            for index in range(sizes.rounds):
                for label, (client, maker) in clients.items():
                    on_step(f"{concurrency} at once, round {index + 1}: {label}", None)
                    rates[label].append(await output_rate(client, maker, sizes, concurrency, f"{concurrency}/{index}"))
            results.append(summarise_rates(concurrency, rates["bundled"], rates["other"]))
    return {
        "commit": current_commit(),
        "machine": describe_machine(),
        "prompt_tokens": sizes.prompt_tokens,
        "output_tokens": sizes.output_tokens,
        "concurrencies": results,
    }


async def output_rate(client: LoadClient, maker: PromptMaker, sizes: EngineRun, concurrency: int, key: str) -> float:
    """Output tokens a second of a closed loop. Raises `TargetError` where an answer fails."""
    count = max(_LEAST_REQUESTS, _REQUESTS_PER_CLIENT * concurrency)
    requests = [PlannedRequest(i, "engine", 0.0, sizes.prompt_tokens, sizes.output_tokens) for i in range(count)]
    answers: Sequence[Answer] = await client.closed_loop(
        requests, lambda request: maker.messages(request, key), num_clients=concurrency
    )
    failed = [answer.error for answer in answers if not answer.is_ok]
    if failed:
        raise TargetError(f"{client.url}: {len(failed)} of {len(answers)} requests failed ({failed[0]})")
    return sum(answer.received_tokens for answer in answers) / makespan_s(answers)


def summarise_rates(concurrency: int, bundled: Sequence[float], other: Sequence[float]) -> dict[str, Any]:
    """Medians of the rates, and the median and range of the ratio within a round."""
    ratios = [ours / theirs for ours, theirs in zip(bundled, other, strict=True)]
    return {
        "concurrency": concurrency,
        "bundled_output_tokens_per_s": median(bundled),
        "other_output_tokens_per_s": median(other),
        "ratio": median(ratios),
        "ratio_low": min(ratios),
        "ratio_high": max(ratios),
    }
