"""Shapes: what a table keeps of a trace, and that drawing from it gives it back."""

import numpy as np
import yaml

from loadtests.shapes import QUANTILE_LEVELS, LengthShape, describe, describe_arrivals
from loadtests.traces import Trace


def test_poisson_and_bursty_arrivals_are_told_apart() -> None:
    """Exponential gaps have a CV near 1; bursts of five with long pauses show size, duty and a high CV."""
    rng = np.random.default_rng(7)
    poisson = describe_arrivals(np.cumsum(rng.exponential(1.0, 4000)))
    assert 0.9 < poisson.cv < 1.1
    starts = np.arange(100) * 100.0
    bursts = describe_arrivals(np.sort(np.concatenate([starts + offset for offset in range(5)])))
    assert bursts.mean_burst == 5.0
    assert bursts.cv > 1.5
    np.testing.assert_allclose(bursts.on_share, 4 * 100 / (99 * 100 + 4), atol=1e-3)


def test_arrivals_at_one_instant_are_one_burst() -> None:
    """Without any gap there is nothing to divide by."""
    shape = describe_arrivals(np.zeros(3))
    assert (shape.cv, shape.mean_burst, shape.on_share) == (0.0, 3.0, 1.0)


def test_sampled_lengths_follow_the_table_and_the_correlation() -> None:
    """Quantiles of 20,000 draws fit the table, and the ranks are tied as told."""
    levels = np.asarray(QUANTILE_LEVELS)
    shape = LengthShape(tuple(int(1000 * level) for level in levels), tuple(int(500 * level) for level in levels), 0.6)
    prompts, outputs = shape.sample(20_000, np.random.default_rng(3))
    np.testing.assert_allclose(np.quantile(prompts, [0.1, 0.5, 0.9]), [100, 500, 900], atol=15)
    np.testing.assert_allclose(np.quantile(outputs, [0.1, 0.5, 0.9]), [50, 250, 450], atol=10)
    assert abs(np.corrcoef(prompts, outputs)[0, 1] - 0.6) < 0.03


def test_describe_keeps_origin_quantiles_and_rank_correlation() -> None:
    """A perfectly tied trace has rank correlation 1; a constant side has 0; licence and origin come along."""
    counts = np.arange(1, 102, dtype=np.int64)
    text = describe(Trace("mooncake", counts.astype(np.float64), counts, counts**2)).to_yaml()
    shape = yaml.safe_load(text)
    assert shape["lengths"]["rank_correlation"] == 1.0
    assert shape["lengths"]["prompt_tokens"][7] == 51
    assert "Mooncake" in text
    assert "Apache-2.0" in text
    constant = yaml.safe_load(describe(Trace("arxiv", None, counts, np.full_like(counts, 9))).to_yaml())
    assert constant["lengths"]["rank_correlation"] == 0.0
    assert "arrivals" not in constant
    at_once = describe(Trace("mooncake", np.zeros(len(counts)), counts, counts)).to_yaml()
    assert "arrivals" not in yaml.safe_load(at_once)
