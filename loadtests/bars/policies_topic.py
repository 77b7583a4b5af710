"""`bars policies`: what the policies promise, and the simulator that shows it."""

import asyncio
from collections.abc import Callable
from pathlib import Path

from ..compare import OnStep
from .bar import Bar
from .fairness import fairness_bars
from .fidelity import fidelity_bars
from .overload import overload_bars
from .sim_speed import sim_speed_bars
from .slot_bars import slot_bars

Part = Callable[[Path | None, OnStep, Callable[[Bar], None]], None]
"""Takes the folder of public traces (None: its bars are skipped) and reports each bar as soon as it is known."""

PARTS: tuple[Part, ...] = (fidelity_bars, sim_speed_bars, overload_bars, fairness_bars, slot_bars)


async def policies_bars(on_step: OnStep, report: Callable[[Bar], None], *, traces: Path | None = None) -> None:
    """Measures every bar of the topic; all of it is computation, and none of it waits."""
    for part in PARTS:
        await asyncio.to_thread(part, traces, on_step, report)
