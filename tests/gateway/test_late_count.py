"""Requests that an estimate puts into the queue, and the count that follows."""

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import orjson
import pytest

from gateway.api.fields import RequestFields, read_chat
from gateway.app import Gateway
from gateway.attribution import Record
from gateway.config import parse_config
from gateway.late_count import late_count
from gateway.request import Request
from gateway.tokens import TokenCount, TokenCounter
from gateway.work_pool import WorkPool
from policies.types import Lane
from tests.support.asgi import HandDriven
from tests.support.fake_replica import FakeReplica, answers, hangs
from tests.support.gateways import CHAT, assert_nothing_held, chat_body, gateway_for
from tests.support.keys import bearer, write_keys
from tests.support.serve import until
from tests.support.tokenizer_folders import load_once, make_folder

TEXT = "the quick brown fox " * 2000


def chat(*contents: object) -> RequestFields:
    messages = [{"role": "user", "content": content} for content in contents]
    return read_chat(orjson.dumps({"model": "m", "messages": messages}), [], 64)


class Patience:
    """Counting as the gateway does it, on threads that a test can keep busy."""

    def __init__(self, counter: TokenCounter, pool: WorkPool) -> None:
        self.counter = counter
        self._pool = pool
        self._gate = threading.Event()
        self._held: list[asyncio.Task[Any]] = []

    async def keep_busy(self) -> None:
        """Until `release`, no thread is free."""
        begun = [threading.Event(), threading.Event()]

        def hold(event: threading.Event) -> None:
            event.set()
            assert self._gate.wait(10)

        for event, cost_s in zip(begun, (1.0, 0.0), strict=True):
            self._held.append(asyncio.create_task(self._run(hold, event, cost_s)))
        await until(lambda: all(event.is_set() for event in begun))

    async def _run(self, hold: Callable[[threading.Event], None], event: threading.Event, cost_s: float) -> None:
        await self._pool.run(lambda: hold(event), cost_s)

    async def release(self) -> None:
        self._gate.set()
        await asyncio.gather(*self._held)


@asynccontextmanager
async def patient(folder: Path, patience_s: float) -> AsyncIterator[Patience]:
    models = [{"name": "m", "tokenizer": str(folder)}]
    config = parse_config({"replicas": [{"url": "http://127.0.0.1:9"}], "models": models}, source="test")
    pool = WorkPool(2, time.monotonic)
    async with httpx.AsyncClient(trust_env=False) as http:
        counter = TokenCounter(config.models, pool, http, time.monotonic, patience_s=patience_s, load=load_once)
        await counter.start()
        patience = Patience(counter, pool)
        try:
            yield patience
        finally:
            await patience.release()
            await counter.aclose()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_folder(tmp_path_factory.mktemp("tokenizer"))


@pytest.fixture(scope="module")
def num_tokens(folder: Path) -> int:
    tokenizer = load_once(folder)
    prompt = tokenizer.chat([{"role": "user", "content": TEXT}], None)
    return prompt.num_special + sum(map(tokenizer.encoder.count, prompt.parts))


async def test_a_count_that_keeps_a_request_waiting_is_estimated(folder: Path, num_tokens: int) -> None:
    """The count follows when a thread is free, and teaches the next estimate; short prompts never wait."""
    async with patient(folder, 0.01) as patience:
        counter = patience.counter
        await patience.keep_busy()
        counted = await counter.count(chat(TEXT), "m", [])
        assert (counted.source, counted.exact is None) == ("bytes", False)
        assert counted.prompt_tokens == pytest.approx(len(TEXT) / 4, rel=0.01)
        assert (await counter.count(chat("fox"), "m", [])).source == "local"
        await patience.release()
        assert counted.exact is not None
        exact = await counted.exact
        assert (exact.prompt_tokens, exact.source, exact.exact) == (num_tokens, "local", None)
        assert exact.wait_s > 0.0
        again = await counter.count(chat(TEXT), "m", [])
        assert (again.prompt_tokens, again.source) == (num_tokens, "local")
        await patience.counter.aclose()


