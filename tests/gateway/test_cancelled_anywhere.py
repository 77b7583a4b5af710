"""A request that is cancelled at any of its awaits gives back all it holds, exactly once.

The request's coroutine is driven step by step, and the cancellation thrown into it at step 1, at step 2, and so on
until it ends before its step comes: so every place where it can wait is tried, however it is built inside.
"""

import asyncio
import contextlib
from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from gateway.app import Gateway
from gateway.disconnect import Message
from gateway.errors import ResponseBroken
from gateway.tokens import TokenCount
from tests.gateway.slicing_engine import WORDS_PER_PROMPT, SlicingEngine
from tests.support.cycles import no_cycles
from tests.support.fake_replica import DONE, Behaviour, Call, FakeReplica, answers, delta, streams
from tests.support.gateways import BODY, CHAT, STREAM_BODY, assert_nothing_held, chat_body, gateway_for
from tests.support.keys import write_keys
from tests.support.serve import until

LIMITS = {
    "requests_per_min": 100_000,
    "tokens_per_min": 100_000_000,
    "max_in_flight_requests": 1,
    "max_in_flight_tokens": 10_000,
}
NAMED = b'{"model":"m1","prompt":"hi","max_tokens":4,"messages":[{"role":"user","content":"hi"}]'


@dataclass
class CancelledAt:
    """An awaitable, cancelled when it waits for the `step`th time: at once, or (`is_late`) when its wait is over."""

    inner: Any
    step: int
    is_late: bool
    was_reached: bool = False

    def __await__(self) -> Generator[Any, Any, None]:
        steps = self.inner.__await__()
        thrown: BaseException | None = None
        number = 0
        while True:
            try:
                waits_for = steps.send(None) if thrown is None else steps.throw(thrown)
            except StopIteration:
                return
            finally:
                thrown = None  # else it would refer to this frame, and this frame to it
            number += 1
            if number == self.step:
                self.was_reached = True
                if self.is_late:
                    yield waits_for
                thrown = asyncio.CancelledError()
                continue
            try:
                yield waits_for
            except BaseException as error:
                thrown = error


class Caller:
    """A client whose body, whose answer's pieces and whose presence all have to be waited for."""

    def __init__(self, path: str, body: bytes) -> None:
        self.scope: Message = {
            "type": "http",
            "method": "POST",
            "path": path,
            "raw_path": path.encode(),
            "query_string": b"",
            "http_version": "1.1",
            "headers": [(b"authorization", b"Bearer sk-k"), (b"content-type", b"application/json")],
        }
        self._pieces = [body[:10], body[10:]]
        self.num_ends = 0

    async def receive(self) -> Message:
        await asyncio.sleep(0)
        if not self._pieces:
            await asyncio.Event().wait()
        return {"type": "http.request", "body": self._pieces.pop(0), "more_body": bool(self._pieces)}

    async def send(self, message: Message) -> None:
        await asyncio.sleep(0)
        self.num_ends += message["type"] == "http.response.body" and not message["more_body"]


def fails_first(then: Behaviour) -> Behaviour:
    """The first call of every two is reset."""
    calls = iter(range(10**9))

    async def behave(call: Call) -> None:
        if next(calls) % 2 == 0:
            call.reset()
        else:
            await then(call)

    return behave


STREAM = streams(delta("a"), delta("b"), DONE)
KINDS: dict[str, tuple[str, bytes, Behaviour]] = {
    "chat": (CHAT, BODY, answers()),
    "stream": (CHAT, STREAM_BODY, STREAM),
    "failover": (CHAT, STREAM_BODY, fails_first(STREAM)),
    "completions": ("/v1/completions", NAMED + b"}", answers()),
    "messages": ("/v1/messages", NAMED + b',"stream":true}', STREAM),
    "embeddings": ("/v1/embeddings", b'{"model":"m1","input":"hi"}', answers()),
    "rerank": ("/v1/rerank", b'{"model":"m1","query":"hi","documents":["a","b"]}', answers()),
    "light": ("/detokenize", b'{"model":"m1","tokens":[1]}', answers()),
}


def assert_all_is_back(gateway: Gateway) -> None:
    """Slot, place, key's share, tokens, connection, unanswered call, and the drain's count."""
    assert_nothing_held(gateway)
    account = gateway.keys._rates["k"].account
    account.check_integrity()
    assert (account.num_in_flight, account.in_flight_tokens) == (0, 0)
    assert gateway.drain.num_active == 0
    assert not any(gateway._unanswered._by_replica.values())
    assert gateway.dispatcher._places == {}


