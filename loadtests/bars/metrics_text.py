"""Reading a Prometheus text page, just enough for sums of one metric."""

import re

_SAMPLE = re.compile(r"^(?P<name>[a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{.*\})?\s+(?P<value>\S+)", re.MULTILINE)


def sum_of(page: str, name: str) -> float | None:
    """Sum of all samples of exactly this name over their labels; 0 where the metric is declared and has no samples
    (no label value was seen), None where the page doesn't know it."""
    values = [float(match["value"]) for match in _SAMPLE.finditer(page) if match["name"] == name]
    if not values and f"# TYPE {name} " not in page:
        return None
    return sum(values)
