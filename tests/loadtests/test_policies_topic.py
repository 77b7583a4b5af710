"""`bars policies` without traces: every line is there, and says that it was skipped."""

from pathlib import Path

import pytest

from loadtests.bars import fairness, overload
from loadtests.bars.bar import Bar
from loadtests.bars.fidelity import FILE, MAX_NUM_SEQS, fidelity_bars
from loadtests.bars.policies_topic import policies_bars
from loadtests.bars.slot_bars import LOADS, TRACES
from loadtests.errors import TraceError


@pytest.mark.parametrize("has_folder", [False, True])
async def test_without_traces_every_bar_is_skipped(tmp_path: Path, has_folder: bool) -> None:
    """No folder, or one without the files; a note says what it takes."""
    bars: list[Bar] = []
    await policies_bars(
        lambda _title, _count: lambda _ended: None, bars.append, traces=tmp_path if has_folder else None
    )
    simulator = [bar for bar in bars if bar.name.startswith("simulator-")]
    assert len(simulator) == 2 * len(MAX_NUM_SEQS) + 2
    assert all(bar.is_skipped and "--traces" in bar.note for bar in simulator)
    assert {bar.name for bar in bars if bar.name.startswith("overload-")} == set(overload.NAMES)
    assert set(fairness.NAMES) < {bar.name for bar in bars if bar.is_skipped}
    slots = [bar for bar in bars if bar.name.startswith("slots-")]
    assert len(slots) == 3 * len(TRACES) * len(LOADS)
    assert all(bar.is_skipped for bar in slots)
    assert len({bar.name for bar in bars}) == len(bars)


def test_a_broken_trace_is_an_error_and_no_skipped_bar(tmp_path: Path) -> None:
    """What is there must be readable."""
    (tmp_path / FILE).write_text("run,request_id\n")
    with pytest.raises(TraceError, match="input_toks"):
        fidelity_bars(tmp_path, lambda _title, _count: lambda _ended: None, lambda _bar: None)