async def test_what_is_expected_to_take_long_is_not_waited_for_at_all(folder: Path, num_tokens: int) -> None:
    """The size alone decides; the estimate follows what was learned from counts."""
    async with patient(folder, 1e-9) as patience:
        counter = patience.counter
        for _ in range(60):
            await counter.count(chat(TEXT), "m", [], waits=True)
            counter._prompts = type(counter._prompts)(1 << 20)
        counted = await counter.count(chat(TEXT + "x"), "m", [])
        assert counted.source == "bytes"
        assert counted.prompt_tokens == pytest.approx(num_tokens, rel=0.02)
        assert counted.exact is not None
        assert (await counted.exact).prompt_tokens == pytest.approx(num_tokens, abs=2)


async def test_who_needs_the_count_waits_for_it(folder: Path, num_tokens: int) -> None:
    """However long it takes."""
    async with patient(folder, 0.0) as patience:
        await patience.keep_busy()
        task = asyncio.create_task(patience.counter.count(chat(TEXT), "m", [], waits=True))
        await until(lambda: patience.counter.num_waiting == 1)
        await patience.release()
        counted = await task
        assert (counted.prompt_tokens, counted.source, counted.exact) == (num_tokens, "local", None)


async def test_pictures_are_no_text(folder: Path) -> None:
    """A megabyte of one makes a prompt neither long to count nor long to compute."""
    picture = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * 1_000_000}}
    async with patient(folder, 0.05) as patience:
        await patience.keep_busy()
        counted = await patience.counter.count(chat([picture, {"type": "text", "text": "é" * 200}], "more"), "m", [])
        assert counted.prompt_tokens == (400 + 4) / 4
        await patience.release()
        assert counted.exact is not None
        assert (await counted.exact).prompt_tokens < 1000


