"""Tables of simulations and of fits."""

from typing import Any

from rich.console import Console
from rich.table import Table

from ..report import percent, seconds
from .fidelity import Fidelity
from .fit import Fit

_SHOWN = (("TTFT", "ttft_s", ("50", "90", "99")), ("E2E", "e2e_s", ("50", "99")))


def print_simulation(report: dict[str, Any], console: Console) -> None:
    """A row for each load, policy and group."""
    model = report["model"]
    console.print(
        f"{sum(report['num_in_group'].values()):,} requests, {report['num_replicas']} × {report['engine']} "
        f"({model['num_blocks'] * model['block_size']:,} tokens of memory, {model['max_num_seqs']} sequences), "
        f"{report['num_gateways']} gateway(s), engine order {report['engine_order']}; seed {report['seed']}"
    )
    console.print(
        f"capacity of an engine: {report['capacity_work_per_s']:.1f} work seconds a second, a prompt token "
        f"{report['costs']['prompt_token_s'] * 1e3:.3f} ms, an output token "
        f"{report['costs']['output_token_s'] * 1e3:.3f} ms\n"
    )
    for load in dict.fromkeys(run["load"] for run in report["runs"]):
        console.print(_table(load, [run for run in report["runs"] if run["load"] == load]))
        for run in report["runs"]:
            if run["load"] == load:
                console.print(
                    f"  {run['policy']}: {run['num_failed']} turned away or given up, {run['num_preempted']} "
                    f"preempted, {percent(run['cached_prompt_ratio'])} of prompt tokens cached"
                )
        console.print()
        _print_paired(report, load, console)


def _print_paired(report: dict[str, Any], load: float, console: Console) -> None:
    """P90 of the time to first token against the first policy, by group."""
    first = report["runs"][0]["policy"]
    for run in report["runs"]:
        for group, levels in run.get("against_first", {}).items() if run["load"] == load else ():
            found = levels["90"]
            words = f"  {run['policy']} - {first}, {group}, TTFT P90: "
            if "needed_requests" in found:
                console.print(words + f"too few requests, {found['needed_requests']} of the group would do")
            else:
                console.print(
                    words + f"{found['mean_s']:+.3f} s ({found['low_s']:+.3f} to {found['high_s']:+.3f}), "
                    f"better in {found['num_better']} of {found['num_segments']} stretches"
                )


def _table(load: float, runs: list[dict[str, Any]]) -> Table:
    """Narrow enough for a terminal of 80 columns."""
    table = Table(box=None, pad_edge=False, title=f"load {load:g}; seconds, simulated", title_justify="left")
    for heading in ("policy", "requests"):
        table.add_column(heading, no_wrap=True)
    for title, _, levels in _SHOWN:
        for level in levels:
            table.add_column(f"{title}\nP{level}", justify="right", no_wrap=True)
    table.add_column("TPOT\nP50", justify="right", no_wrap=True)
    for run in runs:
        for place, (group, figures) in enumerate(run["groups"].items()):
            cells = [_short(figures[metric][level]) for _, metric, levels in _SHOWN for level in levels]
            policy = run["policy"] if place == 0 else ""
            table.add_row(policy, group, *cells, seconds(figures["tpot_s"]["50"]))
    return table


def _short(value: float | None) -> str:
    return seconds(value) if value is None or value < 10.0 else f"{value:.1f}"


def print_fit(name: str, fit: Fit, found: Fidelity, console: Console) -> None:
    """What was fitted, and how far the prediction of the other requests is off."""
    model, time = fit.model, fit.model.step_time
    memory = f"{model.capacity_tokens:,} tokens" if fit.is_memory_bound else "never short of memory"
    console.print(f"{name}: {fit.num_simulations} simulations; {memory}")
    console.print(
        f"  a step {time.base_s * 1e3:.2f} ms, a token {time.token_s * 1e6:.1f} µs, a sequence "
        f"{time.sequence_s * 1e6:.1f} µs, 1,000 tokens of context {time.context_s * 1e9:.1f} µs, a prompt token "
        f"{time.prefill_token_s * 1e6:.1f} µs more, 1,000,000 pairs {time.pair_s * 1e12:.0f} µs"
    )
    for title, deviations in (("TTFT", found.ttft), ("TPOT", found.tpot)):
        shown = ", ".join(f"P{level} {ratio:+.1%}" for level, ratio in deviations.items())
        console.print(f"  {title} of the others, simulated against measured: {shown}")
