"""Requests that name no model: which one they mean, and what they are told where that can't be known."""

import json
from typing import Any

import pytest

from gateway.replica_probe import ModelCard
from tests.support.fake_replica import FakeReplica, answers
from tests.support.gateways import CHAT, chat_body, gateway_for
from tests.support.serve import ask, serving

UNNAMED = (
    chat_body(model=None),
    chat_body(model=""),
    json.dumps({"messages": [{"role": "user", "content": "hi"}]}).encode(),
)


@pytest.mark.parametrize("body", UNNAMED)
async def test_the_only_model_is_meant_by_a_request_without_one(body: bytes) -> None:
    """The replica gets its name, since not every server knows a default of its own."""
    async with (
        FakeReplica(answers()) as replica,
        FakeReplica(answers()) as other,
        gateway_for(replica, other) as gateway,
        serving(gateway) as port,
    ):
        assert (await ask(port, CHAT, body)).status == 200
        (received,) = replica.received + other.received
        assert json.loads(received.body)["model"] == "m1"


async def test_adapters_are_no_second_model() -> None:
    """What is loaded beside a base model isn't what is meant by nothing."""
    async with FakeReplica(answers(), models=("m1", "tuned")) as replica, gateway_for(replica) as gateway:
        gateway.pool.get("r1").cards = {"m1": ModelCard(), "tuned": ModelCard(parent="m1")}
        assert gateway.pool.resolve(None) == "m1"


@pytest.mark.parametrize("body", UNNAMED)
async def test_among_several_models_one_must_be_named(body: bytes) -> None:
    """The answer says so, how an operator can change it, and what there is."""
    async with (
        FakeReplica(answers(), models=("m2", "m1")) as replica,
        gateway_for(replica) as gateway,
        serving(gateway) as port,
    ):
        reply = await ask(port, CHAT, body)
        error: dict[str, Any] = json.loads(reply.body)["error"]
        assert (reply.status, error["code"], error["param"]) == (404, "model_not_found", "model")
        assert error["message"] == ("The request names no model and no default_model is set; served here: `m1`, `m2`.")
        assert replica.received == []


async def test_a_configured_default_wins_over_the_only_model() -> None:
    """Where nobody serves it, it is named as what is missing, and nothing else takes its place."""
    async with (
        FakeReplica(answers(), models=("m1",)) as replica,
        gateway_for(replica, default_model="later") as gateway,
        serving(gateway) as port,
    ):
        reply = await ask(port, CHAT, UNNAMED[0])
        assert reply.status == 404
        assert json.loads(reply.body)["error"]["message"] == "The model `later` does not exist. Served here: `m1`."
        gateway.pool.get("r1").models = frozenset({"m1", "later"})
        assert gateway.pool.resolve(None) == "later"
