"""Replaying a trace to a live URL: instants, prompts, and latency from when a request was to be sent."""

import asyncio
import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from loadtests.answer import Answer
from loadtests.cli import app
from loadtests.client import LoadClient
from loadtests.errors import LoadtestError
from loadtests.prompts import PromptMaker
from loadtests.replay import from_intended, plan_replay
from loadtests.traces import Trace

from .scripted_server import count_words, scripted_server


def _trace(arrival_s: list[float] | None, **extra: object) -> Trace:
    count = len(arrival_s or [0.0] * 4)
    instants = None if arrival_s is None else np.asarray(arrival_s)
    return Trace("test", instants, np.full(count, 30), np.full(count, 2), **extra)  # type: ignore[arg-type]


def _instants(trace: Trace, *, rate: float | None = None, speed: float = 1.0, num: int | None = None) -> list[float]:
    plan = plan_replay(trace, num_requests=num, rate_per_s=rate, speed=speed, seed=1).plan
    return [request.arrival_s for request in plan.requests]


def test_instants_are_the_traces_own_or_at_the_rate_asked_for() -> None:
    """As recorded, faster, or stretched so that the mean gap is the rate's; without arrivals, Poisson's."""
    trace = _trace([0.0, 1.0, 4.0, 6.0])
    assert _instants(trace) == [0.0, 1.0, 4.0, 6.0]
    assert _instants(trace, speed=2.0, num=3) == [0.0, 0.5, 2.0]
    assert _instants(trace, rate=4.0) == pytest.approx([0.0, 0.125, 0.5, 0.75])
    many = Trace("test", None, np.full(4000, 5), np.full(4000, 5))
    assert np.diff(_instants(many, rate=8.0)).mean() == pytest.approx(1 / 8, rel=0.05)
    with pytest.raises(LoadtestError, match="--rate"):
        _instants(_trace(None))
    with pytest.raises(LoadtestError, match="one instant"):
        _instants(_trace([0.0, 0.0]), rate=1.0)


def test_latency_counts_from_the_intended_instant() -> None:
    """A request that the client sent two seconds late has waited these two seconds."""
    late = Answer(0, "all", 5, 1, scheduled_s=10.0, sent_s=12.0, end_s=13.5, chunk_s=[13.0])
    (fair,) = from_intended([late])
    assert (late.ttft_s, fair.ttft_s, fair.e2e_s) == (1.0, 3.0, 3.5)
    assert late.sent_s == 12.0


async def test_equal_leading_blocks_are_equal_words_of_the_planned_length() -> None:
    """Two requests that share a block begin alike, and differ after it; lengths are exact."""
    trace = _trace([0.0, 1.0, 2.0], block_ids=((7, 8, 9), (7, 5, 6), (4,)), block_tokens=10)
    planned = plan_replay(trace, num_requests=None, rate_per_s=None, speed=1.0, seed=1)
    async with scripted_server() as (url, _), LoadClient(url, "scripted") as client:
        maker = await PromptMaker.calibrate(client)
    make = planned.messages(maker, "key")
    bodies = [make(request) for request in planned.plan.requests]
    assert [count_words({"messages": body}) for body in bodies] == [30, 30, 30]
    words = [body[0]["content"].split() for body in bodies]
    assert words[0][:10] == words[1][:10] != words[2][:10]
    assert words[0][10:20] != words[1][10:20]


async def test_the_command_sends_everything_and_writes_what_it_saw(tmp_path: Path) -> None:
    """The rows of a trace become requests of their lengths; the JSON has them all."""
    file, out = tmp_path / "trace.csv", tmp_path / "replay.json"
    rows = "".join(f"{index * 0.01},a,{20 + index},{1 + index}\n" for index in range(8))
    file.write_text("req_time,adapter_dir,prompt_len,output_len\n" + rows)
    async with scripted_server() as (url, recorder):
        arguments = ["replay", str(file), "--url", url, "--speed", "2", "--out", str(out)]
        done = await asyncio.to_thread(CliRunner().invoke, app, arguments)
    assert done.exit_code == 0, done.output
    result = json.loads(out.read_text())
    assert [request["prompt_tokens"] for request in result["requests"]] == [20 + index for index in range(8)]
    assert [body["max_tokens"] for body in recorder.bodies[-8:]] == [1 + index for index in range(8)]
    summary = result["summary"]
    assert (summary["num_requests"], summary["num_ok"]) == (8, 8)
    assert summary["client_lag_s"]["max"] >= 0.0
    assert result["duration_s"] == pytest.approx(0.035)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["absent.csv", "--url", "http://127.0.0.1:1"], "absent.csv: cannot be read"),
        (["{trace}", "--url", "nonsense"], "a server's URL must be"),
        (["{trace}", "--url", "http://127.0.0.1:1"], "cannot be reached"),
    ],
)
def test_what_is_wrong_is_one_line_and_status_2(tmp_path: Path, arguments: list[str], words: str) -> None:
    """No traceback."""
    (tmp_path / "trace.csv").write_text("req_time,adapter_dir,prompt_len,output_len\n0,a,5,5\n")
    given = [argument.format(trace=tmp_path / "trace.csv") for argument in arguments]
    done = CliRunner().invoke(app, ["replay", *given])
    assert done.exit_code == 2
    assert words in done.output
