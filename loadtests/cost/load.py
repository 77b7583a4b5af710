"""Load that costs little, from a process of its own: `python -m loadtests.cost.load`, a job as JSON on standard input.

Prints what came of it as JSON. `run_load` starts it.
"""

import asyncio
import dataclasses
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import cycle
from urllib.parse import urlsplit

import uvloop

from ..errors import TargetError
from ..prompts import WORDS
from ..stats import percentile
from ..workload import rng_for
from .answers import StreamEvents
from .open_files import OTHER_FILES, allow_files
from .wire import Ask, Wire, chat_request

NUM_PROMPTS = 64
_RECONNECT_S = 0.05
"""What a caller waits after it found nobody there."""
_KINDS = ("closed", "streams", "paced")


@dataclass(frozen=True, slots=True)
class Job:
    """What to send to `url`.

    closed: `num` connections for `seconds`, each with the next request as soon as the last answer ended.
    streams: `num` streams, a connection each, `per_s` of them begun a second (None: all at once); until all ended.
    paced: `per_s` requests a second at random instants for `seconds`, whatever comes back when.
    """

    kind: str
    url: str
    model: str
    num: int = 1
    seconds: float = 0.0
    per_s: float | None = None
    num_tokens: int = 16
    prompt_bytes: int = 1024
    limit_s: float = 120.0
    is_exact: bool = False
    """Whether bodies must be the replica's to the byte."""

    def __post_init__(self) -> None:
        if self.kind not in _KINDS:
            raise ValueError(f"kind {self.kind!r}; there are: {', '.join(_KINDS)}")


@dataclass(slots=True)
class Result:
    """What came of a job. Times in seconds; latency runs from a request's sending to the end of its answer."""

    num_good: int = 0
    num_bad: int = 0
    why: str | None = None
    """What was wrong first."""
    most_open: int = 0
    """Answers whose body had begun, most at a time."""
    latency_p50_s: float | None = None
    latency_p99_s: float | None = None
    late_p99_s: float | None = None
    """How far behind their instants paced requests were sent."""


class _Load:
    def __init__(self, job: Job) -> None:
        self._job = job
        parts = urlsplit(job.url)
        self._address = (parts.hostname or "127.0.0.1", parts.port or 80)
        self._host = parts.netloc
        self._result = Result()
        self._latencies_s: list[float] = []
        self._idle: list[Wire] = []
        self._all: list[Wire] = []
        self._num_begun = 0
        self._num_ended = 0

    async def run(self) -> Result:
        result = self._result
        try:
            async with asyncio.timeout(self._job.limit_s):
                await {"closed": self._closed, "streams": self._streams, "paced": self._paced}[self._job.kind]()
        except TimeoutError:
            self._note_bad(f"not ended within {self._job.limit_s:g} s")
        finally:
            for wire in self._all:
                wire.close()
        result.latency_p50_s = percentile(self._latencies_s, 50)
        result.latency_p99_s = percentile(self._latencies_s, 99)
        return result

    async def _closed(self) -> None:
        asks = cycle(self._asks(NUM_PROMPTS, streams=False))
        end_s = time.perf_counter() + self._job.seconds

        async def caller() -> None:
            while time.perf_counter() < end_s:
                await self._exchange(next(asks))

        async with asyncio.TaskGroup() as group:
            for _ in range(self._job.num):
                group.create_task(caller())

    async def _streams(self) -> None:
        asks = self._asks(self._job.num, streams=True)
        per_s = self._job.per_s
        began_s = time.perf_counter()
        async with asyncio.TaskGroup() as group:
            for index, ask in enumerate(asks):
                if per_s is not None:
                    await asyncio.sleep(began_s + index / per_s - time.perf_counter())
                group.create_task(self._exchange(ask))

    async def _paced(self) -> None:
        assert self._job.per_s is not None
        asks = cycle(self._asks(NUM_PROMPTS, streams=False))
        gaps_s = rng_for("paced").exponential(1.0 / self._job.per_s, max(1, round(self._job.per_s * self._job.seconds)))
        lates_s = []
        due_s = time.perf_counter()
        async with asyncio.TaskGroup() as group:
            for gap_s in gaps_s:
                due_s += float(gap_s)
                await asyncio.sleep(due_s - time.perf_counter())
                lates_s.append(time.perf_counter() - due_s)
                group.create_task(self._exchange(next(asks)))
        self._result.late_p99_s = percentile(lates_s, 99)

    async def _exchange(self, ask: Ask) -> None:
        try:
            wire = await self._wire()
        except OSError as error:
            self._note_bad(f"no connection: {error.strerror or error}")
            await asyncio.sleep(_RECONNECT_S)
            return
        sent_s = time.perf_counter()
        why = await wire.send(ask)
        self._num_ended += 1
        if why is None:
            self._result.num_good += 1
            self._latencies_s.append(time.perf_counter() - sent_s)
        else:
            self._note_bad(why)
        self._idle.append(wire)

    async def _wire(self) -> Wire:
        while self._idle:
            if (wire := self._idle.pop()).is_open:
                return wire
        _, wire = await asyncio.get_running_loop().create_connection(lambda: Wire(self._on_begin), *self._address)
        self._all.append(wire)
        return wire

    def _on_begin(self) -> None:
        self._num_begun += 1
        self._result.most_open = max(self._result.most_open, self._num_begun - self._num_ended)

    def _note_bad(self, why: str) -> None:
        self._result.num_bad += 1
        if self._result.why is None:
            self._result.why = why

    def _asks(self, num: int, *, streams: bool) -> Sequence[Ask]:
        job = self._job
        prompts = [
            " ".join(rng_for("cost", index).choice(WORDS, job.prompt_bytes // 3))[: job.prompt_bytes]
            for index in range(min(num, NUM_PROMPTS))
        ]
        asks = []
        for index in range(num):
            name, prompt = str(index), prompts[index % NUM_PROMPTS]
            request = chat_request(self._host, job.model, prompt, name=name, streams=streams, num_tokens=job.num_tokens)
            body = StreamEvents(job.model, name, job.num_tokens).whole() if job.is_exact else None
            asks.append(Ask(request, streams, job.num_tokens, body))
        return asks


async def run_load(job: Job, *, prefix: Sequence[str] = ()) -> Result:
    """Does it in a process of its own, `prefix` before the command. Raises `TargetError` where that fails."""
    command = [*prefix, sys.executable, "-m", __name__]
    process = await asyncio.create_subprocess_exec(
        *command, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    try:
        output, errors = await process.communicate(json.dumps(dataclasses.asdict(job)).encode())
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode != 0:
        raise TargetError(f"the load could not be sent: {errors.decode('utf-8', 'replace').strip()[-500:]}")
    return Result(**json.loads(output))


def _main() -> None:
    job = Job(**json.loads(sys.stdin.read()))
    try:
        allow_files(job.num + OTHER_FILES)
    except TargetError as error:
        sys.exit(str(error))
    sys.stdout.write(json.dumps(dataclasses.asdict(uvloop.run(_Load(job).run()))))


if __name__ == "__main__":
    _main()
