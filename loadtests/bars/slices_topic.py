"""`bars slices`: what cutting long prompts gives short requests, and what it costs the long ones."""

from collections.abc import Callable

from ..client import LoadClient
from ..compare import OnStep
from ..slices import Rounds, Seen, measure_slices, three_ways
from .bar import Bar, median_of_rounds, skipped

LONG_TOKENS = 16_000
NUM_ROUNDS = 5


async def slices_bars(
    on_step: OnStep, report: Callable[[Bar], None], *, url: str | None, long_tokens: int, num_rounds: int
) -> None:
    """Measures in front of the engine at `url`, which caches prefixes; None: every line says skipped."""
    if url is None:
        report(skipped("slices", "an engine that caches prefixes: --url of a stock vLLM"))
        return
    async with LoadClient(url, "") as client:
        model = await client.first_model()
    async with three_ways(url, model) as clients:
        rounds = await measure_slices(clients, long_tokens=long_tokens, num_rounds=num_rounds, on_step=on_step)
    for bar in bars_of(rounds):
        report(bar)


def bars_of(rounds: Rounds) -> list[Bar]:
    """Ratios within each round, of going straight to the engine; medians over the rounds."""

    def ratios(scene: str, figure: Callable[[Seen], float], *, gain: bool) -> list[float | None]:
        pairs = zip(rounds[scene]["direct"], rounds[scene]["slices"], strict=True)
        return [
            figure(direct) / figure(slices) if gain else figure(slices) / figure(direct) for direct, slices in pairs
        ]

    def middle(seen: Seen) -> float:
        return seen.short_median_s

    def worst(seen: Seen) -> float:
        return seen.short_worst_s

    def last(seen: Seen) -> float:
        return seen.last_long_s

    cached = [seen.cached_ratio for scene in ("one", "late", "three") for seen in rounds[scene]["slices"]]
    bars = [
        median_of_rounds("slices-one-short-median-gain", ">=", ratios("one", middle, gain=True), 10.0),
        median_of_rounds("slices-one-short-worst-gain", ">=", ratios("one", worst, gain=True), 8.0),
        median_of_rounds("slices-one-long-ratio", "<=", ratios("one", last, gain=False), 1.25),
        median_of_rounds("slices-late-short-worst-ratio", "<=", ratios("late", worst, gain=False), 0.2),
        median_of_rounds("slices-three-short-median-gain", ">=", ratios("three", middle, gain=True), 12.0),
        median_of_rounds("slices-three-short-worst-gain", ">=", ratios("three", worst, gain=True), 10.0),
        median_of_rounds("slices-three-last-long-ratio", "<=", ratios("three", last, gain=False), 1.3),
        median_of_rounds("slices-alone-long-ratio", "<=", ratios("alone", last, gain=False), 1.1),
    ]
    if None in cached:
        bars.append(skipped("slices-cached-ratio", "an engine that says so: --enable-prompt-tokens-details"))
    else:
        bars.append(median_of_rounds("slices-cached-ratio", ">=", cached, 0.95))
    return bars
