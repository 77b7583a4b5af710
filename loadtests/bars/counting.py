"""`bars counting`: what counting tokens costs requests, with the embedded model's tokenizer.

Everything but the gateway answers at once: one replica for short prompts and one for long ones, so that they meet in
the gateway only.
"""

import asyncio
import json
import re
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import aiohttp
import numpy as np

from ..client import LoadClient
from ..compare import OnStep
from ..cost.instant_replica import instant_replica
from ..errors import TargetError
from ..processes import gateway, running, script
from ..prompts import WORDS
from ..workload import rng_for
from .bar import Bar, median_of_rounds

ROUNDS = 3
NUM_REPEATED = 1000
SHORTS_PER_S = 100.0
LONGS_PER_S = 5.0
SPAN_S = 8.0
LONG_TOKENS = 65_536
_SHORT, _LONG = "short", "long"
_NO_CAP = 10**9
_EXPORT_LIMIT_S = 180.0
_TOKENIZE = re.compile(r"\btokenize;dur=([0-9.]+)")


async def counting_bars(on_step: OnStep, report: Callable[[Bar], None]) -> None:
    """Measures every bar of the topic and reports each as soon as it is known. Takes two minutes."""
    on_step("starting the gateway", None)
    async with _system() as client:
        repeated: list[float | None] = []
        for number in range(ROUNDS):
            on_step("counting 1 KiB prompts that begin alike", None)
            repeated.append(await _repeated_ms(client, number))
        report(median_of_rounds("counting-1-kib-repeated-system-ms", "<=", repeated, 0.15))
        added: list[float | None] = []
        for number in range(ROUNDS):
            on_step("sending short prompts alone, then beside 64k-token ones", None)
            alone_ms = await _short_p99_ms(client, number, longs_per_s=0.0)
            beside_ms = await _short_p99_ms(client, number, longs_per_s=LONGS_PER_S)
            added.append(None if alone_ms is None or beside_ms is None else beside_ms - alone_ms)
        report(median_of_rounds("counting-short-beside-64k-p99-added-ms", "<=", added, 10.0))


@asynccontextmanager
async def _system() -> AsyncIterator[LoadClient]:
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        await _export(folder / "model", folder)
        replicas = []
        for model in (_SHORT, _LONG):
            url = await stack.enter_async_context(instant_replica(folder, model))
            replicas.append({"url": url, "max_in_flight_tokens": _NO_CAP, "max_prefill_tokens": _NO_CAP})
        models = [{"name": model, "tokenizer": str(folder / "model")} for model in (_SHORT, _LONG)]
        url = await stack.enter_async_context(gateway({"replicas": replicas, "models": models}))
        client = await stack.enter_async_context(LoadClient(url, _SHORT))
        # It is ready once one replica is; wait until the other is known too.
        deadline_s = time.monotonic() + 30.0
        while (await client.post_json("/v1/chat/completions", json.loads(_chat(_LONG, "hello"))))[0] != 200:
            if time.monotonic() > deadline_s:
                raise TargetError("the gateway doesn't serve both replicas")
            await asyncio.sleep(0.05)
        yield client


async def _export(model: Path, folder: Path) -> None:
    log_path = folder / "export.log"
    async with running([script("tailgate-backend"), "export", str(model)], log_path) as process:
        try:
            async with asyncio.timeout(_EXPORT_LIMIT_S):
                status: int | None = await process.wait()
        except TimeoutError:
            status = None
    if status != 0:
        raise TargetError(f"tailgate-backend export ended with status {status}:\n{log_path.read_text()[-2000:]}")


async def _repeated_ms(client: LoadClient, number: int) -> float | None:
    """Mean of the time that the gateway spent on counting, one request at a time."""
    system = _text("system", number, num_bytes=600)
    spent_ms = []
    for index in range(NUM_REPEATED):
        own = _text("repeated", number, index, num_bytes=300)
        _, answer = await _ask(client, _chat(_SHORT, own, system))
        found = _TOKENIZE.search(answer.headers.get("server-timing", ""))
        if answer.status != 200 or found is None:
            return None
        spent_ms.append(float(found[1]))
    return float(np.mean(spent_ms))


async def _short_p99_ms(client: LoadClient, number: int, *, longs_per_s: float) -> float | None:
    """P99 of what short requests take as the client sees it, sent at a steady rate; None if any request failed."""
    shorts = [
        _chat(_SHORT, _text("short", number, longs_per_s, index, num_bytes=200))
        for index in range(_times(SHORTS_PER_S))
    ]
    longs = [_chat(_LONG, _words("long", number, index, num_words=LONG_TOKENS)) for index in range(_times(longs_per_s))]
    async with asyncio.TaskGroup() as group:
        sending = group.create_task(_send(client, shorts, SHORTS_PER_S))
        beside = group.create_task(_send(client, longs, longs_per_s))
    if not all(answer.status == 200 for _, answer in (*sending.result(), *beside.result())):
        return None
    counted = [int(answer.headers["x-tailgate-prompt-tokens"]) for _, answer in beside.result()]
    if any(tokens < LONG_TOKENS for tokens in counted):
        return None
    return float(np.percentile([took_s for took_s, _ in sending.result()], 99)) * 1e3


def _times(per_s: float) -> int:
    return round(per_s * SPAN_S)


async def _send(client: LoadClient, bodies: list[bytes], per_s: float) -> list[tuple[float, aiohttp.ClientResponse]]:
    """At a steady rate, whatever comes back when."""
    began_s = time.monotonic()
    async with asyncio.TaskGroup() as group:
        tasks = []
        for index, body in enumerate(bodies):
            await asyncio.sleep(began_s + index / per_s - time.monotonic())
            tasks.append(group.create_task(_ask(client, body)))
    return [task.result() for task in tasks]


async def _ask(client: LoadClient, body: bytes) -> tuple[float, aiohttp.ClientResponse]:
    began_s = time.monotonic()
    headers = {"content-type": "application/json"}
    try:
        async with client.session.post(f"{client.url}/v1/chat/completions", data=body, headers=headers) as response:
            await response.read()
            return time.monotonic() - began_s, response
    except aiohttp.ClientError as error:
        raise TargetError(f"the gateway gave no answer: {error!r}") from error


def _chat(model: str, content: str, system: str | None = None) -> bytes:
    messages = [] if system is None else [{"role": "system", "content": system}]
    return json.dumps(
        {"model": model, "max_tokens": 1, "messages": [*messages, {"role": "user", "content": content}]}
    ).encode()


def _text(*key: object, num_bytes: int) -> str:
    return _words(*key, num_words=num_bytes // 3)[:num_bytes]


def _words(*key: object, num_words: int) -> str:
    """Everyday words, each of them a token."""
    return " ".join(WORDS[index] for index in rng_for("counting", *key).choice(len(WORDS), num_words))
