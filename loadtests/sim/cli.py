"""`tailgate-load simulate` and `calibrate-sim`."""

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.console import Console

from policies.batching import COMPOSERS, ORDERS, StepSpec, parse_options
from policies.registry import PolicyConfigError

from ..demo import steps
from ..errors import LoadtestError
from ..guard import told
from ..machine import current_commit
from ..report import save_json
from ..traces import Trace, load_trace
from ..traces.adjust import divided, jittered, superposed
from ..workload import Costs, rng_for
from .contenders import BOUNDS, contender
from .fidelity import fidelity
from .fit import fit_model
from .measured import load_measured
from .model import ReplicaModel
from .models import bundled_models, load_model, model_to_dict
from .paired import paired_differences
from .plot import plot_simulation
from .report import print_fit, print_simulation
from .simulation import Result, Setup
from .step_time import StepTime
from .study import (
    Study,
    Workload,
    capacity_work_per_s,
    figures,
    first_token_times,
    parted,
    prepared,
    sized,
    timeline,
    typical_costs,
)

_CAP_HELP = "Of a replica. 0: the policy's own, and gateways don't know what its KV cache holds."


def simulate(
    traces: Annotated[
        list[str],
        typer.Argument(
            metavar="TRACE[@SHARE]...",
            help="Trace files; several are superposed, each with its share of the work: conv.csv.gz@0.7 long.csv@0.3.",
            show_default=False,
        ),
    ],
    policy: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help=f"May be repeated. default, fcfs, parts joined by + (drr+boost), or a bound: {', '.join(BOUNDS)}. "
            "After a colon what the engines do in place of --composer and --engine-order: direct:sj-mlfq+priority.",
        ),
    ] = None,
    load: Annotated[
        list[float] | None, typer.Option(metavar="SHARE", min=0.01, help="Of all replicas' capacity; may be repeated.")
    ] = None,
    engine: Annotated[
        str, typer.Option(metavar="NAME|FILE", help=f"Bundled: {', '.join(bundled_models())}; or of calibrate-sim.")
    ] = "rtxpro6000-llama3.1-8b",
    replicas: Annotated[int, typer.Option(metavar="N", min=1, help="Engines behind the gateways.")] = 1,
    gateways: Annotated[int, typer.Option(metavar="N", min=1, help="Each with a queue of its own.")] = 1,
    requests: Annotated[
        int | None, typer.Option(metavar="N", min=2, help="Of the first trace, which starts over; all by default.")
    ] = None,
    engine_order: Annotated[
        str, typer.Option(metavar="NAME", help=f"Inside the engine: {', '.join(ORDERS.names())}.")
    ] = "fcfs",
    composer: Annotated[
        str, typer.Option(metavar="NAME", help=f"What a step of the engine computes: {', '.join(COMPOSERS.names())}.")
    ] = "chunked",
    engine_option: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME.OPTION=VALUE", help="Of composer or engine order, such as sj-mlfq.num_levels=4."),
    ] = None,
    options: Annotated[
        Path | None, typer.Option(metavar="FILE", help="JSON, as a gateway's policy.options; for every policy.")
    ] = None,
    in_flight_tokens: Annotated[int | None, typer.Option(metavar="N", min=0, help=_CAP_HELP)] = None,
    prefill_tokens: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Cap of prompts that wait for their first token.")
    ] = None,
    jitter_s: Annotated[
        float, typer.Option(metavar="SECONDS", min=0.0, help="Spreads rounded stamps; Mooncake's conversations: 3.")
    ] = 0.0,
    divisor: Annotated[float, typer.Option(metavar="X", min=1.0, help="Divides all lengths.")] = 1.0,
    network_ms: Annotated[float, typer.Option(metavar="MS", min=0.0, help="One way to a replica.")] = 0.2,
    seed: Annotated[int, typer.Option(metavar="SEED", help="Same seed, same result.")] = 1,
    json_file: Annotated[Path | None, typer.Option("--json", metavar="FILE", help="All figures.")] = None,
    plot: Annotated[Path | None, typer.Option(metavar="FILE", help="Picture, PNG, at the last load.")] = None,
) -> None:
    """Simulates policies on a trace: the gateway's own decisions, an engine fitted to measurements, no GPU.

    Each policy gets the same requests at the same instants, at each LOAD; differences from the first one named are over
    20 stretches of the trace, with their 95 % interval. Reported are `short` (the 75 % of requests
    with the least work), `middle` and `long` (5 %), or, of several traces, each by its name.
    """
    console = Console()
    with told():
        model = load_model(engine)
        rng = rng_for(seed, "workload")
        parts = [_part(text, model, jitter_s, divisor, seed) for text in traces]
        costs = typical_costs(model, parts[0][1])
        workload = _workload(parts, costs, requests, rng)
        if (grain := workload.trace.block_tokens) is not None:
            model = replace(model, chunk_tokens=grain)
        setup = Setup(
            model,
            num_replicas=replicas,
            num_gateways=gateways,
            network_s=network_ms / 1e3,
            step=StepSpec(composer, engine_order, _engine_options(engine_option or [])),
            max_in_flight_tokens=in_flight_tokens or None,
            kv_capacity_tokens=None if in_flight_tokens == 0 else model.capacity_tokens,
            max_in_flight_requests=model.max_num_seqs,
            max_prefill_tokens=prefill_tokens,
        )
        given = _options(options)
        contenders = tuple(contender(name, costs, model, given) for name in policy or ["fcfs", "default"])
        loads = load or [0.85]
        runs: list[dict[str, Any]] = []
        pictured: dict[str, Any] = {}
        with steps(Console(stderr=True)) as on_step:
            on_step("measuring the capacity of one engine", None)
            capacity = capacity_work_per_s(model, workload.trace, costs)
            study = Study(workload, contenders, setup, costs, capacity, seed)
            for share in loads:
                for entry in contenders:
                    advance = on_step(f"{entry.name} at {share:g}", len(workload.trace))
                    result = study.run(entry, share, on_end=advance)
                    runs.append({"policy": entry.name, "load": share, **figures(result)})
                    if entry is contenders[0]:
                        base = result
                    else:
                        groups = list(runs[-1]["groups"])
                        runs[-1]["against_first"] = {name: paired_differences(result, base, name) for name in groups}
                    if share == loads[-1]:
                        pictured[entry.name] = _pictured(result, next(iter(runs[-1]["groups"])))
        report = {
            "traces": traces,
            "seed": seed,
            "commit": current_commit(),
            "engine": engine,
            "model": model_to_dict(model),
            "num_replicas": replicas,
            "num_gateways": gateways,
            "engine_order": engine_order,
            "composer": composer,
            "costs": {"prompt_token_s": costs.prompt_token_s, "output_token_s": costs.output_token_s},
            "capacity_work_per_s": capacity,
            "num_in_group": dict(Counter(workload.groups)),
            "runs": runs,
        }
        print_simulation(report, console)
        if json_file is not None:
            save_json({**report, "pictured": pictured}, json_file)
        if plot is not None:
            plot_simulation(pictured, loads[-1], replicas, plot)


