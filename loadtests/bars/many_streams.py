"""Thousands of streams open at once in one gateway process: whether all are right, and what they leave behind."""

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

from ..client import LoadClient
from ..cost.contenders import MODEL, Contender
from ..cost.load import Job, run_load
from ..cost.measure import Running, bench, started
from ..cost.open_files import OTHER_FILES, check_files
from ..cost.process_tree import num_sockets, resident_bytes, tree
from ..errors import TargetError
from .bar import Bar, at_least, at_most
from .metrics_text import sum_of
from .settling import settled

_PROBE_EVERY_S = 0.05
_MEMORY_EVERY_S = 0.25


@dataclass(frozen=True, slots=True)
class StreamSizes:
    """`num` streams, begun at `begin_per_s`, of `tokens` tokens each `pace_s` seconds apart."""

    num: int = 5000
    tokens: int = 30
    pace_s: float = 1.0
    begin_per_s: float = 500.0
    calm_s: float = 6.0
    """Before them, so that no connection to the replica is kept from starting."""

    @property
    def limit_s(self) -> float:
        """When whatever still runs is given up."""
        return self.num / self.begin_per_s + self.tokens * self.pace_s + 60.0


@dataclass(slots=True)
class _Watched:
    worst_probe_s: float = 0.0
    most_resident_bytes: int = 0


async def many_streams_bars(contender: Contender, sizes: StreamSizes) -> list[Bar]:
    """All open at the same time, all answered to their end with the replica's bytes, nothing left afterwards.

    Where the system doesn't allow so many open files, the bars fall short and say so.
    """
    try:
        # The gateway has two for each stream, and raises its own soft limit.
        check_files(2 * sizes.num + OTHER_FILES)
    except TargetError as error:
        return _bars(sizes, None, None, {}, str(error))
    async with bench(num_connections=sizes.num) as system, started(contender, system) as gateway:
        await system.set_pace(sizes.pace_s)
        async with LoadClient(gateway.url, MODEL) as client:
            await client.get("/healthz")  # whose connection is there before, during and after
            pids = tree(gateway.pid)
            sockets, resident = await _least_sockets(pids, sizes.calm_s), resident_bytes(pids)
            job = Job(
                "streams", gateway.url, MODEL, num=sizes.num, per_s=sizes.begin_per_s, num_tokens=sizes.tokens,
                limit_s=sizes.limit_s, is_exact=True,
            )  # fmt: skip
            sending = asyncio.create_task(run_load(job, prefix=system.side))
            watched = await _watch(client, gateway, sending)
            result = await sending
            held = await settled(partial(_held, client, pids, sockets))
    num_each = (watched.most_resident_bytes - resident) / sizes.num
    note = (
        f"a token each {sizes.pace_s:g} s; {num_each / 1024:.1f} KiB resident a stream, "
        f"{watched.most_resident_bytes / 2**20:.0f} MiB in all; worst delay of a health probe "
        f"{watched.worst_probe_s * 1e3:.0f} ms"
    )
    return _bars(sizes, result.most_open, result.num_good, held, note, result.why)


def _bars(
    sizes: StreamSizes,
    most_open: float | None,
    num_good: float | None,
    held: Mapping[str, float | None],
    note: str,
    why: str | None = None,
) -> list[Bar]:
    return [
        at_least("overhead-streams-open-at-once", most_open, sizes.num, note),
        at_least("overhead-streams-whole-and-right", num_good, sizes.num, f"first that wasn't: {why}" if why else ""),
        at_most("overhead-streams-in-flight-left", held.get("in_flight"), 0.0),
        at_most("overhead-streams-queued-left", held.get("queued"), 0.0),
        at_most("overhead-streams-sockets-left", held.get("sockets"), 0.0, "beyond those before"),
    ]


async def _watch(client: LoadClient, gateway: Running, sending: "asyncio.Task[object]") -> _Watched:
    """Health probes and resident memory, until all is sent."""
    watched = _Watched()
    pids = tree(gateway.pid)
    looked_s = 0.0
    while not sending.done():
        began_s = time.monotonic()
        status, _ = await client.get("/healthz")
        took_s = time.monotonic() - began_s
        if status != 200:
            raise TargetError(f"{gateway.url}/healthz answered {status}")
        watched.worst_probe_s = max(watched.worst_probe_s, took_s)
        if began_s - looked_s >= _MEMORY_EVERY_S:
            looked_s = began_s
            watched.most_resident_bytes = max(watched.most_resident_bytes, resident_bytes(pids))
        await asyncio.sleep(max(0.0, _PROBE_EVERY_S - took_s))
    return watched


async def _least_sockets(pids: list[int], within_s: float) -> int:
    end_s = time.monotonic() + within_s
    least = num_sockets(pids)
    while time.monotonic() < end_s:
        await asyncio.sleep(_PROBE_EVERY_S)
        least = min(least, num_sockets(pids))
    return least


async def _held(client: LoadClient, pids: list[int], sockets_before: int) -> dict[str, float | None]:
    page = (await client.get("/metrics"))[1].decode()
    return {
        "in_flight": sum_of(page, "tailgate_requests_in_flight"),
        "queued": sum_of(page, "tailgate_requests_queued"),
        "sockets": float(max(0, num_sockets(pids) - sockets_before)),
    }
