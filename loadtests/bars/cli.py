"""`tailgate-load bars`."""

from collections.abc import Callable, Coroutine
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from ..compare import OnStep
from ..demo import steps
from ..guard import guarded
from .bar import Bar
from .counting import counting_bars
from .main_topic import main_bars
from .overhead_topic import overhead_bars
from .policies_topic import policies_bars
from .proxy_topic import proxy_bars
from .slices_topic import LONG_TOKENS, NUM_ROUNDS, slices_bars
from .soak.run import NUM_REQUESTS


def bars(
    topic: Annotated[
        str,
        typer.Argument(metavar="TOPIC", help="What to measure: main, counting, policies, proxy, overhead, slices."),
    ],
    cases: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="For proxy: of a runner of gateway cases, run_cases.py with handed.yaml."),
    ] = None,
    traces: Annotated[Path | None, typer.Option(metavar="FOLDER", help="For policies: of public traces.")] = None,
    soak_requests: Annotated[
        int, typer.Option(metavar="N", min=0, help="For proxy: of the soak; fewer are quicker and prove less.")
    ] = NUM_REQUESTS,
    soak_seed: Annotated[
        str | None,
        typer.Option(metavar="TEXT", help="For proxy: of a soak that is to be repeated; a new one by default."),
    ] = None,
    peers: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            help="For overhead: with an environment for each other gateway (vllm-router, sglang-router, litellm, "
            "nginx, production-stack), such as FOLDER/litellm/bin/litellm. Those on PATH are found without.",
            exists=True,
            file_okay=False,
        ),
    ] = None,
    url: Annotated[
        str | None, typer.Option(metavar="URL", help="For slices: of an engine that runs, such as a stock vLLM.")
    ] = None,
    long_tokens: Annotated[
        int, typer.Option(metavar="N", min=1000, help="For slices: of the longest prompt.")
    ] = LONG_TOKENS,
    rounds: Annotated[int, typer.Option(metavar="N", min=1, help="For slices.")] = NUM_ROUNDS,
) -> None:
    """Measures the figures that must hold and prints a line for each; exits 1 if one falls short.

    `main` is the main job end to end: the demonstration from three seeds, layers, clients that hang up, the openai
    package, bad input, start-up, dispatch decisions. Takes up to 40 minutes on two cores.

    `counting` is what counting tokens costs: prompts that begin alike, and short ones beside long ones. Two minutes.

    `policies` is what the simulator is worth: engines fitted to measured runs, and its speed. Without --traces those
    lines say skipped.

    `proxy` is what a proxy that can be trusted does: every gateway case, twice in a row (six minutes; without --cases
    those lines say skipped), and a soak of 50,000 requests with everything going wrong on both sides (at most eight).

    `overhead` is what the gateway costs in front of a replica that answers at once: processor time per request and per
    streamed chunk, and the latency added, beside a naive proxy and the gateways that are installed; and 5,000 streams
    at once. Three minutes, and a minute for each other gateway, on a machine that does nothing else.

    `slices` is what short requests gain when long prompts are cut for them, and what that costs the long ones, in front
    of the engine at --url: four scenes, three ways each, five rounds. A round takes twelve times as long as the longest
    prompt.
    """
    topics: dict[str, Callable[[OnStep, Callable[[Bar], None]], Coroutine[Any, Any, None]]] = {
        "main": main_bars,
        "counting": counting_bars,
        "policies": partial(policies_bars, traces=traces),
        "proxy": partial(proxy_bars, cases=cases, soak_requests=soak_requests, soak_seed=soak_seed),
        "overhead": partial(overhead_bars, say=typer.echo, folder=peers),
        "slices": partial(slices_bars, url=url, long_tokens=long_tokens, num_rounds=rounds),
    }
    if topic not in topics:
        typer.echo(f"tailgate-load: bars {topic}: no such topic; there are: {', '.join(topics)}", err=True)
        raise typer.Exit(2)
    measured: list[Bar] = []

    def report(bar: Bar) -> None:
        measured.append(bar)
        typer.echo(bar.line() + (f"\n  {bar.note}" if bar.note else ""))

    with steps(Console(stderr=True)) as on_step:
        guarded(topics[topic](on_step, report))
    if not all(bar.holds for bar in measured):
        raise typer.Exit(1)
