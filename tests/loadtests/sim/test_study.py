"""Policies by name, workloads at a load, and the commands."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from loadtests.cli import app
from loadtests.errors import LoadtestError
from loadtests.sim.contenders import contender
from loadtests.sim.model import ReplicaModel
from loadtests.sim.models import bundled_models, load_model, model_to_dict
from loadtests.sim.simulation import Setup
from loadtests.sim.study import (
    Study,
    capacity_work_per_s,
    figures,
    prepared,
    sized,
    timeline,
    typical_costs,
)
from loadtests.traces import Trace
from loadtests.workload import Costs

from .worlds import SPEED

MODEL = ReplicaModel(SPEED, num_blocks=500, max_num_seqs=8)
COSTS = Costs(1e-4, 0.01)


def _trace(count: int = 200) -> Trace:
    rng = np.random.default_rng(3)
    lengths = (rng.integers(5, 400, count), np.rint(rng.lognormal(3.0, 1.0, count)).astype(np.int64) + 1)
    return Trace("test", np.cumsum(rng.exponential(1.0, count)), *lengths)


def _study(*names: str) -> Study:
    trace = prepared(_trace(), MODEL)
    costs = typical_costs(MODEL, trace)
    contenders = tuple(contender(name, costs, MODEL) for name in names)
    setup = Setup(MODEL, max_in_flight_tokens=MODEL.capacity_tokens, max_in_flight_requests=8)
    return Study(sized(trace, costs), contenders, setup, costs, capacity_work_per_s(MODEL, trace, costs), 1)


@pytest.mark.parametrize(
    "name", ["default", "fcfs", "drr+aged-sjf", "boost", "direct", "oracle-sjf", "oracle-srpt", "ps"]
)
def test_every_contender_serves_everything(name: str) -> None:
    """At a load near one; nothing is lost, and no plan breaks a rule."""
    study = _study(name)
    shown = figures(study.run(study.contenders[0], 0.95))
    assert (shown["num_failed"], shown["num_policy_errors"]) == (0, 0)
    assert list(shown["groups"]) == ["short", "middle", "long"]
    assert sum(group["num_requests"] for group in shown["groups"].values()) == len(study.workload.trace)


def test_bounds_are_bounds() -> None:
    """Knowing the lengths and preempting for nothing, short requests wait least."""
    study = _study("fcfs", "oracle-sjf", "oracle-srpt")
    waits = [figures(study.run(entry, 1.1))["groups"]["short"]["ttft_s"]["90"] for entry in study.contenders]
    assert waits[2] < waits[0]
    assert waits[1] < waits[0]


def test_load_is_a_share_of_what_the_engines_can_do() -> None:
    """Far over 1 the queue grows with time, far under it nobody waits; twice the engines take twice the rate."""
    study = _study("fcfs")
    calm, flooded = (figures(study.run(study.contenders[0], load))["groups"]["short"] for load in (0.2, 3.0))
    assert calm["ttft_s"]["90"] < 0.2 < 10 * calm["ttft_s"]["90"] < flooded["ttft_s"]["90"]
    twice = Study(study.workload, (), Setup(MODEL, num_replicas=2), study.costs, study.capacity_work_per_s, 1)
    one_s, two_s = (one.at_load(0.5).trace.arrival_s for one in (study, twice))
    assert one_s is not None
    assert two_s is not None
    assert one_s[-1] == pytest.approx(2.0 * two_s[-1])
    assert len(timeline(study.run(study.contenders[0], 0.2), "short", num_bins=5)) == 5


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("nonsense", "'nonsense' is none of default, direct"),
        ("fcfs+boost", "both ordering"),
        ("drr+nonsense", "nor a part: .*aged-sjf"),
    ],
)
def test_a_policy_that_is_none_is_an_error_with_the_choices(name: str, words: str) -> None:
    """So are options that don't exist."""
    with pytest.raises(LoadtestError, match=words):
        contender(name, COSTS, MODEL)
    with pytest.raises(LoadtestError, match="nap_s"):
        contender("default", COSTS, MODEL, {"wait": {"nap_s": 1}})


def test_engines_are_read_back_as_they_were_written(tmp_path: Path) -> None:
    """Bundled ones by name, others from a file; what is wrong in it is named."""
    assert bundled_models()
    for name in bundled_models():
        assert load_model(name).capacity_tokens > 10_000
    path = tmp_path / "engine.json"
    path.write_text(json.dumps(model_to_dict(MODEL)))
    assert load_model(str(path)) == MODEL
    for change, words in (
        ({"num_blocks": 0}, "num_blocks: 0"),
        ({"speed": 1}, "speed: unknown; allowed: step_time"),
        ({"step_time": {"base_s": 1.0}}, "token_s: missing"),
    ):
        path.write_text(json.dumps({**model_to_dict(MODEL), **change}))
        with pytest.raises(LoadtestError, match=words):
            load_model(str(path))
    with pytest.raises(LoadtestError, match=f"nor bundled: {bundled_models()[0]}"):
        load_model("absent")


def test_the_command_prints_a_table_and_writes_figures_and_a_picture(tmp_path: Path) -> None:
    """Two traces with their shares of the work; the same seed gives the same figures."""
    short, long = tmp_path / "short.csv", tmp_path / "long.csv"
    head = "req_time,adapter_dir,prompt_len,output_len\n"
    short.write_text(head + "".join(f"{index},a,{20 + index},{5 + index % 7}\n" for index in range(60)))
    long.write_text(head + "".join(f"{index},b,{900 + index},40\n" for index in range(5)))
    (tmp_path / "engine.json").write_text(json.dumps(model_to_dict(MODEL)))
    files = [tmp_path / f"{name}.json" for name in "ab"]
    for file in files:
        arguments = ["simulate", f"{short}@0.6", f"{long}@0.4", "--engine", str(tmp_path / "engine.json")]
        arguments += ["--policy", "fcfs", "--policy", "default", "--load", "0.9", "--replicas", "2", "--gateways", "2"]
        done = CliRunner().invoke(app, [*arguments, "--json", str(file), "--plot", str(tmp_path / "p.png")])
        assert done.exit_code == 0, done.output
    first, second = (json.loads(file.read_text()) for file in files)
    assert first == second
    assert [run["policy"] for run in first["runs"]] == ["fcfs", "default"]
    assert set(first["runs"][0]["groups"]) == {"short", "long"}
    assert re.search(r"default +short", done.output)
    assert (tmp_path / "p.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["simulate", "absent.csv"], "absent.csv: cannot be read"),
        (["simulate", "a.csv@x"], "isn't a number"),
        (["simulate", "a.csv", "--engine", "absent"], "nor bundled"),
        (["calibrate-sim", "absent.csv"], "cannot be read"),
    ],
)
def test_what_is_wrong_is_one_line_and_status_2(arguments: list[str], words: str) -> None:
    """No traceback."""
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 2
    assert words in done.output
    assert "Traceback" not in done.output