def calibrate_sim(
    file: Annotated[
        Path,
        typer.Argument(
            metavar="FILE",
            help="CSV of measured requests (run, request_id, input_toks, output_toks, queued_s, first_token_s, "
            "last_token_s), or what replay --out saved.",
        ),
    ],
    run: Annotated[str | None, typer.Option(metavar="NAME", help="Of the file's runs; all by default.")] = None,
    first: Annotated[int, typer.Option(metavar="N", min=10, help="Requests to fit; the rest judge the fit.")] = 150,
    max_num_seqs: Annotated[int, typer.Option(metavar="N", min=1, help="The engine's flag.")] = 256,
    max_num_batched_tokens: Annotated[int, typer.Option(metavar="N", min=1, help="The engine's flag.")] = 2048,
    block_size: Annotated[int, typer.Option(metavar="N", min=1, help="Tokens of a KV block.")] = 16,
    out: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="For RUN.json, which simulate --engine takes.")
    ] = None,
) -> None:
    """Fits the simulator's engine (step time, KV capacity) to requests that were measured, and says how well it does.

    For a server that runs: `tailgate-load replay TRACE --url URL --out measured.json` at a rate that keeps it busy,
    then this on measured.json. The first N requests of a run are fitted; the others are predicted, from their lengths
    and arrivals alone. Takes two to ten minutes a run.
    """
    console = Console()
    with told():
        runs = load_measured(file)
        if run is not None and run not in runs:
            raise LoadtestError(f"{file}: no run {run}; there are: {', '.join(runs)}")
        limits = ReplicaModel(
            StepTime(1.0, 1.0),
            num_blocks=1,
            block_size=block_size,
            chunk_tokens=block_size * 32,
            max_num_batched_tokens=max_num_batched_tokens,
            max_num_seqs=max_num_seqs,
        )
        for name, measured in runs.items():
            if run is not None and name != run:
                continue
            if len(measured) <= first:
                raise LoadtestError(f"{file}: run {name} has {len(measured)} requests, none beyond --first {first}")
            with steps(Console(stderr=True)) as on_step:
                advance = on_step(f"fitting {name}, simulations", None)
                fit = fit_model(measured, limits, num_fitted=first, on_simulation=advance)
            print_fit(name, fit, fidelity(measured, fit.model, first=first), console)
            if out is not None:
                about = f"fitted to the first {first} requests of {name}"
                save_json({"about": about, **model_to_dict(fit.model)}, out / f"{name}.json")