def num_counted(gateway: Gateway) -> float:
    return sum(gateway.metrics._requests.counts.values())


@pytest.mark.parametrize("is_late", [False, True])
@pytest.mark.parametrize("kind", KINDS)
async def test_cancelled_at_every_await(tmp_path: Path, kind: str, is_late: bool) -> None:
    """Whatever was taken is back before the request's task ends, it is counted once, and the next one is served.

    Nothing of any of them waits for a search for cycles.
    """
    path, body, behaviour = KINDS[kind]
    write_keys(tmp_path / "keys.json", k=LIMITS)
    async with (
        FakeReplica(behaviour) as one,
        FakeReplica(behaviour) as other,
        gateway_for(
            one,
            other,
            replica={"also_serves": ["messages", "rerank", "detokenize"]},
            keys=str(tmp_path / "keys.json"),
            limits={"min_retries_per_s": 1000.0},
        ) as gateway,
    ):

        async def count(*_: object, **__: object) -> TokenCount:
            await asyncio.sleep(0)
            return TokenCount(7, "local", 0.0, 0.0)

        gateway.tokens.count = count  # type: ignore[method-assign]
        gateway.pool.report_failure = lambda replica_id: None  # type: ignore[method-assign]  # both stay in
        step = num_begun = 0
        was_reached = True
        with no_cycles():
            while was_reached:
                step += 1
                caller = Caller(path, body)
                request = CancelledAt(gateway(caller.scope, caller.receive, caller.send), step, is_late)

                async def serve(request: CancelledAt = request) -> None:
                    with contextlib.suppress(ResponseBroken, asyncio.CancelledError):
                        await request

                task = asyncio.create_task(serve())
                await asyncio.wait({task}, timeout=10.0)
                assert task.done(), f"step {step}"
                task.result()
                num_begun += 1
                assert_all_is_back(gateway)
                assert num_counted(gateway) == num_begun, f"step {step}"
                was_reached = request.was_reached
                if not was_reached:
                    assert caller.num_ends == 1
        assert step > 5, "there are more places than that where a request waits"
        await until(lambda: one.num_running == other.num_running == 0)


@pytest.mark.parametrize("is_late", [False, True])
async def test_cancelled_at_every_await_of_its_slices(is_late: bool) -> None:
    """Token ids, slices, what lies between them, and the answer: whatever was taken is back, and the next is served."""
    engine = SlicingEngine()
    engine.may_answer.set()
    policy = {"options": {"cost": {"prefill_s_per_token": 0.001}, "slices": {"quiet_s": 3600.0, "patience_s": 0.01}}}
    async with engine.replica, gateway_for(engine.replica, clock=engine.clock, policy=policy) as gateway:

        async def count(*_: object, **__: object) -> TokenCount:
            await asyncio.sleep(0)
            return TokenCount(WORDS_PER_PROMPT, "local", 0.0, 0.0)

        gateway.tokens.count = count  # type: ignore[method-assign]
        gateway.pool.report_failure = lambda replica_id: None  # type: ignore[method-assign]  # it stays in
        engine.remembers = False  # else what was cancelled would be quick the next time, and no longer cut
        text = " ".join(f"word{index}" for index in range(WORDS_PER_PROMPT))
        first = Caller(CHAT, BODY)  # somebody has come, so that what follows goes in slices
        await gateway(first.scope, first.receive, first.send)
        step = 0
        was_reached = True
        while was_reached:
            step += 1
            caller = Caller(CHAT, chat_body(stream=True, messages=[{"role": "user", "content": text}]))
            request = CancelledAt(gateway(caller.scope, caller.receive, caller.send), step, is_late)

            async def serve(request: CancelledAt = request) -> None:
                with contextlib.suppress(ResponseBroken, asyncio.CancelledError):
                    await request

            task = asyncio.create_task(serve())
            await asyncio.wait({task}, timeout=10.0)
            assert task.done(), f"step {step}"
            task.result()
            assert_nothing_held(gateway)
            assert not gateway.core.has_parked, f"step {step}"
            assert gateway.core.in_flight_tokens("r1") == 0, f"step {step}"
            assert not any(gateway._unanswered._by_replica.values())
            assert gateway.dispatcher._places == {}
            was_reached = request.was_reached
            if not was_reached:
                assert caller.num_ends == 1
        assert len(engine.slices) > 10
