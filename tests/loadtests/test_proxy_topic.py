"""`bars proxy`: what a runner of gateway cases says becomes bars, and without one they are skipped."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from loadtests.bars import proxy_topic
from loadtests.bars.proxy_topic import case_bar
from loadtests.cli import app
from loadtests.errors import TargetError

RUNNER = """
import json, pathlib, sys
assert sys.argv[2] == "--target" and pathlib.Path(sys.argv[3]).is_file()
rows = json.loads(pathlib.Path(sys.argv[1]).read_text())
pathlib.Path(sys.argv[sys.argv.index("--json") + 1]).write_text(json.dumps({"cases": rows}))
sys.exit(any(row["outcome"] == "failed" for row in rows))
"""
NO_SOAK = ("--soak-requests", "0")
PASSED = '{"id": "a", "outcome": "passed", "failures": [], "reason": ""}'
FAILED = '{"id": "b", "outcome": "failed", "failures": ["status: got 200"], "reason": ""}'
SKIPPED = '{"id": "c", "outcome": "skipped", "failures": [], "reason": "needs cors"}'


def runner(folder: Path, *rows: str, program: str = RUNNER) -> Path:
    (folder / "run_cases.py").write_text(program)
    (folder / "handed.yaml").write_text(f"[{', '.join(rows)}]")
    return folder


def test_every_case_must_pass_twice(tmp_path: Path) -> None:
    """A line for each run."""
    result = CliRunner().invoke(app, ["bars", "proxy", "--cases", str(runner(tmp_path, PASSED, PASSED)), *NO_SOAK])
    assert result.exit_code == 0
    lines = [line for line in result.output.splitlines() if line.startswith("bar ")]
    assert lines == [
        *(f"bar proxy-cases-run-{run} value=2.00 limit>=2.00 holds" for run in (1, 2)),
        "bar soak skipped",
    ]


async def test_a_case_that_fails_or_is_skipped_falls_short(tmp_path: Path) -> None:
    """Each with why."""
    bar = await case_bar("x", runner(tmp_path, PASSED, FAILED, SKIPPED))
    assert (bar.value, bar.limit, bar.holds) == (1.0, 3.0, False)
    assert bar.note == "b: status: got 200; c: needs cors"


def test_without_a_runner_the_lines_say_skipped() -> None:
    """Which is no failure."""
    result = CliRunner().invoke(app, ["bars", "proxy", *NO_SOAK])
    assert result.exit_code == 0
    assert [line for line in result.output.splitlines() if line.startswith("bar ")] == [
        "bar proxy-cases-run-1 skipped",
        "bar proxy-cases-run-2 skipped",
        "bar soak skipped",
    ]


async def test_a_runner_that_cannot_run_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It ends without a result, isn't there, or doesn't end."""
    with pytest.raises(TargetError, match="no such case"):
        await case_bar("x", runner(tmp_path, program="import sys; sys.exit('no such case')"))
    with pytest.raises(TargetError, match="could not be run"):
        await case_bar("x", tmp_path / "nowhere")
    monkeypatch.setattr(proxy_topic, "RUN_LIMIT_S", 0.2)
    with pytest.raises(TargetError, match="longer than"):
        await case_bar("x", runner(tmp_path, program="import time; time.sleep(60)"))
