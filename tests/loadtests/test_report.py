"""A whole comparison against scripted servers: measured, compared, printed, saved, drawn."""

import asyncio
import dataclasses
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rich.console import Console

from loadtests.answer import Answer
from loadtests.calibrate import measure_costs
from loadtests.client import LoadClient
from loadtests.compare import compare, measure
from loadtests.plot import plot_comparison
from loadtests.prompts import PromptMaker
from loadtests.report import print_comparison, print_layers, print_side, save_json
from loadtests.scenario import load_scenario

from .scripted_server import Stream, count_words, scripted_server


async def _paced(stream: Stream, body: dict[str, Any]) -> None:
    """A server that takes 0.2 ms a prompt token and 1 ms an output token."""
    await asyncio.sleep(2e-4 * count_words(body))
    await stream.open()
    for _ in range(body["max_tokens"]):
        await asyncio.sleep(1e-3)
        await stream.text("word ")
    await stream.usage(count_words(body), body["max_tokens"])
    await stream.done()


async def test_a_comparison_from_calibration_to_picture(tmp_path: Path) -> None:
    """Costs and capacity come out positive, every request is answered on both sides, and all outputs are written."""
    scenario = dataclasses.replace(load_scenario("short-behind-long"), num_first_lane=12)
    steps: list[str] = []

    def on_step(title: str, _count: int | None) -> Callable[[object], None]:
        steps.append(title)
        return lambda _answer: None

    async with scripted_server(_paced) as (url, _), LoadClient(url, "scripted") as client:
        maker = await PromptMaker.calibrate(client)
        measured = await measure(client, maker, scenario, "key", on_step, capacity_s=2.0)
        assert measured.costs.prompt_token_s > 0.0
        assert measured.capacity.work_per_s > 0.0
        comparison = await compare(
            client, client, maker, scenario, measured, seed=1, load=0.5, on_step=on_step, gateway_first=True
        )
    result = comparison.to_dict()
    assert result["sides"]["direct"]["num_ok"] == result["sides"]["gateway"]["num_ok"] == len(comparison.plan.requests)
    assert result["layers"]["found_ratio"] == 0.0
    assert steps[2].startswith("through the gateway")
    result["example"] = {"total_ms": 10.0, "layers_ms": {"queue": 7.5, "decode": 2.5}, "notes": {"queue": "capacity"}}
    out = io.StringIO()
    console = Console(file=out, width=120)
    print_comparison(result, console)
    print_side(result["sides"]["direct"], console)
    assert "TTFT P95" in out.getvalue()
    assert "(capacity)" in out.getvalue()
    save_json(result, tmp_path / "new" / "demo.json")
    assert json.loads((tmp_path / "new" / "demo.json").read_text())["seed"] == 1
    plot_comparison(result, tmp_path / "demo.png")
    assert (tmp_path / "demo.png").read_bytes().startswith(b"\x89PNG")


def test_no_record_prints_no_layers() -> None:
    """Where the gateway kept no record, nothing is made up."""
    out = io.StringIO()
    print_layers({}, Console(file=out))
    assert out.getvalue() == ""
    assert Answer(0, "short", 1, 1, 0.0, 0.0).e2e_s is None


async def test_costs_are_those_of_the_server() -> None:
    """A millisecond between tokens of eight parallel answers is about an eighth of one each, and never less."""
    async with scripted_server(_paced) as (url, _), LoadClient(url, "scripted") as client:
        costs = await measure_costs(client, await PromptMaker.calibrate(client), "key")
    assert 1e-3 / 8 <= costs.output_token_s < 0.02
    assert 1e-4 < costs.prompt_token_s < 4e-4
