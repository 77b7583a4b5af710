"""`bars overhead`: what the gateway costs, beside a naive proxy and the gateways that are installed."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median

from ..compare import OnStep
from ..cost.contenders import NAIVE, TAILGATE, VLLM_ROUTER, Contender, own_contenders, peers
from ..cost.measure import Sample, Sizes, bench, measure
from ..errors import TargetError
from .bar import Bar, median_of_rounds, skipped
from .many_streams import StreamSizes, many_streams_bars

REQUEST_CPU_MS = 0.20
CHUNK_CPU_RATIO = 1.3
ADDED_P50_MS = 1.0
_DIRECT = "direct"

Samples = Mapping[str, Sequence[Sample]]
Figures = Sequence[float | None]


async def overhead_bars(
    on_step: OnStep,
    report: Callable[[Bar], None],
    *,
    say: Callable[[str], None],
    folder: Path | None = None,
    sizes: Sizes | None = None,
    streams: StreamSizes | None = None,
) -> None:
    """Measures every bar of the topic and reports each as soon as it is known; `say` gets lines that are none.

    `folder` holds environments of other gateways, by name; those on PATH are found without. One that isn't installed,
    or doesn't serve, is told and left out.
    """
    found, missing = peers(folder)
    for name in missing:
        say(f"peer {name} skipped: not installed")
    samples = await _rounds([*own_contenders(), *found], sizes or Sizes(), on_step, say)
    for bar in cost_bars(samples):
        report(bar)
    for line in table(samples):
        say(line)
    on_step("opening thousands of streams", None)
    for bar in await many_streams_bars(own_contenders()[0], streams or StreamSizes()):
        report(bar)


async def _rounds(
    contenders: Sequence[Contender], sizes: Sizes, on_step: OnStep, say: Callable[[str], None]
) -> dict[str, list[Sample]]:
    """All of them in turn, so many times over."""
    left: dict[str, Contender | None] = {_DIRECT: None, **{each.name: each for each in contenders}}
    samples: dict[str, list[Sample]] = {name: [] for name in left}
    async with bench() as system:
        for number in range(1, sizes.rounds + 1):
            for name, contender in tuple(left.items()):
                on_step(f"round {number} of {sizes.rounds}: {name}", None)
                try:
                    sample = await measure(contender, system, sizes)
                except TargetError as error:
                    if name in (_DIRECT, TAILGATE, NAIVE):
                        raise
                    say(f"peer {name} failed in round {number}: {error}")
                    del left[name], samples[name]
                    continue
                if sample.why is not None:
                    say(f"{name}, round {number}: {sample.why}")
                samples[name].append(sample)
    return samples


def cost_bars(samples: Samples) -> list[Bar]:
    """The bars of tailgate; notes have the rounds, their spread, and the medians of the others."""
    request, chunk = _all(samples, _request_ms), _all(samples, _chunk_us)
    bars = [_beside(median_of_rounds("overhead-request-cpu-ms", "<=", request[TAILGATE], REQUEST_CPU_MS), request)]
    ratio = "overhead-chunk-cpu-over-vllm-router"
    if VLLM_ROUTER in samples:
        ratios = [_over(ours, theirs) for ours, theirs in zip(chunk[TAILGATE], chunk[VLLM_ROUTER], strict=True)]
        bars.append(_beside(median_of_rounds(ratio, "<=", ratios, CHUNK_CPU_RATIO), chunk, TAILGATE, unit=" µs"))
    else:
        bars.append(_beside(skipped(ratio, "vllm-router is not there"), chunk, TAILGATE, unit=" µs"))
    p50 = added_ms(samples, lambda sample: sample.p50_s)
    p99 = added_ms(samples, lambda sample: sample.p99_s)
    bar = _beside(median_of_rounds("overhead-added-p50-ms", "<=", p50[TAILGATE], ADDED_P50_MS), p50)
    bars.append(replace(bar, note=f"{bar.note}; at P99 {_shown(p99[TAILGATE])}"))
    return bars


def added_ms(samples: Samples, read: Callable[[Sample], float | None]) -> dict[str, Figures]:
    """By gateway: what each round's figure is over that of the same round straight to the replica."""
    direct = [read(sample) for sample in samples[_DIRECT]]
    added: dict[str, Figures] = {}
    for name, rounds in samples.items():
        if name != _DIRECT:
            pairs = zip((read(sample) for sample in rounds), direct, strict=True)
            added[name] = [None if a is None or b is None else (a - b) * 1e3 for a, b in pairs]
    return added


def table(samples: Samples) -> list[str]:
    """A line a gateway, medians over the rounds and in brackets their spread; "-" where a round gave no figure."""
    columns: Mapping[str, Mapping[str, Figures]] = {
        "CPU ms/request": _all(samples, _request_ms),
        "CPU µs/chunk": _all(samples, _chunk_us),
        "added P50 ms": added_ms(samples, lambda sample: sample.p50_s),
        "added P99 ms": added_ms(samples, lambda sample: sample.p99_s),
    }
    lines = [f"{'gateway':<16}" + "".join(f"{head:>20}" for head in columns)]
    return lines + [
        f"{name:<16}" + "".join(f"{_with_spread(column[name]):>20}" for column in columns.values())
        for name in samples
        if name != _DIRECT
    ]


def _all(samples: Samples, read: Callable[[Sample], float | None]) -> dict[str, Figures]:
    return {name: [read(sample) for sample in rounds] for name, rounds in samples.items() if name != _DIRECT}


def _request_ms(sample: Sample) -> float | None:
    return None if sample.request_cpu_s is None else sample.request_cpu_s * 1e3


def _chunk_us(sample: Sample) -> float | None:
    return None if sample.chunk_cpu_s is None else sample.chunk_cpu_s * 1e6


def _over(ours: float | None, theirs: float | None) -> float | None:
    return None if ours is None or not theirs else ours / theirs


def _beside(bar: Bar, figures: Mapping[str, Figures], *more: str, unit: str = "") -> Bar:
    """With the medians of the others in the note, and of `more` before them."""
    names = [*more, *(name for name in figures if name != TAILGATE)]
    shown = ", ".join(f"{name} {_shown(figures[name])}{unit}" for name in names)
    return replace(bar, note=f"{bar.note}; {shown}")


def _median(figures: Figures) -> float | None:
    """None where a round has no figure."""
    whole = [figure for figure in figures if figure is not None]
    return median(whole) if whole and len(whole) == len(figures) else None


def _shown(figures: Figures) -> str:
    middle = _median(figures)
    return "-" if middle is None else f"{middle:.3g}"


def _with_spread(figures: Figures) -> str:
    if _median(figures) is None:
        return "-"
    whole = [figure for figure in figures if figure is not None]
    return f"{_shown(figures)} [{max(whole) - min(whole):.2g}]"
