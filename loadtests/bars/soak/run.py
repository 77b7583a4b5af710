"""The soak as bars: what is left behind when everything is over, and what doesn't add up."""

import asyncio
import secrets
import time
from collections.abc import Callable, Iterator

from ...compare import OnStep
from ..bar import Bar, at_least, at_most
from .caller import Caller
from .held import Held, held, samples
from .reckoning import discrepancies
from .site import LEAVING, SCATTERED, STEADY_TENANTS, Site, site
from .visits import Visit, visits

NUM_REQUESTS = 50_000
NUM_CONNECTIONS = 200
LIMIT_S = 400.0
"""No new visit begins after this."""
_WARM_SHARE = 0.3
_NUM_REMEMBERED = 10_000
_SETTLE_LIMIT_S = 30.0
_LOOK_EVERY_S = 0.3
_NUM_ALIKE = 3
_MEMORY_LIMIT = 1.05
_MAX_SHOWN = 6


async def soak_bars(
    on_step: OnStep,
    report: Callable[[Bar], None],
    *,
    num_requests: int = NUM_REQUESTS,
    num_connections: int = NUM_CONNECTIONS,
    limit_s: float = LIMIT_S,
    seed: str | None = None,
) -> None:
    """Runs it and reports its bars. `seed` None: a new one, which the first bar's note names. Raises TargetError."""
    seed = secrets.token_hex(4) if seed is None else seed
    num_warm = int(num_requests * _WARM_SHARE)
    began_s = time.monotonic()
    on_step(f"soaking: {num_requests} requests at {num_connections} connections, seed {seed}", None)
    async with site(seed, num_remembered=min(_NUM_REMEMBERED, max(1, num_warm // 3))) as where:
        caller = Caller(where.port, where.keys)
        plan = visits(seed, STEADY_TENANTS, leaving=LEAVING, scattered=SCATTERED)
        num_done = await _act(caller, plan, num_warm, num_connections, began_s + limit_s * _WARM_SHARE)
        before = await _calm(where)
        num_done += await _act(caller, plan, num_requests - num_done, num_connections, began_s + limit_s)
        after = await _calm(where)
        page = await samples(where.admin_url)
        stops_at_once = await where.stop()
        log_text = where.gateway_log.read_text(encoding="utf-8", errors="replace")
        wrong = discrepancies(caller, page, where)
    note = f"seed {seed}; {time.monotonic() - began_s:.0f} s"
    report(at_least("soak-requests", num_done, num_requests, note))
    left = {**after.slots, "being served": 0.0 if stops_at_once else 1.0}
    report(at_most("soak-slots-left", sum(left.values()), 0.0, _shown(left)))
    tasks = f"{before.num_tasks:g} after the warm-up, {after.num_tasks:g} at the end"
    report(at_most("soak-tasks-left", max(0.0, after.num_tasks - before.num_tasks), 0.0, tasks))
    report(at_most("soak-sockets-left", sum(after.sockets.values()), 0.0, _shown(after.sockets)))
    memory = f"{before.rss_bytes / 2**20:.1f} MiB after the warm-up, {after.rss_bytes / 2**20:.1f} MiB at the end"
    report(at_most("soak-memory-ratio", after.rss_bytes / before.rss_bytes, _MEMORY_LIMIT, memory))
    stuck = [problem for problem in caller.problems if problem.startswith("stuck")]
    report(at_most("soak-stuck", len(stuck), 0.0, _some(stuck)))
    faults = [problem for problem in caller.problems if not problem.startswith("stuck")]
    faults += ["a traceback in the gateway's log"] * log_text.count("Traceback (most recent call last)")
    report(at_most("soak-wrong-answers", len(faults), 0.0, _some(faults)))
    report(at_most("soak-miscounted", len(wrong), 0.0, _some(wrong)))


async def _act(caller: Caller, plan: Iterator[Visit], num_requests: int, num_connections: int, until_s: float) -> int:
    """Acts visits out until so many requests were meant, or the time is over. How many there were."""
    num_begun = 0

    async def work() -> None:
        nonlocal num_begun
        while num_begun < num_requests and time.monotonic() < until_s:
            visit = next(plan)
            num_begun += len(visit.requests)
            await caller.visit(visit)

    async with asyncio.TaskGroup() as group:
        for _ in range(num_connections):
            group.create_task(work())
    return num_begun


async def _calm(where: Site) -> Held:
    """What is held when nothing is being done any more: looked at until it is nothing, or for `_SETTLE_LIMIT_S`."""
    await _settled(where, lambda now: not (any(now.slots.values()) or now.sockets["clients"]))
    async with where.quiet():
        return await _settled(where, lambda now: not any(now.sockets.values()))


async def _settled(where: Site, is_settled: Callable[[Held], bool]) -> Held:
    """The last of several looks alike, or of all that there was time for."""
    deadline_s = time.monotonic() + _SETTLE_LIMIT_S
    num_alike = 0
    while True:
        now = await held(where.admin_url, where.gateway.pid, where.port, where.replica_ports)
        num_alike = num_alike + 1 if is_settled(now) else 0
        if num_alike == _NUM_ALIKE or time.monotonic() > deadline_s:
            return now
        await asyncio.sleep(_LOOK_EVERY_S)


def _shown(counts: dict[str, float] | dict[str, int]) -> str:
    return ", ".join(f"{name} {count:g}" for name, count in counts.items())


def _some(lines: list[str]) -> str:
    return "; ".join(lines[:_MAX_SHOWN])
