"""Tables for people and JSON for everything else."""

import json
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

_SHOWN = (("TTFT", "ttft_s"), ("E2E", "e2e_s"))
_LEVELS = ("50", "90", "95", "99")


def save_json(result: dict[str, Any], path: Path) -> None:
    """Writes a result, folders included."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(result, indent=1, allow_nan=False) + "\n", encoding="utf-8")


def print_comparison(result: dict[str, Any], console: Console) -> None:
    """The table of a comparison's result (`Comparison.to_dict`), its totals, and one request's layers."""
    plan, capacity, costs = result["plan"], result["capacity"], result["costs"]
    mix = ", ".join(
        f"{lane['num_requests']} {name} ({lane['mean_prompt_tokens']:.0f} in, {lane['mean_output_tokens']:.0f} out on "
        f"average, {lane['work_share']:.0%} of the work)"
        for name, lane in plan["lanes"].items()
    )
    console.print(f"{mix}, over {plan['duration_s']:.0f} s; seed {result['seed']}")
    console.print(
        f"a prompt token costs {costs['prompt_token_s'] * 1e3:.2f} ms, an output token "
        f"{costs['output_token_s'] * 1e3:.2f} ms; capacity {capacity['work_per_s']:.2f} work seconds a second, "
        f"load {result['load']:.2f} of it\n"
    )
    console.print(_latency_table(result))
    console.print(_totals_table(result))
    harm = result["gateway_over_direct"]["harm_ratio"]
    if harm["value"] is not None:
        console.print(f"harm to long requests (P99 E2E, gateway / direct): {_ratio(harm)}")
    print_layers(result["example"], console)
    layers = result["layers"]
    console.print(
        f"layers over {layers['num_requests']} requests: `other` at most 1 % or 1 ms on "
        f"{layers['small_other_ratio']:.1%}; total within 2 % or 5 ms of the client's clock on "
        f"{layers['total_agrees_ratio']:.1%}"
    )


def print_side(summary: dict[str, Any], console: Console) -> None:
    """The table of one side's summary."""
    table = Table(title=None, box=None, pad_edge=False)
    for heading in ("lane", "figure", *(f"P{level}" for level in _LEVELS), "requests", "failed"):
        table.add_column(heading, justify="left" if heading in ("lane", "figure") else "right")
    for lane, figures in summary["lanes"].items():
        for title, metric in (*_SHOWN, ("TPOT", "tpot_s"), ("ITL", "itl_s")):
            cells = [seconds(figures[metric][level]["value"]) for level in _LEVELS]
            failed = figures["num_requests"] - figures["num_ok"]
            table.add_row(lane, title, *cells, str(figures["num_requests"]), str(failed))
    console.print(table)
    console.print(
        f"{_number(summary['output_tokens_per_s'])} output tokens/s, {_number(summary['tokens_per_s'])} tokens/s "
        f"in all, goodput {_number(summary['goodput_per_s'])} requests/s ({percent(summary['goodput_ratio'])}), "
        f"client late by at most {seconds(summary['client_lag_s']['max'])} s"
    )
    if summary["errors"]:
        console.print("errors: " + ", ".join(f"{kind} {count}" for kind, count in summary["errors"].items()))


def print_engines(result: dict[str, Any], console: Console) -> None:
    """The table of an engine comparison."""
    table = Table(box=None, pad_edge=False, caption="output tokens/s; medians of rounds, ratio with its range")
    for heading in ("concurrent", "bundled", "other", "bundled / other"):
        table.add_column(heading, justify="right")
    for row in result["concurrencies"]:
        rates = (row["bundled_output_tokens_per_s"], row["other_output_tokens_per_s"])
        ratio = f"{row['ratio']:.2f} ({row['ratio_low']:.2f} to {row['ratio_high']:.2f})"
        table.add_row(str(row["concurrency"]), *map(_number, rates), ratio)
    console.print(table)


def print_layers(record: dict[str, Any], console: Console) -> None:
    """Where one request's time went, as bars of its total."""
    if not record:
        return
    total_ms = max(record["total_ms"], 1e-9)
    console.print(f"\none short request, layer by layer ({record['total_ms']:.0f} ms in all):")
    for layer, duration_ms in record["layers_ms"].items():
        note = record.get("notes", {}).get(layer)
        bar = "█" * max(0, round(40 * duration_ms / total_ms))
        console.print(f"  {layer:<13}{duration_ms:>9.1f} ms  {bar}{'' if note is None else '  (' + note + ')'}")
    console.print()


def _latency_table(result: dict[str, Any]) -> Table:
    table = Table(box=None, pad_edge=False, caption="seconds; gateway / direct with its 95 % interval")
    table.add_column("lane")
    table.add_column("figure")
    for heading in ("direct", "gateway", "gateway / direct"):
        table.add_column(heading, justify="right")
    ratios = result["gateway_over_direct"]["lanes"]
    sides = [result["sides"][side] for side in ("direct", "gateway")]
    for lane in ratios:
        for title, metric in _SHOWN:
            for level in _LEVELS:
                values = [side["lanes"][lane][metric][level]["value"] for side in sides]
                ratio = _ratio(ratios[lane][metric][level])
                table.add_row(lane, f"{title} P{level}", *map(seconds, values), ratio)
        table.add_section()
    return table


def _totals_table(result: dict[str, Any]) -> Table:
    table = Table(box=None, pad_edge=False)
    for heading in ("", "direct", "gateway"):
        table.add_column(heading, justify="right" if heading else "left")
    sides = [result["sides"][side] for side in ("direct", "gateway")]
    table.add_row("tokens/s, prompt and output", *(_number(side["tokens_per_s"]) for side in sides))
    table.add_row("output tokens/s", *(_number(side["output_tokens_per_s"]) for side in sides))
    table.add_row("goodput, requests/s", *(_number(side["goodput_per_s"]) for side in sides))
    table.add_row("requests that met their objectives", *(percent(side["goodput_ratio"]) for side in sides))
    table.add_row("failed requests", *(str(side["num_requests"] - side["num_ok"]) for side in sides))
    table.add_row("client late at most, s", *(seconds(side["client_lag_s"]["max"]) for side in sides))
    return table


def seconds(value: float | None) -> str:
    """Milliseconds' grain; a dash for none."""
    return "-" if value is None else f"{value:.3f}"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def percent(value: float | None) -> str:
    """Of a ratio; a dash for none."""
    return "-" if value is None else f"{value:.1%}"


def _ratio(estimate: dict[str, float | None]) -> str:
    if estimate["value"] is None:
        return "-"
    return f"{estimate['value']:.2f} ({estimate['low']:.2f} to {estimate['high']:.2f})"
