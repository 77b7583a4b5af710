"""Prompts that no replica would take are refused at once, and only where that is certain."""

import asyncio
import json
from typing import Any

import pytest

from gateway.api.fields import RequestFields, read_chat, read_completions
from gateway.api.openai_fields import read_embeddings, read_responses
from gateway.api.tgi import read_generate
from gateway.app import Gateway
from gateway.replica_probe import ModelCard
from gateway.tokens import TokenCount
from tests.support.asgi import HandDriven
from tests.support.fake_replica import FakeReplica, answers
from tests.support.gateways import assert_nothing_held, gateway_for

LONG = [7] * 101


def knows(gateway: Gateway, *longest_tokens: int | None) -> None:
    """What each replica tells of its model."""
    for replica, longest in zip(gateway.pool.all(), longest_tokens, strict=True):
        replica.cards = {"m1": ModelCard(max_model_len=longest)}


async def send(gateway: Gateway, path: str = "/v1/completions", **fields: Any) -> HandDriven:
    request = HandDriven(gateway, path).start(json.dumps({"model": "m1", **fields}).encode())
    await request.ended()
    return request


async def test_a_prompt_longer_than_the_models_context_is_refused_at_once() -> None:
    """400 with OpenAI's code and both numbers; no replica sees it. One that just fits goes."""
    async with FakeReplica(answers()) as replica, gateway_for(replica) as gateway:
        knows(gateway, 100)
        request = await send(gateway, prompt=LONG)
        assert request.status == 400
        error = json.loads(request.body)["error"]
        assert (error["code"], error["type"]) == ("context_length_exceeded", "invalid_request_error")
        assert "101" in error["message"]
        assert "100" in error["message"]
        assert replica.received == []
        record = next(iter(gateway.ring._records.values()))
        assert (record.outcome, record.prompt_tokens) == ("bad-request", 101)
        assert (await send(gateway, prompt=LONG[1:])).status == 200
        assert_nothing_held(gateway)


@pytest.mark.parametrize(("longest", "status"), [((50, 100), 400), ((50, 200), 200), ((50, None), 200)])
async def test_the_most_capable_replica_decides(longest: tuple[int | None, int | None], status: int) -> None:
    """Where one takes it, or doesn't tell, it goes."""
    async with FakeReplica(answers()) as a, FakeReplica(answers()) as b, gateway_for(a, b) as gateway:
        knows(gateway, *longest)
        assert (await send(gateway, prompt=LONG)).status == status
        assert len(a.received) + len(b.received) == (status == 200)


@pytest.mark.parametrize(
    "fields",
    [
        {"prompt": LONG, "truncate_prompt_tokens": 50},
        {"prompt": LONG, "truncate_prompt_tokens": -1},
        {"prompt": [LONG[:60], LONG[:60]]},
        {"prompt": "word " * 5000},
    ],
)
async def test_what_may_be_cut_or_is_not_known_goes(fields: dict[str, Any]) -> None:
    """The replica is asked to cut it; several prompts of which each fits; text of which there is only an estimate."""
    async with FakeReplica(answers()) as replica, gateway_for(replica) as gateway:
        knows(gateway, 100)
        assert (await send(gateway, **fields)).status == 200


def encoded(**body: Any) -> bytes:
    return json.dumps({"model": "m1", **body}).encode()


@pytest.mark.parametrize(
    ("fields", "may_be_cut"),
    [
        (read_chat(encoded(messages=[{"role": "user"}], truncate_prompt_tokens=5), [], 64), True),
        (read_chat(encoded(messages=[{"role": "user"}], truncate_prompt_tokens=None), [], 64), False),
        (read_completions(encoded(prompt="a", truncate_prompt_tokens=5), [], 64), True),
        (read_embeddings(encoded(input="a", truncate_prompt_tokens=5), [], 64), True),
        (read_embeddings(encoded(input="a"), [], 64), False),
        (read_responses(encoded(input="a", truncation="auto"), [], 64), True),
        (read_responses(encoded(input="a", truncation="disabled"), [], 64), False),
        (read_generate(encoded(inputs="a", parameters={"truncate": 5}), [], 64), True),
        (read_generate(encoded(inputs="a"), [], 64), False),
    ],
)
def test_what_asks_for_a_cut(fields: RequestFields, may_be_cut: bool) -> None:
    """In each API's words."""
    assert fields.may_be_cut is may_be_cut


@pytest.mark.parametrize(
    ("tokens", "source", "status"), [(101, "local", 400), (101, "replica", 200), (99, "local", 200)]
)
async def test_an_estimate_that_is_too_long_waits_for_its_count(tokens: int, source: Any, status: int) -> None:
    """It is the count that decides, where it comes from the model's own tokenizer."""

    async def count() -> TokenCount:
        await asyncio.sleep(0)
        return TokenCount(tokens, source, 0.0, 0.0)

    async def estimate(*_: object, **__: object) -> TokenCount:
        return TokenCount(5000, "bytes", 0.0, 0.0, asyncio.create_task(count()))

    async with FakeReplica(answers()) as replica, gateway_for(replica) as gateway:
        knows(gateway, 100)
        gateway.tokens.count = estimate  # type: ignore[method-assign]
        assert (await send(gateway, prompt="text")).status == status
        record = next(iter(gateway.ring._records.values()))
        assert (record.prompt_tokens, record.prompt_tokens_source) == (tokens, source)
        assert_nothing_held(gateway)
