"""Workloads made of traces: shares of work, loads and jitter are what was asked for."""

import numpy as np
import pytest

from loadtests.errors import LoadtestError
from loadtests.traces.adjust import divided, jittered, scaled, superposed, usable, work_s
from loadtests.traces.trace import Trace
from loadtests.workload import Costs, rng_for

COSTS = Costs(0.001, 0.01)


def _trace(count: int, prompt: int, output: int, *, gap_s: float | None = 1.0, **extra: object) -> Trace:
    arrival_s = None if gap_s is None else np.arange(count) * gap_s
    lengths = (np.full(count, prompt), np.full(count, output))
    return Trace("test", arrival_s, *lengths, **extra)  # type: ignore[arg-type]


def test_jitter_spreads_rounded_stamps_and_keeps_rows_together() -> None:
    """Stamps of 3 s become even; each request keeps its lengths, and the trace stays in order."""
    trace = Trace("test", np.repeat(np.arange(200) * 3.0, 10), np.arange(2000), np.arange(2000) + 7)
    spread = jittered(trace, 3.0, rng_for("jitter"))
    assert spread.arrival_s is not None
    assert (np.diff(spread.arrival_s) >= 0.0).all()
    assert (spread.output_tokens - spread.prompt_tokens == 7).all()
    assert sorted(spread.prompt_tokens) == list(range(2000))
    counts = np.bincount(spread.arrival_s.astype(np.int64), minlength=600)
    assert counts.max() < 15
    with pytest.raises(LoadtestError, match="no stamps"):
        jittered(_trace(2, 1, 1, gap_s=None), 1.0, rng_for("jitter"))


@pytest.mark.parametrize("gap_s", [1.0, None], ids=["stretched", "poisson"])
def test_time_is_scaled_to_the_stated_work_a_second(gap_s: float | None) -> None:
    """Order and rhythm stay; the work over the span is what was asked for."""
    trace = _trace(5000, 100, 10, gap_s=gap_s)
    fast = scaled(trace, COSTS, work_per_s=4.0, rng=rng_for("scale"))
    assert fast.arrival_s is not None
    assert work_s(fast, COSTS).sum() / fast.arrival_s[-1] == pytest.approx(4.0, rel=0.01)
    if gap_s is not None:
        assert np.diff(fast.arrival_s) == pytest.approx(np.full(4999, 0.05))


def test_parts_have_their_shares_of_the_work_over_the_same_span() -> None:
    """70 / 30 of short and long; the long trace starts over, its blocks and tenants come along."""
    short = _trace(1000, 50, 5, tenant=np.arange(1000) % 3)
    long = _trace(7, 4000, 100, gap_s=None, block_ids=tuple((place,) for place in range(7)), block_tokens=512)
    mixed = superposed([(short, 0.7), (long, 0.3)], COSTS, num_first=1000, rng=rng_for("mix"))
    work = work_s(mixed.trace, COSTS)
    assert work[mixed.part == 1].sum() / work.sum() == pytest.approx(0.3, abs=0.03)
    assert mixed.trace.arrival_s is not None
    assert (np.diff(mixed.trace.arrival_s) >= 0.0).all()
    spans = [np.ptp(mixed.trace.arrival_s[mixed.part == part]) for part in (0, 1)]
    assert spans[1] == pytest.approx(spans[0], rel=0.35)
    assert mixed.trace.block_ids is not None
    assert {ids for ids, part in zip(mixed.trace.block_ids, mixed.part, strict=True) if part == 0} == {()}
    again = superposed([(short, 0.7), (long, 0.3)], COSTS, num_first=1000, rng=rng_for("mix"))
    assert again.trace.arrival_s is not None
    assert again.trace.arrival_s.tolist() == mixed.trace.arrival_s.tolist()


@pytest.mark.parametrize("shares", [(0.5, 0.6), (1.0, 0.0), (1.2, -0.2)])
def test_shares_that_are_none_are_an_error(shares: tuple[float, float]) -> None:
    """They must be positive and sum to 1."""
    parts = [(_trace(3, 1, 1), share) for share in shares]
    with pytest.raises(LoadtestError, match="sum to 1"):
        superposed(parts, COSTS, num_first=3, rng=rng_for("mix"))


def test_what_cannot_be_sent_is_left_out_and_small_machines_get_small_lengths() -> None:
    """Empty and too long requests go; division keeps at least a token; blocks and division don't go together."""
    trace = Trace("test", np.arange(4.0), np.array([0, 10, 1000, 33]), np.array([5, 0, 5, 16]))
    kept = usable(trace, max_tokens=100)
    assert (kept.prompt_tokens.tolist(), kept.output_tokens.tolist()) == ([33], [16])
    assert kept.arrival_s is not None
    assert kept.arrival_s.tolist() == [0.0]
    assert divided(kept, 40.0).prompt_tokens.tolist() == [1]
    with pytest.raises(LoadtestError, match="no request"):
        usable(trace, max_tokens=5)
    with pytest.raises(LoadtestError, match="divided"):
        divided(_trace(1, 9, 9, block_ids=((1,),), block_tokens=512), 2.0)
    with pytest.raises(LoadtestError, match="one instant"):
        scaled(_trace(3, 1, 1, gap_s=0.0), COSTS, work_per_s=1.0, rng=rng_for("x"))
