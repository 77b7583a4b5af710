"""What is still held after load: read until it is nothing, for so long."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping

_LIMIT_S = 20.0
_POLL_S = 0.1


async def settled(read: Callable[[], Awaitable[Mapping[str, float | None]]]) -> Mapping[str, float | None]:
    """The last reading: the first one with nothing above 0 or unknown, else that after 20 s."""
    deadline_s = time.monotonic() + _LIMIT_S
    while True:
        held = await read()
        if not any(value is None or value > 0.0 for value in held.values()) or time.monotonic() > deadline_s:
            return held
        await asyncio.sleep(_POLL_S)
