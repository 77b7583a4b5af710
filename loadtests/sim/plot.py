"""The picture of a simulation: who waited how long, and when."""

from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes

from ..plot import clean_axes

matplotlib.use("Agg")
from matplotlib import pyplot

# Okabe and Ito's palette; line styles tell policies apart in grey.
_COLOURS = ("#D55E00", "#0072B2", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
_STYLES = ("--", "-", "-.", ":")


def plot_simulation(pictured: dict[str, Any], load: float, num_replicas: int, path: Path) -> None:
    """Draws to a PNG: the CDF of the first group's time to first token, and its P90 over the time of arrival.

    `pictured`: policy → `group`, `ttft_s` (sorted), `timeline` (see `study.timeline`).
    """
    figure, (left, right) = pyplot.subplots(1, 2, figsize=(11.5, 4.6), facecolor="white")
    group = next(iter(pictured.values()))["group"]
    for place, (policy, drawn) in enumerate(pictured.items()):
        look = {"color": _COLOURS[place % len(_COLOURS)], "linestyle": _STYLES[place % len(_STYLES)], "label": policy}
        _cdf(left, drawn["ttft_s"], look)
        bins = [(row["from_s"], row["p90_s"]) for row in drawn["timeline"] if row["p90_s"] is not None]
        right.plot([at for at, _ in bins], [wait for _, wait in bins], linewidth=1.8, **look)
    left.set_xlabel(f"time to first token of {group} requests, s")
    left.set_ylabel("requests answered within, %")
    left.set_xscale("log")
    left.set_ylim(0, 101)
    right.set_xlabel("arrival, s of simulated time")
    right.set_ylabel(f"P90 time to first token of {group} requests, s")
    right.set_yscale("log")
    left.legend(frameon=False, loc="lower right")
    for axes in (left, right):
        clean_axes(axes)
    engines = "one engine" if num_replicas == 1 else f"{num_replicas} engines"
    figure.suptitle(
        f"{group.capitalize()} requests on {engines} at load {load:.2f}, simulated", fontsize=12, x=0.01, ha="left"
    )
    figure.tight_layout(rect=(0, 0, 1, 0.97))
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150, facecolor="white")
    pyplot.close(figure)


def _cdf(axes: Axes, waits_s: list[float], look: dict[str, str]) -> None:
    shares = np.arange(1, len(waits_s) + 1) / max(1, len(waits_s))
    axes.plot(waits_s, shares * 100.0, linewidth=2.0, **look)  # type: ignore[arg-type]
