"""Fitting an engine to measured requests: what was simulated with a known engine is found again."""

import json
import random
from dataclasses import replace
from pathlib import Path

import pytest

from loadtests.errors import TraceError
from loadtests.sim.fidelity import fidelity
from loadtests.sim.fit import fit_model, pass_through
from loadtests.sim.measured import MeasuredRequest, load_measured, peak_tokens
from loadtests.sim.model import ReplicaModel
from loadtests.sim.request import SimRequest
from loadtests.sim.simulation import Setup, simulate
from loadtests.sim.step_time import StepTime

TRUTH = ReplicaModel(StepTime(0.02, 3e-5, 5e-5, 1.5e-7, 2e-9, 6e-5), num_blocks=10_000, max_num_seqs=8)


def _measure(model: ReplicaModel, count: int, rate_per_s: float) -> tuple[MeasuredRequest, ...]:
    rng = random.Random(5)
    now_s, mix = 0.0, []
    for index in range(count):
        now_s += rng.expovariate(rate_per_s)
        mix.append(SimRequest(index, f"q{index}", now_s, rng.randint(20, 900), rng.randint(60, 200)))
    outcomes = simulate(mix, pass_through, Setup(model)).outcomes
    start_s = mix[0].arrival_s
    return tuple(
        MeasuredRequest(
            outcome.request.request_id,
            outcome.request.prompt_tokens,
            outcome.request.output_tokens,
            outcome.request.arrival_s - start_s,
            outcome.token_s[0] - start_s,
            outcome.token_s[-1] - start_s,
        )
        for outcome in outcomes
    )


@pytest.mark.slow
@pytest.mark.parametrize("rate_per_s", [0.7, 3.0], ids=["idle", "queueing"])
def test_an_engine_is_found_again_from_what_it_did(rate_per_s: float) -> None:
    """Fitted to the first half, it predicts the second within a few percent."""
    measured = _measure(TRUTH, 60, rate_per_s)
    calls: list[object] = []
    fit = fit_model(
        measured, replace(TRUTH, step_time=StepTime(9.0, 9.0), num_blocks=1), num_fitted=30, on_simulation=calls.append
    )
    found = fidelity(measured, fit.model, first=30)
    assert found.worst_ttft_ratio < 0.1
    assert found.worst_tpot_ratio < 0.03
    assert fit.median_error_ratio < 0.03
    assert len(calls) == fit.num_simulations


def test_the_true_engine_has_no_deviation() -> None:
    """The measure itself: same engine, same requests, zero."""
    measured = _measure(TRUTH, 30, 3.0)
    found = fidelity(measured, TRUTH, first=10)
    assert found.worst_ttft_ratio == pytest.approx(0.0, abs=1e-9)
    assert found.worst_tpot_ratio == pytest.approx(0.0, abs=1e-9)
    slower = replace(TRUTH, step_time=replace(TRUTH.step_time, base_s=0.04))
    assert fidelity(measured, slower, first=10).worst_tpot_ratio > 0.2


def test_peak_tokens_are_those_in_memory_at_once() -> None:
    """Prompt and what was generated so far, of requests between first and last token."""
    both = [MeasuredRequest("a", 100, 10, 0.0, 1.0, 3.0), MeasuredRequest("b", 50, 4, 0.0, 2.0, 4.0)]
    assert peak_tokens(both) == 155


HEADER = "run,request_id,arrival_s,input_toks,output_toks,queued_s,scheduled_s,first_token_s,last_token_s\n"


def _load(tmp_path: Path, text: str) -> dict[str, tuple[MeasuredRequest, ...]]:
    path = tmp_path / "measured.csv"
    path.write_text(text)
    return load_measured(path)


def test_measured_requests_are_read_by_run_in_order_of_queueing(tmp_path: Path) -> None:
    """Other columns don't matter."""
    runs = _load(tmp_path, HEADER + "x,q1,0,5,3,0.5,0.6,1,2\ny,q2,0,5,1,0,0,1,1\nx,q0,0,7,3,0.25,0.6,1,3\n")
    assert list(runs) == ["x", "y"]
    assert [request.request_id for request in runs["x"]] == ["q0", "q1"]
    assert (runs["x"][1].ttft_s, runs["x"][1].tpot_s, runs["y"][0].tpot_s) == (0.5, 0.5, None)


@pytest.mark.parametrize(
    ("text", "line", "column"),
    [
        ("run,request_id\n", 1, "input_toks"),
        ("", 1, "run"),
        (HEADER + "x,q,0,5,3,0,0,1,soon\n", 2, "last_token_s"),
        (HEADER + "x,q,0,5.5,3,0,0,1,2\n", 2, "input_toks"),
        (HEADER + "x,q,0,5,0,0,0,1,2\n", 2, "output_toks"),
        (HEADER + "x,q,0,5,3,0,0,3,2\n", 2, "first_token_s"),
        (HEADER + "x,q,0,5\n", 2, None),
    ],
)
def test_a_bad_row_is_an_error_with_its_place(tmp_path: Path, text: str, line: int, column: str | None) -> None:
    """File, line and column."""
    with pytest.raises(TraceError) as caught:
        _load(tmp_path, text)
    assert (caught.value.line, caught.value.column) == (line, column)


def test_what_replay_and_compare_saved_is_measured_too(tmp_path: Path) -> None:
    """Failed requests are left out; a comparison has a run a side; what isn't one of the two is an error."""
    row = {
        "index": 0,
        "prompt_tokens": 5,
        "output_tokens": 3,
        "sent_s": 1.0,
        "first_s": 2.0,
        "end_s": 4.0,
        "error": None,
    }
    rows = [row, row | {"index": 1, "sent_s": 0.5}, row | {"index": 2, "error": "http-500"}]
    (replayed,) = _load(tmp_path, json.dumps({"requests": rows}, indent=1)).values()
    assert [request.request_id for request in replayed] == ["1", "0"]
    assert (replayed[1].ttft_s, replayed[1].tpot_s) == (1.0, 1.0)
    assert list(_load(tmp_path, json.dumps({"requests": {"direct": rows, "gateway": rows}}))) == ["direct", "gateway"]
    for text, column in (
        ("{", None),
        ('{"requests": 5}', "requests"),
        (json.dumps({"requests": [row | {"sent_s": "x"}]}), "requests[0].sent_s"),
    ):
        with pytest.raises(TraceError) as caught:
            _load(tmp_path, text)
        assert caught.value.column == column
