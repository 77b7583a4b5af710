"""`tailgate-load`: measures OpenAI servers over HTTP. Every command explains itself with --help."""

from importlib.metadata import version
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from .bars.cli import bars
from .client import LoadClient
from .compare import compare as run_compare
from .compare import measure
from .demo import run_demo, steps
from .engine import EngineRun, compare_engines
from .errors import LoadtestError
from .guard import guarded, told
from .plot import plot_comparison
from .prompts import PromptMaker
from .replay import replay
from .report import print_comparison, print_engines, print_side, save_json
from .run import run_plan
from .scenario import bundled_scenarios, load_scenario
from .shapes import describe
from .sim.cli import calibrate_sim, simulate
from .slices_cli import slices
from .summary import summarise
from .traces import load_trace
from .workload import make_plan

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="""Measures LLM servers that speak OpenAI's API: seeded mixes, open-loop load, honest clocks.

    Start with `tailgate-load demo`: it needs nothing but this machine. To measure your own server, `tailgate-load run
    short-behind-long --url http://HOST:PORT`; to see what a gateway changes, `tailgate-load compare`.""",
)
_ScenarioArgument = Annotated[
    str,
    typer.Argument(
        metavar="SCENARIO",
        help=f"A bundled scenario ({', '.join(bundled_scenarios())}) or a YAML file.",
        show_default=False,
    ),
]
_SeedOption = Annotated[int, typer.Option(metavar="SEED", help="Same seed, same requests at the same instants.")]
_LoadOption = Annotated[
    float | None, typer.Option(metavar="SHARE", min=0.01, help="Of the measured capacity; the scenario's by default.")
]
_RequestsOption = Annotated[
    int | None, typer.Option(metavar="N", min=1, help="Requests of the first lane; the scenario's by default.")
]
_ModelOption = Annotated[str | None, typer.Option(metavar="NAME", help="Model; the server's first by default.")]


def _show_version(is_asked: bool) -> None:
    if is_asked:
        typer.echo(f"tailgate-load {version('tailgate')}")
        raise typer.Exit


