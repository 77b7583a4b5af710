"""Requests that name no model: which one they mean, and what they are told where that can't be known."""

import json
from typing import Any

import pytest

from gateway.config import parse_config
from gateway.config_errors import ConfigError
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
async def test_the_default_is_meant_by_a_request_without_a_model(body: bytes) -> None:
    """The replica gets its name, since not every server knows a default of its own."""
    async with (
        FakeReplica(answers()) as replica,
        FakeReplica(answers()) as other,
        gateway_for(replica, other, default_model="m1") as gateway,
        serving(gateway) as port,
    ):
        assert (await ask(port, CHAT, body)).status == 200
        (received,) = replica.received + other.received
        assert json.loads(received.body)["model"] == "m1"


@pytest.mark.parametrize("body", UNNAMED)
async def test_the_only_model_is_the_default_where_that_is_configured(body: bytes) -> None:
    """As long as it is the only one, adapters apart; with a second one requests must say which they mean."""
    async with (
        FakeReplica(answers(), models=("m1", "tuned")) as replica,
        gateway_for(replica, only_model_is_default=True) as gateway,
        serving(gateway) as port,
    ):
        gateway.pool.get("r1").cards = {"m1": ModelCard(), "tuned": ModelCard(parent="m1")}
        assert (await ask(port, CHAT, body)).status == 200
        assert json.loads(replica.received[0].body)["model"] == "m1"
        gateway.pool.get("r1").cards = {}
        reply = await ask(port, CHAT, body)
        assert (reply.status, json.loads(reply.body)["error"]["param"]) == (404, "model")
        assert len(replica.received) == 1


def test_two_ways_to_name_a_default_exclude_each_other() -> None:
    """Nobody has to guess which of them wins."""
    with pytest.raises(ConfigError, match="only_model_is_default"):
        parse_config(
            {"replicas": [{"url": "http://a"}], "default_model": "m", "only_model_is_default": True}, source="test"
        )


async def test_adapters_are_no_second_model() -> None:
    """What is loaded beside a base model isn't what is meant by nothing."""
    async with FakeReplica(answers(), models=("m1", "tuned")) as replica, gateway_for(replica) as gateway:
        gateway.pool.get("r1").cards = {"m1": ModelCard(), "tuned": ModelCard(parent="m1")}
        features = gateway.pool.get("r1").features
        assert gateway.pool.only_model(next(iter(features))) == "m1"


@pytest.mark.parametrize("body", UNNAMED)
@pytest.mark.parametrize("models", [("m1",), ("m2", "m1")])
async def test_without_a_default_a_model_must_be_named(body: bytes, models: tuple[str, ...]) -> None:
    """However few there are: the answer says so, how an operator can change it, and what there is."""
    async with (
        FakeReplica(answers(), models=models) as replica,
        gateway_for(replica) as gateway,
        serving(gateway) as port,
    ):
        reply = await ask(port, CHAT, body)
        error: dict[str, Any] = json.loads(reply.body)["error"]
        assert (reply.status, error["code"], error["param"]) == (404, "model_not_found", "model")
        known = ", ".join(f"`{name}`" for name in sorted(models))
        assert error["message"] == f"The request names no model and no default_model is set; served here: {known}."
        assert replica.received == []


async def test_a_configured_default_is_the_only_one_that_counts() -> None:
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
