"""The picture of a comparison: how long short requests waited, and what both lanes paid.

Two hues of the Okabe-Ito palette (safe for colour-blind readers), and line style and hatching that tell the sides
apart in grey.
"""

from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes

matplotlib.use("Agg")
from matplotlib import pyplot

_COLOURS = {"direct": "#D55E00", "gateway": "#0072B2"}
_LABELS = {"direct": "straight to the engine", "gateway": "through tailgate"}
_LEVELS = ("50", "90", "99")


def plot_comparison(result: dict[str, Any], path: Path) -> None:
    """Draws `Comparison.to_dict()` to a PNG: CDF of the first lane's TTFT, percentile bars of both lanes."""
    lanes = list(result["gateway_over_direct"]["lanes"])
    figure, (left, right) = pyplot.subplots(1, 2, figsize=(11.5, 4.6), width_ratios=(1.0, 1.25), facecolor="white")
    _cdf(left, result, lanes[0])
    _bars(right, result, lanes)
    figure.suptitle(
        f"{lanes[0].capitalize()} requests that share an engine with {lanes[-1]} ones: same engine, same requests, "
        f"load {result['load']:.2f}",
        fontsize=12,
        x=0.01,
        ha="left",
    )
    figure.tight_layout(rect=(0, 0, 1, 0.97))
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150, facecolor="white")
    pyplot.close(figure)


def _cdf(axes: Axes, result: dict[str, Any], lane: str) -> None:
    for side, style in (("direct", "--"), ("gateway", "-")):
        waits = sorted(
            request["first_s"] - request["sent_s"]
            for request in result["requests"][side]
            if request["lane"] == lane and request["first_s"] is not None and request["error"] is None
        )
        shares = np.arange(1, len(waits) + 1) / max(1, len(waits))
        axes.plot(waits, shares * 100.0, style, color=_COLOURS[side], linewidth=2.2, label=_LABELS[side])
    axes.set_xlabel(f"time to first token of {lane} requests, s")
    axes.set_ylabel("requests answered within, %")
    axes.set_ylim(0, 101)
    axes.set_xlim(left=0)
    axes.axhline(95, color="#999999", linewidth=0.8, linestyle=":")
    axes.text(axes.get_xlim()[1], 94, "95 %", ha="right", va="top", fontsize=8, color="#666666")
    axes.legend(frameon=False, loc="lower right")
    clean_axes(axes)


def _bars(axes: Axes, result: dict[str, Any], lanes: list[str]) -> None:
    groups = [(lanes[0], "ttft_s", "TTFT"), (lanes[-1], "e2e_s", "E2E")]
    places = np.concatenate([np.arange(len(_LEVELS)) + index * (len(_LEVELS) + 0.6) for index in range(len(groups))])
    width = 0.38
    tallest = 0.0
    for offset, (side, hatch) in zip((-0.5, 0.5), (("direct", "//"), ("gateway", "")), strict=True):
        estimates = [
            result["sides"][side]["lanes"][lane][metric][level] for lane, metric, _ in groups for level in _LEVELS
        ]
        values = [estimate["value"] or 0.0 for estimate in estimates]
        tallest = max(tallest, *values)
        bars = axes.bar(
            places + offset * width,
            values,
            width,
            color=_COLOURS[side],
            hatch=hatch,
            edgecolor="white",
            linewidth=0.5,
            label=_LABELS[side],
        )
        axes.bar_label(bars, labels=[f"{value:.1f}" for value in values], fontsize=8, padding=2)
    axes.set_ylim(0, tallest * 1.12)
    axes.set_xticks(places, [f"P{level}" for _ in groups for level in _LEVELS])
    for index, (lane, _, title) in enumerate(groups):
        axes.text(
            places[index * len(_LEVELS) + 1], -0.14, f"{lane} requests, {title}", ha="center",
            transform=axes.get_xaxis_transform(), fontsize=10,
        )  # fmt: skip
    axes.set_ylabel("seconds")
    axes.legend(frameon=False, loc="upper left")
    clean_axes(axes)


def clean_axes(axes: Axes) -> None:
    """No frame where nothing is read, a light grid behind."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", color="#e5e5e5", linewidth=0.8)
    axes.set_axisbelow(True)
