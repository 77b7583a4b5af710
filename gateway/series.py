"""Counters and histograms that cost next to nothing to add to.

prometheus_client's own take a lock and walk through all buckets, 1 to 2 us each, a dozen times a request. These belong
to the event loop, need no lock, and find their bucket by bisection; they are turned into its families when scraped.
"""

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from typing import Generic, TypeVar

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily, Metric

C = TypeVar("C")


class Count:
    """One series of a counter."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value = 0.0

    def add(self, amount: float = 1.0) -> None:
        self.value += amount


class Distribution:
    """One series of a histogram. `bounds` ascend; a value belongs to the first bound that isn't below it."""

    __slots__ = ("_bounds", "_counts", "_sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def add(self, value: float) -> None:
        self._counts[bisect_left(self._bounds, value)] += 1
        self._sum += value

    def cumulated(self) -> tuple[list[tuple[str, float]], float]:
        """Buckets in Prometheus' form, up to +Inf, and the sum."""
        buckets, total = [], 0
        for bound, count in zip([*(str(float(bound)) for bound in self._bounds), "+Inf"], self._counts, strict=True):
            total += count
            buckets.append((bound, float(total)))
        return buckets, self._sum


class _Family(Generic[C]):
    def __init__(self, registry: CollectorRegistry, name: str, text: str, labels: Sequence[str]) -> None:
        self._name = name
        self._text = text
        self._labels = labels
        self._series: dict[tuple[str, ...], C] = {}
        registry.register(self)

    def describe(self) -> Iterator[Metric]:
        """For the registry, which refuses a name that it has already."""
        yield Metric(self._name, self._text, "unknown")

    def collect(self) -> Iterator[Metric]:
        raise NotImplementedError

    def _new(self) -> C:
        raise NotImplementedError

    def at(self, *labels: str) -> C:
        """The series with these label values, in the order of the names."""
        series = self._series.get(labels)
        if series is None:
            series = self._series[labels] = self._new()
        return series


class Counters(_Family[Count]):
    """A counter by labels; `name` ends in `_total`."""

    def _new(self) -> Count:
        return Count()

    def collect(self) -> Iterator[Metric]:
        family = CounterMetricFamily(self._name, self._text, labels=self._labels)
        for labels, series in self._series.items():
            family.add_metric(labels, series.value)
        yield family


class Histograms(_Family[Distribution]):
    """A histogram by labels."""

    def __init__(
        self, registry: CollectorRegistry, name: str, text: str, labels: Sequence[str], bounds: Sequence[float]
    ) -> None:
        super().__init__(registry, name, text, labels)
        self._bounds = bounds

    def _new(self) -> Distribution:
        return Distribution(self._bounds)

    def collect(self) -> Iterator[Metric]:
        family = HistogramMetricFamily(self._name, self._text, labels=self._labels)
        for labels, series in self._series.items():
            buckets, total = series.cumulated()
            family.add_metric(labels, buckets, total)
        yield family
