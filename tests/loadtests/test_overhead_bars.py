"""The bars of overhead: their arithmetic, what is said of others, and the whole of it with small counts."""

import os
from pathlib import Path

import pytest
from typer.testing import CliRunner

from loadtests.bars import overhead_topic
from loadtests.bars.bar import Bar
from loadtests.bars.many_streams import StreamSizes, many_streams_bars
from loadtests.bars.overhead_topic import added_ms, cost_bars, overhead_bars, table
from loadtests.cli import app
from loadtests.cost import contenders
from loadtests.cost.contenders import Contender, Start, own_contenders, peers
from loadtests.cost.measure import Sample, Sizes
from loadtests.errors import TargetError

SMALL = Sizes(
    rounds=2, warm_s=0.05, num_connections=2, closed_s=0.1, num_streams=3, stream_tokens=4, stream_pace_s=0.001,
    paced_per_s=50.0, paced_s=0.2,
)  # fmt: skip
FEW = StreamSizes(num=20, tokens=3, pace_s=0.2, begin_per_s=1000.0, calm_s=0.1)
DIRECT = [Sample(p50_s=0.001, p99_s=0.002), Sample(p50_s=0.002, p99_s=0.003), Sample(p50_s=0.001, p99_s=0.002)]


def rounds(*request_ms: float | None, chunk_us: float = 20.0, p50_s: float = 0.0015) -> list[Sample]:
    return [
        Sample(None if each is None else each / 1e3, chunk_us / 1e6, p50_s=p50_s, p99_s=0.004) for each in request_ms
    ]


def test_each_bar_is_the_median_of_rounds_beside_the_others() -> None:
    """The ratio is taken within a round; added latency is over the same round's straight to the replica."""
    samples = {
        "direct": DIRECT,
        "tailgate": rounds(0.25, 0.15, 0.18),
        "naive": rounds(3.0, 2.0, 2.5, chunk_us=100.0),
        "vllm-router": rounds(0.08, 0.07, 0.09, chunk_us=16.0),
    }
    request, chunk, p50 = cost_bars(samples)
    assert request.line() == "bar overhead-request-cpu-ms value=0.18 limit<=0.20 holds"
    assert request.note == "rounds 0.25, 0.15, 0.18; spread 0.10; naive 2.5, vllm-router 0.08"
    assert chunk.line() == "bar overhead-chunk-cpu-over-vllm-router value=1.25 limit<=1.30 holds"
    assert chunk.note.endswith("; tailgate 20 µs, naive 100 µs, vllm-router 16 µs")
    assert p50.value == pytest.approx(0.5)
    assert p50.note.endswith("at P99 2")
    assert added_ms(samples, lambda sample: sample.p50_s)["tailgate"] == pytest.approx([0.5, -0.5, 0.5])


def test_without_vllm_router_the_ratio_is_skipped_with_the_absolute_figure() -> None:
    """Which is no failure."""
    _, chunk, _ = cost_bars({"direct": DIRECT, "tailgate": rounds(0.1, 0.1, 0.1), "naive": rounds(1.0, 1.0, 1.0)})
    assert (chunk.line(), chunk.holds) == ("bar overhead-chunk-cpu-over-vllm-router skipped", True)
    assert chunk.note == "vllm-router is not there; tailgate 20 µs, naive 20 µs"


def test_a_round_without_a_figure_spoils_the_bar_and_the_row() -> None:
    """Of tailgate: short. Of another: a dash."""
    samples = {"direct": DIRECT, "tailgate": rounds(0.1, None, 0.1), "naive": rounds(1.0, 2.0, None)}
    request, _, _ = cost_bars(samples)
    assert not request.holds
    assert request.note.endswith("naive -")
    head, ours, naive = table(samples)
    assert head.startswith("gateway ")
    assert ours.split() == ["tailgate", "-", "20", "[0]", "0.5", "[1]", "2", "[1]"]
    assert naive.split() == ["naive", "-", "20", "[0]", "0.5", "[1]", "2", "[1]"]


def test_a_row_has_the_figures_of_its_gateway() -> None:
    """And of no other."""
    samples = {
        "direct": DIRECT,
        "tailgate": rounds(0.2, 0.2, 0.2, chunk_us=20.0),
        "naive": rounds(3.0, 2.0, 4.0, chunk_us=100.0),
    }
    _, ours, naive = table(samples)
    assert ours.split()[:5] == ["tailgate", "0.2", "[0]", "20", "[0]"]
    assert naive.split()[:5] == ["naive", "3", "[2]", "100", "[0]"]