async def test_a_count_that_nobody_waits_for_any_more_is_dropped(folder: Path) -> None:
    """Whether its request leaves while it waits or later, and at the end."""
    async with patient(folder, 5.0) as patience:
        counter = patience.counter
        await patience.keep_busy()
        task = asyncio.create_task(counter.count(chat(TEXT), "m", []))
        await until(lambda: counter.num_waiting == 1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await until(lambda: counter.num_waiting == 0 and not counter._running)
        counter._patience_s = 0.0
        counted = await counter.count(chat(TEXT), "m", [])
        await until(lambda: counter.num_waiting == 1)
        assert counted.exact is not None
        closing = asyncio.create_task(counter.aclose())
        await until(counted.exact.cancelled)
        await patience.release()
        await closing


@dataclass
class Counts:
    """Stands for a gateway's counter: estimates of `estimate` tokens, and counts that come when the test says."""

    gateway: Gateway
    estimate: int
    coming: list["asyncio.Future[TokenCount]"] = field(default_factory=list)
    tasks: list["asyncio.Task[TokenCount]"] = field(default_factory=list)
    waits: list[bool] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.gateway.tokens.count = self.count  # type: ignore[method-assign, assignment]

    async def count(self, *_: Any, waits: bool = False) -> TokenCount:
        self.waits.append(waits)
        coming: asyncio.Future[TokenCount] = asyncio.get_running_loop().create_future()

        async def exact() -> TokenCount:
            return await coming

        self.coming.append(coming)
        self.tasks.append(asyncio.create_task(exact()))
        return TokenCount(self.estimate, "bytes", 0.0, 0.0, self.tasks[-1])

    async def comes(self, index: int, prompt_tokens: int) -> None:
        self.coming[index].set_result(TokenCount(prompt_tokens, "local", 0.0, 0.0))
        await asyncio.wait([self.tasks[index]])
        await asyncio.sleep(0)


def last_record(gateway: Gateway) -> Record:
    return list(gateway.ring._records.values())[-1]


async def test_a_waiting_request_changes_its_lane_when_it_is_counted() -> None:
    """It was thought long; it goes before one that is longer, and the headers and the record have the count."""
    one_at_a_time, shortest_first = {"max_prefill_tokens": 1}, {"ordering": "aged-sjf"}
    async with (
        FakeReplica(hangs()) as replica,
        gateway_for(replica, replica=one_at_a_time, policy=shortest_first) as gateway,
    ):
        counts = Counts(gateway, 1_000_000)
        first = HandDriven(gateway, CHAT).start(chat_body(stream=True))
        await until(lambda: replica.num_running == 1)
        others = []
        for number in (1, 2):
            others.append(HandDriven(gateway, CHAT).start(chat_body(stream=True)))
            await until(lambda number=number: gateway.core.num_queued == number)  # type: ignore[misc]
        assert gateway.core.queued_by_lane()[Lane.LONG] == 2
        await counts.comes(2, 20)
        assert gateway.core.queued_by_lane() == {**dict.fromkeys(Lane, 0), Lane.LONG: 1, Lane.INTERACTIVE: 1}
        replica.behaviour = answers()
        first.disconnect()
        await others[1].ended()
        assert last_record(gateway).prompt_tokens == 20
        assert (last_record(gateway).prompt_tokens_source, last_record(gateway).lane) == ("local", Lane.INTERACTIVE)
        headers = dict(others[1].headers)
        assert (headers[b"x-tailgate-prompt-tokens"], headers[b"x-tailgate-lane"]) == (b"20", b"interactive")
        await others[0].ended()
        assert last_record(gateway).prompt_tokens == 1_000_000
        assert all(task.done() for task in counts.tasks)
        assert_nothing_held(gateway)


async def test_a_running_request_holds_what_it_really_takes() -> None:
    """A count that comes after the dispatch corrects the slot."""
    async with FakeReplica(hangs()) as replica, gateway_for(replica) as gateway:
        counts = Counts(gateway, 50)
        running = HandDriven(gateway, CHAT).start(chat_body(max_tokens=10))
        await until(lambda: replica.num_running == 1)
        assert gateway.core.in_flight_tokens("r1") == 60
        await counts.comes(0, 500)
        assert gateway.core.in_flight_tokens("r1") == 510
        running.disconnect()
        await running.ended()
        assert last_record(gateway).prompt_tokens == 500
        assert_nothing_held(gateway)


async def test_the_count_of_a_request_that_is_over_is_dropped() -> None:
    """Answered, gone, or turned away: what comes then changes nothing."""
    limits: dict[str, Any] = {
        "policy": {"options": {"queue": {"max_requests": 1}}},
        "replica": {"max_prefill_tokens": 1},
    }
    async with FakeReplica(hangs()) as replica, gateway_for(replica, **limits) as gateway:
        counts = Counts(gateway, 50)
        running = HandDriven(gateway, CHAT).start(chat_body(stream=True))
        await until(lambda: replica.num_running == 1)
        waiting = HandDriven(gateway, CHAT).start(chat_body())
        await until(lambda: gateway.core.num_queued == 1)
        refused = HandDriven(gateway, CHAT).start(chat_body())
        await refused.ended()
        assert refused.status == 429
        waiting.disconnect()
        await waiting.ended()
        running.disconnect()
        await running.ended()
        await until(lambda: all(task.cancelled() for task in counts.tasks))
        assert len(counts.tasks) == 3
        assert {record.prompt_tokens for record in gateway.ring._records.values()} == {50}
        assert_nothing_held(gateway)


async def test_a_count_that_comes_as_its_request_ends_is_dropped() -> None:
    """Done already, but not told yet: a closed record doesn't change."""
    async with FakeReplica(answers()) as replica, gateway_for(replica) as gateway:
        request = Request("q", 0.0, "m1", "t", "chat", None, 50, None, True, None)
        for comes_in_time in (True, False):
            coming: Any = asyncio.get_running_loop().create_future()
            record = Record("q", 0.0, prompt_tokens=50)
            place = gateway.dispatcher.place(request)
            with late_count(TokenCount(50, "bytes", 0.0, 0.0, coming), record) as late:
                late.tell(place, request)
                coming.set_result(TokenCount(7, "local", 0.0, 0.0))
                if comes_in_time:
                    await asyncio.sleep(0)
            await asyncio.sleep(0)
            assert record.prompt_tokens == place.request.prompt_tokens == (7 if comes_in_time else 50)


@pytest.mark.parametrize(
    ("limits", "waits"),
    [
        ({"tokens_per_min": 1000}, True),
        ({"max_in_flight_tokens": 1000}, True),
        ({"requests_per_min": 1000}, False),
        ({}, False),
    ],
)
async def test_keys_with_limits_of_tokens_are_counted_exactly(
    tmp_path: Path, limits: dict[str, int], waits: bool
) -> None:
    """Nobody is let in, or turned away, on an estimate."""
    write_keys(tmp_path / "keys.json", k=limits)
    async with FakeReplica(answers()) as replica, gateway_for(replica, keys=str(tmp_path / "keys.json")) as gateway:
        counts = Counts(gateway, 5)
        name, value = bearer("k")
        await HandDriven(gateway, CHAT, headers=[(name.encode(), value.encode())]).start(chat_body()).ended()
        assert counts.waits == [waits]
