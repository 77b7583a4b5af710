"""A bar: a figure, its limit, and the line that says whether it holds."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Bar:
    """`value` must be at most (`<=`) or at least (`>=`) `limit`. None could not be measured, and falls short.

    `is_skipped`: what it takes isn't here, and wasn't asked for.
    """

    name: str
    value: float | None
    sense: str
    limit: float
    note: str = ""
    is_skipped: bool = False

    def __post_init__(self) -> None:
        if self.sense not in ("<=", ">="):
            raise ValueError(f"sense {self.sense!r}; allowed: <=, >=")

    @property
    def holds(self) -> bool:
        """Whether the value is on the right side of the limit."""
        if self.value is None:
            return self.is_skipped
        return self.value <= self.limit if self.sense == "<=" else self.value >= self.limit

    def line(self) -> str:
        """`bar NAME value=1.23 limit<=1.50 holds`, or `short`; `bar NAME skipped`."""
        if self.is_skipped:
            return f"bar {self.name} skipped"
        value = "none" if self.value is None else _figure(self.value)
        return (
            f"bar {self.name} value={value} limit{self.sense}{_figure(self.limit)} {'holds' if self.holds else 'short'}"
        )


def at_most(name: str, value: float | None, limit: float, note: str = "") -> Bar:
    """A bar whose value must not be over the limit."""
    return Bar(name, value, "<=", limit, note)


def skipped(name: str, note: str) -> Bar:
    """A bar that wasn't measured; `note` says what it takes."""
    return Bar(name, None, ">=", 0.0, note, is_skipped=True)


def at_least(name: str, value: float | None, limit: float, note: str = "") -> Bar:
    """A bar whose value must not be under the limit."""
    return Bar(name, value, ">=", limit, note)


def median_of_rounds(name: str, sense: str, values: Sequence[float | None], limit: float) -> Bar:
    """The median of all rounds, their spread in the note; a round that gave no figure makes the bar fall short."""
    measured = sorted(value for value in values if value is not None)
    shown = ", ".join("none" if value is None else _figure(value) for value in values)
    if not measured or len(measured) < len(values):
        return Bar(name, None, sense, limit, f"rounds {shown}")
    middle = len(measured) // 2
    median = measured[middle] if len(measured) % 2 else (measured[middle - 1] + measured[middle]) / 2.0
    return Bar(name, median, sense, limit, f"rounds {shown}; spread {_figure(measured[-1] - measured[0])}")


def _figure(value: float) -> str:
    """Two decimals where they say enough, else four significant digits."""
    return f"{value:.2f}" if abs(round(value, 2) - value) < 1e-9 else f"{value:.4g}"