def executable(path: Path) -> str:
    path.parent.mkdir(parents=True)
    path.write_text("#!/bin/sh\nexit 3\n")
    path.chmod(0o755)
    return str(path)


def test_others_are_found_in_their_environments_then_on_the_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder each. A vllm-router on PATH is the one of that name, never production-stack's."""
    on_path = executable(tmp_path / "path" / "vllm-router")
    monkeypatch.setenv("PATH", str(tmp_path / "path"))
    monkeypatch.setattr(contenders, "MORE_PATH", "")
    found, missing = peers(tmp_path)
    assert [peer.name for peer in found] == ["vllm-router"]
    assert missing == ["sglang-router", "litellm", "nginx", "production-stack"]
    assert found[0].start(tmp_path, 1, "http://127.0.0.1:2").command[0] == on_path
    names = {"vllm-router": "vllm-router", "sglang-router": "sglang-router", "litellm": "litellm", "nginx": "nginx"}
    own = {name: executable(tmp_path / name / "bin" / script) for name, script in names.items()}
    own["production-stack"] = executable(tmp_path / "production-stack" / "bin" / "vllm-router")
    found, missing = peers(tmp_path)
    assert missing == []
    for peer in found:
        start = peer.start(tmp_path, 4321, "http://127.0.0.1:2")
        assert start.command[0] == own[peer.name]
        assert start.environment["PYTHONPATH"] == ""
        text = " ".join(start.command) + "".join(path.read_text() for path in tmp_path.glob("*.*"))
        assert "4321" in text
        assert "127.0.0.1:2" in text


def refuse(*_: object) -> Start:
    return Start(["sh", "-c", "echo no such thing; exit 3"])


async def test_a_peer_that_does_not_serve_is_told_and_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the end of its log; the naive proxy and tailgate must serve."""
    said: list[str] = []
    samples = await overhead_topic._rounds(
        [Contender("other", refuse)], SMALL, lambda *_: lambda _answer: None, said.append
    )
    assert list(samples) == ["direct"]
    assert len(samples["direct"]) == 2
    (line,) = said
    assert line.startswith("peer other failed in round 1: other does not serve: ended with status 3")
    assert line.endswith("no such thing")
    with pytest.raises(TargetError, match="naive does not serve"):
        await overhead_topic._rounds([Contender("naive", refuse)], SMALL, lambda *_: lambda _answer: None, said.append)


@pytest.mark.slow
async def test_the_whole_topic_with_small_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every bar has its figure, what isn't installed is told, and all streams are whole and leave nothing."""
    monkeypatch.setattr(contenders, "_PEERS", contenders._PEERS[:2])
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    bars: list[Bar] = []
    said: list[str] = []
    await overhead_bars(
        lambda *_: lambda _answer: None, bars.append, say=said.append, folder=tmp_path, sizes=SMALL, streams=FEW
    )
    assert said[:2] == ["peer vllm-router skipped: not installed", "peer sglang-router skipped: not installed"]
    assert [line.split()[0] for line in said[2:]] == ["gateway", "tailgate", "naive"]
    by_name = {bar.name.removeprefix("overhead-"): bar for bar in bars}
    assert list(by_name) == [
        "request-cpu-ms", "chunk-cpu-over-vllm-router", "added-p50-ms", "streams-open-at-once",
        "streams-whole-and-right", "streams-in-flight-left", "streams-queued-left", "streams-sockets-left",
    ]  # fmt: skip
    assert by_name["request-cpu-ms"].value is not None
    assert 0.0 < by_name["request-cpu-ms"].value < 1000.0
    assert by_name["chunk-cpu-over-vllm-router"].is_skipped
    assert by_name["added-p50-ms"].value is not None
    assert by_name["streams-open-at-once"].value == by_name["streams-whole-and-right"].value == 20
    assert "KiB resident a stream" in by_name["streams-open-at-once"].note
    assert all(by_name[f"streams-{what}-left"].value == 0.0 for what in ("in-flight", "queued", "sockets"))


async def test_too_few_open_files_fall_short_and_say_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before anything is started."""
    monkeypatch.setattr("resource.getrlimit", lambda _: (1024, 4096))
    bars = await many_streams_bars(own_contenders()[0], StreamSizes())
    assert not any(bar.holds for bar in bars)
    assert bars[0].note == "10200 open files are needed and the hard limit is 4096; raise it (ulimit -Hn 10200)"


def test_a_folder_that_is_not_there_is_told() -> None:
    """Not taken for one without any environment."""
    result = CliRunner().invoke(app, ["bars", "overhead", "--peers", os.devnull + "/nowhere"])
    assert result.exit_code == 2
    assert "--peers" in result.output
