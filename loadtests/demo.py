"""The demonstration: the bundled engine once, the seeded mix straight to it and through the gateway.

Engine process, flags and requests are the same both ways; the engine serves in order of arrival, as stock servers do.
"""

import tempfile
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn

from .calibrate import measure_costs
from .client import LoadClient
from .compare import Comparison, OnStep, compare, measure
from .plot import plot_comparison
from .processes import bundled_engine, gateway
from .prompts import PromptMaker
from .report import print_comparison, save_json
from .scenario import load_scenario
from .workload import Costs

SCENARIO = "short-behind-long"
ENGINE_FLAGS = ("--policy", "fcfs", "--threads", "1", "--max-num-batched-tokens", "256", "--max-num-seqs", "32")
MAX_PREFILL_TOKENS = 256
MAX_IN_FLIGHT_TOKENS = 16384


@dataclass(frozen=True, slots=True)
class System:
    """The bundled system while it runs: URLs of the engine and of the gateway in front of it, and the model's name."""

    engine_url: str
    gateway_url: str
    model: str


@asynccontextmanager
async def bundled_system() -> AsyncIterator[System]:
    """Starts the engine, measures what a token costs there, tells the gateway so, and ends both afterwards."""
    with tempfile.TemporaryDirectory() as folder:
        tokenizer = Path(folder) / "tokenizer"
        async with AsyncExitStack() as stack:
            url, model = await stack.enter_async_context(bundled_engine(ENGINE_FLAGS, tokenizer_dir=tokenizer))
            async with LoadClient(url, model) as client:
                costs = await measure_costs(client, await PromptMaker.calibrate(client), "start")
            gateway_url = await stack.enter_async_context(gateway(gateway_config(url, model, tokenizer, costs)))
            yield System(url, gateway_url, model)


def gateway_config(engine_url: str, model: str, tokenizer: Path, costs: Costs) -> dict[str, Any]:
    """The gateway's configuration for the bundled system: few prefills at a time reach the engine, and sizes are
    weighed by what tokens cost on this machine (the defaults are those of a GPU)."""
    return {
        "replicas": [
            {
                "url": engine_url,
                "max_in_flight_tokens": MAX_IN_FLIGHT_TOKENS,
                "max_prefill_tokens": MAX_PREFILL_TOKENS,
            }
        ],
        "models": [{"name": model, "tokenizer": str(tokenizer)}],
        "policy": {
            "options": {
                "cost": {
                    "prefill_s_per_token": costs.prompt_token_s,
                    "decode_s_per_token": costs.output_token_s,
                }
            }
        },
    }


async def run_demo(*, seed: int, out: Path, console: Console) -> dict[str, Any]:
    """The whole demonstration; prints the table, writes `demo.json` and `demo.png` to `out`, returns the result."""
    started_s = time.monotonic()
    with steps(console) as on_step:
        on_step("starting engine and gateway (loading the model)", None)
        async with bundled_system() as system:
            comparisons = await compare_on(system, [seed], on_step)
    result = comparisons[0].to_dict()
    result["engine_flags"] = list(ENGINE_FLAGS)
    result["gateway_limits"] = {"max_prefill_tokens": MAX_PREFILL_TOKENS, "max_in_flight_tokens": MAX_IN_FLIGHT_TOKENS}
    result["elapsed_s"] = time.monotonic() - started_s
    save_json(result, out / "demo.json")
    plot_comparison(result, out / "demo.png")
    print_comparison(result, console)
    console.print(f"{result['elapsed_s']:.0f} s in all; saved {out / 'demo.json'} and {out / 'demo.png'}")
    return result


async def compare_on(system: System, seeds: list[int], on_step: OnStep) -> list[Comparison]:
    """One comparison a seed on a running system; every other one sends to the gateway first."""
    scenario = load_scenario(SCENARIO)
    async with AsyncExitStack() as stack:
        direct = await stack.enter_async_context(LoadClient(system.engine_url, system.model))
        through = await stack.enter_async_context(LoadClient(system.gateway_url, system.model))
        maker = await PromptMaker.calibrate(direct)
        comparisons = []
        for index, seed in enumerate(seeds):
            measured = await measure(direct, maker, scenario, f"{seed}", on_step)
            comparison = await compare(
                direct,
                through,
                maker,
                scenario,
                measured,
                seed=seed,
                load=scenario.load,
                on_step=on_step,
                gateway_first=index % 2 == 1,
            )
            comparisons.append(comparison)
        return comparisons


class steps:  # noqa: N801 - a context manager used like a function
    """A progress bar a step, on the console's error stream when the output is not a terminal's."""

    def __init__(self, console: Console) -> None:
        self._progress = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=console,
        )
        self._task: TaskID | None = None

    def __enter__(self) -> OnStep:
        self._progress.start()
        return self._begin

    def __exit__(self, *_exc: object) -> None:
        self._finish()
        self._progress.stop()

    def _begin(self, title: str, num_requests: int | None) -> Callable[[object], None]:
        self._finish()
        task = self._progress.add_task(title, total=num_requests)
        self._task = task
        return lambda _ended: self._progress.advance(task)

    def _finish(self) -> None:
        if self._task is not None:
            task = self._progress.tasks[self._task]
            self._progress.update(self._task, total=max(1, task.completed), completed=max(1, task.completed))
            self._progress.stop_task(self._task)
