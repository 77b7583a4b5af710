"""One gateway in front of the instant replica: what requests, streams and low load cost there."""

import asyncio
import os
import shutil
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from ..client import LoadClient
from ..errors import TargetError
from ..processes import free_port, pinned, running, tail
from .contenders import MODEL, Contender
from .instant_replica import instant_replica
from .load import Job, Result, run_load
from .process_tree import cpu_s, tree

_READY_LIMIT_S = 120.0
_POLL_S = 0.1


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much is sent; seconds, tokens and bytes. A round is repeated `rounds` times."""

    rounds: int = 3
    warm_s: float = 1.0
    num_connections: int = 32
    closed_s: float = 2.5
    num_streams: int = 128
    stream_tokens: int = 128
    stream_pace_s: float = 0.02
    paced_per_s: float = 200.0
    paced_s: float = 5.0


@dataclass(frozen=True, slots=True)
class Sample:
    """One round's figures; None where requests failed, and for the replica itself, which is no gateway."""

    request_cpu_s: float | None = None
    chunk_cpu_s: float | None = None
    p50_s: float | None = None
    p99_s: float | None = None
    why: str | None = None
    """What failed first."""


@dataclass(frozen=True, slots=True)
class Bench:
    """A replica that runs, and what goes before the commands of either side."""

    replica_url: str
    replica: LoadClient
    front: tuple[str, ...]
    side: tuple[str, ...]

    async def set_pace(self, pace_s: float) -> None:
        """Seconds between the tokens of streams that begin from now on."""
        status, _ = await self.replica.post_json("/pace", {"pace_s": pace_s})
        if status != 200:
            raise TargetError(f"the replica answered {status} to its pace")


@dataclass(frozen=True, slots=True)
class Running:
    """A gateway that runs: its URL and the id of its first process."""

    url: str
    pid: int


@asynccontextmanager
async def bench(*, num_connections: int = 1024) -> AsyncIterator[Bench]:
    """The replica. Gateways get the last core, replica and load the first; where there is one only, all share it."""
    cores = sorted(os.sched_getaffinity(0))
    can_pin = len(cores) > 1 and shutil.which("taskset") is not None
    side, front = (pinned(cores[0]), pinned(cores[-1])) if can_pin else ((), ())
    with tempfile.TemporaryDirectory() as folder:
        replica = instant_replica(Path(folder), MODEL, prefix=side, num_connections=num_connections)
        async with replica as url, LoadClient(url, MODEL) as client:
            yield Bench(url, client, front, side)


@asynccontextmanager
async def started(contender: Contender, bench: Bench) -> AsyncIterator[Running]:
    """Once a chat completion comes through it. Raises `TargetError` with the end of its log."""
    with tempfile.TemporaryDirectory() as name:
        folder, port = Path(name), free_port()
        (folder / "work").mkdir()
        start = contender.start(folder / "work", port, bench.replica_url)
        log_path = folder / f"{contender.name}.log"
        async with running([*bench.front, *start.command], log_path, start.environment) as process:
            url = f"http://127.0.0.1:{port}"
            await _answers(url, process, log_path)
            yield Running(url, process.pid)


async def _answers(url: str, process: asyncio.subprocess.Process, log_path: Path) -> None:
    body = {"model": MODEL, "messages": [{"role": "user", "content": "hello"}], "max_tokens": 1}
    deadline_s = time.monotonic() + _READY_LIMIT_S
    async with LoadClient(url, MODEL, timeout_s=10.0, api_key="unused") as client:
        while True:
            try:
                status, _ = await client.post_json("/v1/chat/completions", body)
                why = f"a chat completion is answered {status}"
            except TargetError as error:
                status, why = 0, str(error)
            if status == 200:
                return
            if process.returncode is not None or time.monotonic() > deadline_s:
                ended = "" if process.returncode is None else f"ended with status {process.returncode}; "
                raise TargetError(f"{log_path.stem} does not serve: {ended}{why}\n{tail(log_path)}".rstrip())
            await asyncio.sleep(_POLL_S)


async def measure(contender: Contender | None, bench: Bench, sizes: Sizes) -> Sample:
    """One round of a gateway, started anew; None: straight to the replica. Raises `TargetError`."""
    if contender is None:
        return await _sample(bench.replica_url, None, bench, sizes)
    async with started(contender, bench) as gateway:
        return await _sample(gateway.url, gateway.pid, bench, sizes)


async def _sample(url: str, pid: int | None, bench: Bench, sizes: Sizes) -> Sample:
    await bench.set_pace(0.0)
    closed = Job("closed", url, MODEL, num=sizes.num_connections, seconds=sizes.closed_s)
    streams = Job("streams", url, MODEL, num=sizes.num_streams, num_tokens=sizes.stream_tokens)
    paced = Job("paced", url, MODEL, per_s=sizes.paced_per_s, seconds=sizes.paced_s)
    await run_load(replace(closed, seconds=sizes.warm_s), prefix=bench.side)
    await run_load(replace(streams, num_tokens=8), prefix=bench.side)
    sample = Sample()
    if pid is not None:
        of_closed, result = await _costed(closed, pid, bench)
        await bench.set_pace(sizes.stream_pace_s)
        of_streams, streamed = await _costed(streams, pid, bench)
        await bench.set_pace(0.0)
        sample = Sample(
            request_cpu_s=_per(of_closed, result, 1),
            chunk_cpu_s=_per(of_streams, streamed, sizes.stream_tokens),
            why=result.why or streamed.why,
        )
    result = await run_load(paced, prefix=bench.side)
    is_good = not result.num_bad
    return replace(
        sample,
        p50_s=result.latency_p50_s if is_good else None,
        p99_s=result.latency_p99_s if is_good else None,
        why=sample.why or result.why,
    )


async def _costed(job: Job, pid: int, bench: Bench) -> tuple[float, Result]:
    """Processor seconds that the gateway's processes spent meanwhile."""
    pids = tree(pid)
    before_s = cpu_s(pids)
    result = await run_load(job, prefix=bench.side)
    return cpu_s(pids) - before_s, result


def _per(spent_s: float, result: Result, num_each: int) -> float | None:
    """Of a good answer, or a chunk of it; None where any was bad."""
    return spent_s / (result.num_good * num_each) if result.num_good and not result.num_bad else None
