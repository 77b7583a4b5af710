"""The bars of counting: what is sent, what is read from answers, and what spoils a figure."""

import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from loadtests.bars import counting
from loadtests.client import LoadClient
from loadtests.cost.instant_replica import instant_replica

Headers = Callable[[Any], dict[str, str]]


@asynccontextmanager
async def gateway_with(headers: Headers, status: int = 200) -> AsyncIterator[tuple[LoadClient, list[Any]]]:
    """A server whose answers have these headers; the bodies that it gets."""
    bodies: list[Any] = []

    async def chat(request: web.Request) -> web.Response:
        bodies.append({"num_bytes": len(await request.read()), **await request.json()})
        return web.json_response({}, status=status, headers=headers(bodies[-1]))

    app = web.Application(client_max_size=8 << 20)
    app.router.add_post("/v1/chat/completions", chat)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        host, port = runner.addresses[0][:2]
        async with LoadClient(f"http://{host}:{port}", "short") as client:
            yield client, bodies
    finally:
        await runner.cleanup()


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(counting, "NUM_REPEATED", 5)
    monkeypatch.setattr(counting, "SPAN_S", 0.2)
    monkeypatch.setattr(counting, "LONG_TOKENS", 300)


def words(body: Any) -> dict[str, str]:
    return {"x-tailgate-prompt-tokens": str(len(body["messages"][-1]["content"].split()))}


async def test_prompts_that_begin_alike_are_averaged() -> None:
    """1 KiB each, the same system prompt and another question; the time is what the gateway calls tokenize."""
    spent_ms = iter([0.1, 0.2, 0.3, 0.4, 0.5])
    async with gateway_with(
        lambda _: {"server-timing": f"accept;dur=9.0, tokenize;dur={next(spent_ms)}, queue;dur=7"}
    ) as (
        client,
        bodies,
    ):
        assert await counting._repeated_ms(client, 0) == pytest.approx(0.3)
    assert {900 < body["num_bytes"] < 1100 for body in bodies} == {True}
    assert len({body["messages"][0]["content"] for body in bodies}) == 1
    assert len({body["messages"][1]["content"] for body in bodies}) == 5


@pytest.mark.parametrize(("header", "status"), [("queue;dur=1", 200), ("tokenize;dur=1", 503)])
async def test_an_answer_without_the_figure_spoils_it(header: str, status: int) -> None:
    """A missing layer, or a failed request."""
    async with gateway_with(lambda _: {"server-timing": header}, status) as (client, _):
        assert await counting._repeated_ms(client, 0) is None


async def test_short_prompts_are_measured_beside_long_ones() -> None:
    """At their rates, all of them different, each kind for its own model."""
    async with gateway_with(words) as (client, bodies):
        alone_ms = await counting._short_p99_ms(client, 0, longs_per_s=0.0)
        assert {body["model"] for body in bodies} == {"short"}
        assert len({body["messages"][0]["content"] for body in bodies}) == len(bodies) == 20
        beside_ms = await counting._short_p99_ms(client, 0, longs_per_s=10.0)
        assert [body["model"] for body in bodies[20:]].count("long") == 2
    assert alone_ms is not None
    assert beside_ms is not None
    assert min(alone_ms, beside_ms) > 0.0


@pytest.mark.parametrize(("tokens", "status"), [("299", 200), ("300", 500)])
async def test_a_long_prompt_that_was_none_spoils_the_figure(tokens: str, status: int) -> None:
    """Counted shorter than was meant, or failed."""
    async with gateway_with(lambda _: {"x-tailgate-prompt-tokens": tokens}, status) as (client, _):
        assert await counting._short_p99_ms(client, 0, longs_per_s=10.0) is None


async def test_the_instant_replica_answers(tmp_path: Path) -> None:
    """It lists its model and answers a chat."""
    async with instant_replica(tmp_path, "some") as url, LoadClient(url, "some") as client:
        assert await client.first_model() == "some"
        status, answer = await client.post_json("/v1/chat/completions", json.loads(counting._chat("some", "hi")))
        assert (status, answer["choices"][0]["message"]["content"]) == (200, " the")