def _pictured(result: Result, group: str) -> dict[str, Any]:
    return {"group": group, "ttft_s": first_token_times(result, group), "timeline": timeline(result, group)}


def _part(
    text: str, model: ReplicaModel, jitter_s: float, divisor: float, seed: int
) -> tuple[str, Trace, float | None]:
    """Name, trace and share of the work."""
    path, at, given = text.rpartition("@")
    if not at:
        path, given = text, ""
    try:
        share = float(given) if given else None
    except ValueError:
        raise LoadtestError(f"{text}: the share of the work, {given!r}, isn't a number") from None
    trace = divided(load_trace(path), divisor)
    if jitter_s > 0.0:
        trace = jittered(trace, jitter_s, rng_for(seed, "jitter", path))
    return Path(path).name.split(".")[0], prepared(trace, model), share


def _workload(
    parts: list[tuple[str, Trace, float | None]], costs: Costs, num: int | None, rng: np.random.Generator
) -> Workload:
    first = parts[0][1]
    if len(parts) == 1:
        if num is None:
            return sized(first, costs)
        return sized(superposed([(first, 1.0)], costs, num_first=num, rng=rng).trace, costs)
    shares = [share for _, _, share in parts]
    if any(share is None for share in shares):
        raise LoadtestError("several traces need a share of the work each: TRACE@0.7 TRACE@0.3")
    grains = {trace.block_tokens for _, trace, _ in parts if trace.block_tokens is not None}
    if len(grains) > 1:
        raise LoadtestError(f"prefix blocks of {', '.join(map(str, sorted(grains)))} tokens can't be mixed")
    mixed = superposed(
        [(trace, share or 0.0) for _, trace, share in parts], costs, num_first=num or len(first), rng=rng
    )
    return parted(mixed, [name for name, _, _ in parts])


def _engine_options(texts: list[str]) -> dict[str, dict[str, Any]]:
    try:
        return parse_options(texts)
    except PolicyConfigError as error:
        raise LoadtestError(f"the engine: {error}") from error


def _options(path: Path | None) -> dict[str, Any]:
    if path is None:
        return {}
    try:
        given = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise LoadtestError(f"--options {path}: {error}") from error
    if not isinstance(given, dict):
        raise LoadtestError(f"--options {path}: not a table")
    return given
