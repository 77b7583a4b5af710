"""Bars: the line's form, what holds, and the checks behind them against servers that misbehave."""

import re
import textwrap
from importlib.metadata import version
from pathlib import Path

import pytest
from aiohttp import web
from typer.testing import CliRunner

from loadtests.bars.bad_input import bad_input_bar, cases, why_not_openai_error
from loadtests.bars.bar import Bar, at_least, at_most, median_of_rounds
from loadtests.bars.decision import decision_bar
from loadtests.bars.metrics_text import sum_of
from loadtests.cli import app
from loadtests.client import LoadClient
from loadtests.engine import summarise_rates
from loadtests.scenario import load_scenario

FORM = re.compile(r"^bar [a-z0-9-]+ value=(none|-?[0-9.e+-]+) limit(<=|>=)[0-9.e+-]+ (holds|short)$")


def test_the_line_has_the_agreed_form() -> None:
    """Name, value, limit with its sense, verdict."""
    assert at_most("demo-x", 1.23, 1.5).line() == "bar demo-x value=1.23 limit<=1.50 holds"
    assert at_least("demo-y", 0.9496, 0.95).line() == "bar demo-y value=0.9496 limit>=0.95 short"


@pytest.mark.parametrize("value", [0.0, 1.0, 1e-7, 12345.678, 0.333333, None])
def test_every_value_gives_a_line_of_that_form(value: float | None) -> None:
    """Small, large and missing values too."""
    assert FORM.match(Bar("a-bar", value, "<=", 0.5).line())


def test_equality_holds_and_a_missing_value_falls_short() -> None:
    """Both senses at the limit; None on either side."""
    assert at_most("a", 1.0, 1.0).holds
    assert at_least("a", 1.0, 1.0).holds
    assert not at_most("a", None, 1.0).holds
    assert not at_least("a", None, 1.0).holds
    with pytest.raises(ValueError, match="allowed"):
        Bar("a", 1.0, "<", 1.0)


def test_rounds_give_their_median_and_spread() -> None:
    """Odd and even numbers of rounds; one round without a figure spoils the bar."""
    bar = median_of_rounds("a", "<=", [0.5, 0.25, 1.0], 0.5)
    assert (bar.value, bar.holds) == (0.5, True)
    assert bar.note == "rounds 0.50, 0.25, 1.00; spread 0.75"
    assert median_of_rounds("a", "<=", [1.0, 2.0], 1.5).value == 1.5
    assert median_of_rounds("a", "<=", [1.0, None, 1.0], 1.5).value is None


def test_sums_of_a_metrics_page() -> None:
    """Labels are summed, prefixes of names are not confused, declared metrics without samples are 0."""
    page = (
        "# TYPE a gauge\na 1\n# TYPE b gauge\n"
        'a_total{x="1"} 5\nc{engine="0",model_name="m{}"} 2.5\nc{engine="1",model_name="m"} 1e1\n'
    )
    assert sum_of(page, "a") == 1.0
    assert sum_of(page, "b") == 0.0
    assert sum_of(page, "c") == 12.5
    assert sum_of(page, "absent") is None


def test_deciding_with_ten_thousand_waiting_is_measured() -> None:
    """The benchmark keeps its queue full and comes to a plausible figure."""
    bar = decision_bar()
    assert bar.value is not None
    assert 0.0 < bar.value < 50.0
    assert int(bar.note.split()[0]) > 9_000


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ('{"error": {"message": "no", "type": "t", "param": null, "code": null}}', None),
        ('{"error": "no"}', "shape"),
        ('{"error": {"message": "", "type": "t", "param": null, "code": null}}', "shape"),
        ('{"error": {"message": "no", "type": "t"}}', "shape"),
        ("nonsense", "shape"),
        ('{"error": {"message": "Traceback (most", "type": "t", "param": null, "code": null}}', "leaks"),
        ('{"error": {"message": "in server.py", "type": "t", "param": null, "code": null}}', "leaks"),
    ],
)
def test_an_error_is_judged_by_shape_and_leaks(text: str, why: str | None) -> None:
    """OpenAI's four fields, and nothing of our insides."""
    found = why_not_openai_error(text)
    assert (found is None) if why is None else (found is not None and why in found)


