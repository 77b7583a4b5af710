"""What a server's own metrics say of its load."""

import asyncio
import time
from collections.abc import Mapping

import httpx

DEADLINE_S = 20.0


async def read_gauges(url: str, *names: str) -> dict[str, float]:
    """The sum of each gauge over its labels, 0 where the page has none."""
    async with httpx.AsyncClient() as client:
        lines = (await client.get(f"{url}/metrics")).text.splitlines()
    samples = [line.rpartition(" ") for line in lines if not line.startswith("#")]
    return {name: sum(float(value) for label, _, value in samples if label.partition("{")[0] == name) for name in names}


async def until_gauges(url: str, wanted: Mapping[str, float]) -> None:
    """Poll until the gauges have these values; fails at the deadline, with what they were."""
    deadline_s = time.monotonic() + DEADLINE_S
    while (found := await read_gauges(url, *wanted)) != wanted:
        assert time.monotonic() < deadline_s, f"wanted {wanted}, found {found}"
        await asyncio.sleep(0.01)
