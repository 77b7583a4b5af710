"""A client that leaves, at any moment, frees its place within one step."""

import random
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import orjson
import pytest

from backend.api.answers import CompletionAnswer
from backend.api.generate import GenerateRoute
from backend.api.logprobs import TokenTexts
from backend.api.prepare import Preparer
from backend.bridge import Bridge
from backend.runner import RunnerRow
from tests.support.asgi import HandDriven
from tests.support.serve import RawClient, post, until

from .api_server import Api, api
from .fake_model import FakeTokenizer, make_engine

COMPLETIONS = "/v1/completions"


def generation(**fields: Any) -> bytes:
    return post(COMPLETIONS, orjson.dumps({"prompt": "ab", "max_tokens": 100, "ignore_eos": True, **fields}))


class Gate:
    """Holds every step until it is opened."""

    def __init__(self, server: Api) -> None:
        self.opened = threading.Event()
        server.runner.before_forward = self.wait

    def wait(self, rows: Sequence[RunnerRow]) -> None:
        assert self.opened.wait(10.0)


@pytest.mark.parametrize("stream", [True, False])
async def test_leaving_before_the_first_token_aborts(stream: bool) -> None:
    """The engine forgets it after the step that runs: two steps at most, not a hundred."""
    async with api() as server:
        gate = Gate(server)
        async with RawClient(server.port, generation(stream=stream)) as client:
            await until(lambda: server.engine.num_running == 1)
            client.leave()
            # The server must have noticed before the step ends: that is when the abort is in the inbox.
            await until(lambda: not server.engine._inbox.empty())
        gate.opened.set()
        await server.idle()
        assert server.runner.num_steps == 1


@pytest.mark.parametrize("stream", [True, False])
async def test_leaving_while_waiting_aborts(stream: bool) -> None:
    """A queued request is removed; the one ahead is served to its end."""
    async with api(max_num_seqs=1) as server:
        gate = Gate(server)
        async with RawClient(server.port, generation(max_tokens=3)) as first:
            await until(lambda: server.engine.num_running == 1)
            async with RawClient(server.port, generation(stream=stream)) as client:
                await until(lambda: not server.engine._inbox.empty())
                client.leave()
                await until(lambda: server.engine._inbox.qsize() == 2)
            gate.opened.set()
            await first.read_all()
        await server.idle()
        assert server.runner.num_steps == 3
    assert first.status == 200


async def test_leaving_a_stream_in_the_middle_aborts() -> None:
    """After some chunks the client goes; the engine stops long before the end."""
    async with api() as server:
        async with RawClient(server.port, generation(stream=True)) as client:
            await client.read_until(lambda: client.body.count(b"data: ") >= 3)
            client.leave()
        await server.idle()


async def test_leaving_while_the_prompt_is_tokenised_submits_nothing() -> None:
    """The answer ends at once, and the engine never hears of the request."""
    engine, _, _, _ = make_engine()
    tokenizer = FakeTokenizer()
    tokenizer.may_encode.clear()
    with ThreadPoolExecutor(1) as pool:
        preparer = Preparer(tokenizer, pool, model_names=["fake"], max_model_len=128)
        texts = TokenTexts(tokenizer)
        route = GenerateRoute(preparer.completions, CompletionAnswer, Bridge(engine), texts, max_body_bytes=1000)
        client = HandDriven(route, COMPLETIONS).start(b'{"prompt": "ab"}')
        await until(tokenizer.is_encoding.is_set)
        client.disconnect()
        await client.ended()
        tokenizer.may_encode.set()
    assert client.sent == []
    assert engine._inbox.empty()


async def test_many_cut_at_random_moments_leave_nothing() -> None:
    """A hundred requests, a third cut: nothing runs, waits or is held, and whole answers are complete."""
    seed = 11
    print(f"seed {seed}")
    chance = random.Random(seed)
    async with api(max_num_seqs=4) as server:
        for _ in range(100):
            stream = chance.random() < 0.5
            async with RawClient(server.port, generation(stream=stream, max_tokens=chance.randint(1, 8))) as client:
                if chance.random() < 0.33:
                    if stream and chance.random() < 0.5:
                        await client.read_some()
                    client.leave()
                else:
                    await client.read_all()
                    assert client.status == 200
                    assert client.is_complete
        await server.idle()