@pytest.mark.parametrize(("refuses", "expected"), [(True, 22 / 24), (False, 0.0)])
async def test_the_battery_counts_what_was_refused_well(refuses: bool, expected: float) -> None:
    """A server that answers 400 to everything bad misses the 404 and the 413; one that serves all misses everything."""

    async def chat(request: web.Request) -> web.Response:
        good = b'"content": "hello"' in (body := await request.read()) and body.endswith(b'"max_tokens": 1}')
        if good or not refuses:
            return web.json_response({"choices": []})
        error = {"message": "no", "type": "invalid_request_error", "param": None, "code": None}
        return web.json_response({"error": error}, status=400)

    app_ = web.Application(client_max_size=64 * 1024**2)
    app_.router.add_post("/v1/chat/completions", chat)
    app_.router.add_post("/v1/completions", chat)
    runner = web.AppRunner(app_, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        host, port = runner.addresses[0][:2]
        async with LoadClient(f"http://{host}:{port}", "m") as client:
            bar = await bad_input_bar(client)
    finally:
        await runner.cleanup()
    assert len(cases("m")) == 24
    assert bar.value == pytest.approx(expected)
    assert ("unknown-model: status 400" in bar.note) is refuses


def test_engine_rates_are_compared_within_rounds() -> None:
    """Ratios of each round, not of the medians."""
    row = summarise_rates(8, [10.0, 30.0, 20.0], [20.0, 30.0, 10.0])
    assert (row["ratio"], row["ratio_low"], row["ratio_high"]) == (1.0, 0.5, 2.0)
    assert row["bundled_output_tokens_per_s"] == 20.0


def test_the_command_line_says_what_is_wrong_in_one_line() -> None:
    """An unknown topic, scenario or file, and a server that isn't there: status 2 and the reason."""
    runner = CliRunner()
    for arguments, words in (
        (["bars", "nonsense"], "there are: main, counting, policies, proxy, overhead, slices"),
        (["shape", "no-such-file.csv"], "no-such-file.csv: cannot be read: No such file or directory"),
        (["compare", "short-behind-long", *("--direct", "x", "--gateway", "x"), "--out", __file__], "File exists"),
        (["run", "nonsense", "--url", "http://127.0.0.1:9", "--model", "m"], "bundled: short-behind-long"),
        (["run", "short-behind-long", "--url", "http://127.0.0.1:9"], "cannot be reached: connection refused"),
        (["run", "short-behind-long", "--url", "http://127.0.0.1:9", "--model", "m"], "connection refused"),
        (["run", "short-behind-long", "--url", "127.0.0.1:9"], "must be http://HOST"),
    ):
        result = runner.invoke(app, arguments)
        assert result.exit_code == 2
        assert words in result.output.splitlines()[-1]


def test_the_command_line_knows_its_version() -> None:
    """The package's."""
    result = CliRunner().invoke(app, ["--version"])
    assert (result.exit_code, result.output) == (0, f"tailgate-load {version('tailgate')}\n")


def test_shape_prints_yaml_of_a_trace(tmp_path: Path) -> None:
    """The shape of a small trace is a lane's lengths: a scenario with the whole of it pasted in can be read."""
    path = tmp_path / "trace.csv"
    path.write_text("num_prefill_tokens,num_decode_tokens\n10,1\n20,2\n30,3\n", encoding="utf-8")
    result = CliRunner().invoke(app, ["shape", str(path)])
    assert result.exit_code == 0
    assert "3 requests" in result.output
    lane = "    work_share: 1.0\n" + textwrap.indent(result.output, "    ")
    scenario = tmp_path / "mine.yaml"
    scenario.write_text(
        f"name: mine\nabout: ''\nload: 0.5\nnum_first_lane: 3\nlanes:\n  only:\n{lane}", encoding="utf-8"
    )
    (read,) = load_scenario(str(scenario)).lanes
    assert (read.lengths.prompt_tokens[0], read.prompt_bounds_tokens, read.divisor) == (10, (10, 30), 1.0)
