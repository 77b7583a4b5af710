"""`tailgate-load replay`: a trace to a live URL, open loop, in real time.

Latency counts from the instant at which a request was to be sent. A client that is late sends late, and says by how
much, but its lateness is never taken off a server's figures: no coordinated omission.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.console import Console

from .answer import Answer
from .client import LoadClient, Messages
from .demo import steps
from .errors import LoadtestError
from .guard import guarded
from .machine import current_commit, describe_machine
from .prompts import PromptMaker
from .report import print_side, save_json
from .run import run_plan
from .scenario import Objectives
from .stats import percentile
from .summary import summarise
from .traces import Trace, load_trace
from .traces.adjust import divided, jittered, taken, usable
from .workload import Plan, PlannedRequest, rng_for

LANE = "all"


@dataclass(frozen=True, slots=True)
class Replay:
    """A plan, and the words that its requests have in common."""

    plan: Plan
    trace: Trace

    def messages(self, maker: PromptMaker, key: object) -> Callable[[PlannedRequest], Messages]:
        """Prompts of the planned lengths; equal prefix blocks have equal words, whatever the key."""

        def make(request: PlannedRequest) -> Messages:
            if self.trace.block_ids is None or self.trace.block_tokens is None:
                return maker.messages(request, key)
            return maker.block_messages(request, key, self.trace.block_ids[request.index], self.trace.block_tokens)

        return make


def plan_replay(trace: Trace, *, num_requests: int | None, rate_per_s: float | None, speed: float, seed: int) -> Replay:
    """The first `num_requests` at the trace's own instants, `speed` times as fast, or at a mean rate.

    A trace without arrivals needs a rate, and gets those of a Poisson process. Raises `LoadtestError`.
    """
    trace = usable(trace)
    trace = taken(trace, np.arange(min(len(trace), num_requests or len(trace))))
    if trace.arrival_s is None:
        if rate_per_s is None:
            raise LoadtestError("the trace has no arrivals: say at which rate with --rate")
        gaps = rng_for(seed, "replay").exponential(1.0 / rate_per_s, len(trace))
        arrival_s = np.cumsum(gaps) - gaps[0]
    elif rate_per_s is None:
        arrival_s = trace.arrival_s / speed
    else:
        span_s = float(trace.arrival_s[-1])
        if span_s <= 0.0:
            raise LoadtestError("all requests of the trace come at one instant: there is no rate to be changed")
        arrival_s = trace.arrival_s * ((len(trace) - 1) / (rate_per_s * span_s))
    requests = tuple(
        PlannedRequest(index, LANE, float(at_s), int(prompt), int(output))
        for index, (at_s, prompt, output) in enumerate(
            zip(arrival_s, trace.prompt_tokens, trace.output_tokens, strict=True)
        )
    )
    return Replay(Plan(requests, float(arrival_s[-1]), 0.0), replace(trace, arrival_s=arrival_s))


def from_intended(answers: Sequence[Answer]) -> list[Answer]:
    """The same answers, as if each had been sent when it was to be."""
    return [replace(answer, sent_s=answer.scheduled_s) for answer in answers]


def replay(
    file: Annotated[Path, typer.Argument(metavar="TRACE", help="A public trace, or what vLLM or AIPerf saved.")],
    url: Annotated[str, typer.Option(metavar="URL", help="Of the server, with or without /v1.")],
    requests: Annotated[int | None, typer.Option(metavar="N", min=1, help="The first N; all by default.")] = None,
    rate: Annotated[
        float | None, typer.Option(metavar="PER_S", min=0.0001, help="Mean requests a second; time is stretched to it.")
    ] = None,
    speed: Annotated[float, typer.Option(metavar="X", min=0.001, help="Times as fast as recorded.")] = 1.0,
    divisor: Annotated[float, typer.Option(metavar="X", min=1.0, help="Divides all lengths.")] = 1.0,
    jitter_s: Annotated[float, typer.Option(metavar="SECONDS", min=0.0, help="Spreads rounded stamps.")] = 0.0,
    model: Annotated[str | None, typer.Option(metavar="NAME", help="Model; the server's first by default.")] = None,
    seed: Annotated[int, typer.Option(metavar="SEED", help="Of words, jitter and drawn arrivals.")] = 1,
    out: Annotated[Path | None, typer.Option(metavar="FILE", help="JSON with every request.")] = None,
) -> None:
    """Sends a trace to a live server, open loop and in real time, and prints its latency.

    Latency counts from the instant at which a request was to be sent, so that a client or server that falls behind
    can't hide it.
    """

    async def body() -> None:
        console = Console()
        trace = divided(load_trace(file), divisor)
        if jitter_s > 0.0:
            trace = jittered(trace, jitter_s, rng_for(seed, "jitter"))
        planned = plan_replay(trace, num_requests=requests, rate_per_s=rate, speed=speed, seed=seed)
        async with LoadClient(url, model or "") as client:
            if model is None:
                client.model = await client.first_model()
            with steps(Console(stderr=True)) as on_step:
                maker = await PromptMaker.calibrate(client)
                count, span_s = len(planned.plan.requests), planned.plan.duration_s
                on_end = on_step(f"sending {count} requests in {span_s:.0f} s", count)
                side = await run_plan(
                    "server",
                    client,
                    maker,
                    planned.plan,
                    key=f"{seed}/replay",
                    on_end=on_end,
                    make_messages=planned.messages(maker, f"{seed}/replay"),
                )
        result = _result(file, seed, planned, side.answers)
        print_side(result["summary"], console)
        if out is not None:
            save_json(result | {"requests": [answer.to_dict(side.origin_s) for answer in side.answers]}, out)

    guarded(body())


def _result(file: Path, seed: int, planned: Replay, answers: Sequence[Answer]) -> dict[str, Any]:
    lags = [answer.lag_s for answer in answers]
    summary = summarise(from_intended(answers), {LANE: Objectives()})
    # Of the sending itself: counting from the intended instant leaves none in the answers.
    summary["client_lag_s"] = {str(level): percentile(lags, level) for level in (50, 99)} | {"max": max(lags)}
    return {
        "trace": str(file),
        "seed": seed,
        "commit": current_commit(),
        "machine": describe_machine(),
        "duration_s": planned.plan.duration_s,
        "summary": summary,
    }