@app.callback()
def commands(
    _version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    pass


@app.command()
def run(
    scenario: _ScenarioArgument,
    url: Annotated[str, typer.Option(metavar="URL", help="Of the server, with or without /v1.")],
    seed: _SeedOption = 1,
    load: _LoadOption = None,
    requests: _RequestsOption = None,
    model: _ModelOption = None,
    out: Annotated[Path | None, typer.Option(metavar="FOLDER", help="For the JSON.")] = None,
) -> None:
    """Sends one seeded mix to one server and prints latency by lane.

    First measures what a token costs there and the capacity for this mix, then sends the mix open loop at LOAD of
    that capacity: arrivals never wait for answers.
    """
    console, folder = Console(), None if out is None else _made(out)

    async def body() -> None:
        mix = load_scenario(scenario)
        async with LoadClient(url, await _model(url, model)) as client:
            with steps(console) as on_step:
                maker = await PromptMaker.calibrate(client)
                measured = await measure(client, maker, mix, str(seed), on_step)
                plan = make_plan(
                    mix,
                    measured.costs,
                    capacity_work_per_s=measured.capacity.work_per_s,
                    seed=seed,
                    load=load,
                    num_first_lane=requests,
                )
                on_end = on_step(f"sending {len(plan.requests)} requests", len(plan.requests))
                side = await run_plan("server", client, maker, plan, key=f"{seed}/run", on_end=on_end)
        summary = summarise(side.answers, mix.objectives)
        print_side(summary, console)
        costs = {
            "prefill_s_per_token": float(f"{measured.costs.prompt_token_s:.3g}"),
            "decode_s_per_token": float(f"{measured.costs.output_token_s:.3g}"),
        }
        console.print(f"what tokens cost there, as a gateway's policy.options.cost takes it: {costs}")
        if folder is not None:
            save_json({"scenario": mix.name, "seed": seed, "costs": costs, "summary": summary}, folder / "run.json")

    guarded(body())


@app.command()
def compare(
    scenario: _ScenarioArgument,
    direct: Annotated[str, typer.Option(metavar="URL", help="Of the engine itself, with or without /v1.")],
    gateway: Annotated[str, typer.Option(metavar="URL", help="Of a gateway in front of the same engine.")],
    seed: _SeedOption = 1,
    load: _LoadOption = None,
    requests: _RequestsOption = None,
    model: _ModelOption = None,
    out: Annotated[Path, typer.Option(metavar="FOLDER", help="For compare.json and compare.png.")] = Path(
        "out/compare"
    ),
) -> None:
    """Sends the same mix straight to an engine and through a gateway, and compares lane by lane."""
    console, folder = Console(), _made(out)

    async def body() -> None:
        mix = load_scenario(scenario)
        name = await _model(direct, model)
        async with LoadClient(direct, name) as engine, LoadClient(gateway, name) as through:
            await through.first_model()  # before minutes are spent on the other
            with steps(console) as on_step:
                maker = await PromptMaker.calibrate(engine)
                measured = await measure(engine, maker, mix, str(seed), on_step)
                comparison = await run_compare(
                    engine,
                    through,
                    maker,
                    mix,
                    measured,
                    seed=seed,
                    load=mix.load if load is None else load,
                    num_first_lane=requests,
                    on_step=on_step,
                )
        result = comparison.to_dict()
        save_json(result, folder / "compare.json")
        plot_comparison(result, folder / "compare.png")
        print_comparison(result, console)

    guarded(body())


@app.command()
def demo(
    seed: _SeedOption = 1,
    out: Annotated[Path, typer.Option(metavar="FOLDER", help="For demo.json and demo.png.")] = Path("out/demo"),
) -> None:
    """Shows, on this machine alone, that short calls stop waiting for long ones. Takes about five minutes.

    Starts the bundled engine and the gateway, measures the engine's capacity, then sends one seeded mix at 0.85 of it
    straight to the engine and once more through the gateway.
    """
    guarded(run_demo(seed=seed, out=_made(out), console=Console()))


@app.command()
def engine(
    against: Annotated[str | None, typer.Option(metavar="URL", help="Of the other server, if it runs already.")] = None,
    vllm_python: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Python of an environment with vLLM's CPU build; starts it on --model-dir."),
    ] = None,
    model_dir: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Of Hugging Face's kind; the embedded model if absent.")
    ] = None,
    output_tokens: Annotated[int, typer.Option(metavar="N", min=2, help="Length of every answer.")] = 64,
    prompt_tokens: Annotated[int, typer.Option(metavar="N", min=1, help="Length of every prompt.")] = 64,
    rounds: Annotated[int, typer.Option(metavar="N", min=1, help="At each concurrency; their median counts.")] = 3,
    out: Annotated[Path, typer.Option(metavar="FOLDER", help="For engine.json.")] = Path("out/engine"),
) -> None:
    """Compares the bundled engine's output tokens/s with another OpenAI server's, one core each.

    At 1, 8 and 32 concurrent requests. Give the other server one core too (--vllm-python does), or the ratio says
    nothing.
    """
    console, folder = Console(), _made(out)

    async def body() -> None:
        with steps(console) as on_step:
            result = await compare_engines(
                EngineRun(prompt_tokens=prompt_tokens, output_tokens=output_tokens, rounds=rounds),
                model_dir=model_dir,
                against=against,
                vllm_python=vllm_python,
                on_step=on_step,
            )
        save_json(result, folder / "engine.json")
        print_engines(result, console)

    guarded(body())


@app.command()
def shape(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A trace, plain or gzip, CSV or JSON lines.")],
) -> None:
    """Prints the shape of a public trace: length quantiles and arrival pattern, to be pasted into a scenario's lane.

    Knows the Azure LLM inference traces, Mooncake, Qwen-Bailian, BurstGPT, ServeGen samples, the VTC arena trace,
    vidur's arXiv lengths, and what vLLM's serving benchmark and AIPerf save, each by its columns or keys.
    """
    with told():
        typer.echo(describe(load_trace(file)).to_yaml(), nl=False)


app.command()(replay)
app.command()(slices)
app.command()(bars)
app.command()(simulate)
app.command()(calibrate_sim)


async def _model(url: str, name: str | None) -> str:
    """The name given, else the first model the server lists."""
    if name is not None:
        return name
    async with LoadClient(url, "") as client:
        return await client.first_model()


def _made(folder: Path) -> Path:
    """Makes it now, and not after minutes of measuring."""
    with told():
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise LoadtestError(f"--out {folder}: {error.strerror}") from error
    return folder


def main() -> None:
    """Entry point of the console script."""
    app()
