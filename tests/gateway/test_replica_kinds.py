"""What a server can do: by its kind, or by its own description of itself."""

from typing import Any, get_args

import pytest

from gateway.api.routes import ROUTES
from gateway.config_errors import ConfigError
from gateway.config_sections import ReplicaKind
from gateway.replica_kinds import FEATURES, features_of
from gateway.summary import summary
from tests.support.fake_replica import FakeReplica, answers
from tests.support.fake_tgi import INFO, MODEL, FakeTgi
from tests.support.gateways import configured, gateway_for

DESCRIPTION: dict[str, Any] = {"paths": {"/v1/embeddings": {}, "/pooling": {}, "/sleep": {}, "/health": {}}}


def test_every_kind_is_known_and_every_route_is_served_by_one() -> None:
    """The tables agree with the configuration's kinds and with the routes."""
    kinds = set(get_args(ReplicaKind)) - {"auto"}
    assert set(FEATURES) == kinds
    seen_to_work = {"tokenize"}
    assert {route.feature for route in ROUTES} - seen_to_work <= set().union(*FEATURES.values())


def test_a_description_decides_for_kinds_that_describe_themselves() -> None:
    """vLLM's lists all it serves; for others it adds; one that names none of the routes says nothing."""
    assert features_of("vllm", DESCRIPTION["paths"]) == {"embeddings", "pooling"}
    assert features_of("vllm", None) == features_of("vllm", {"/other"}) == FEATURES["vllm"]
    assert features_of("openai", {"/v1/messages"}) == FEATURES["openai"] | {"messages"}
    assert features_of("a new kind", None) == FEATURES["openai"]


@pytest.mark.parametrize(
    ("owner", "expected", "missing"),
    [("vllm", "embeddings", "chat"), ("sglang", "pooling", "messages"), ("someone", "chat", "messages")],
)
async def test_the_description_is_asked_for(owner: str, expected: str, missing: str) -> None:
    """An embedding server isn't sent conversations; a plain one keeps what plain ones have."""
    pages = {"/openapi.json": DESCRIPTION}
    async with FakeReplica(answers(), owned_by=owner, pages=pages) as replica, gateway_for(replica) as gateway:
        features = gateway.pool.get("r1").features
        assert expected in features
        assert missing not in features


async def test_what_a_server_serves_besides_can_be_configured() -> None:
    """For servers that don't say; a name that no route needs is an error that lists the names."""
    also = {"also_serves": ["messages"]}
    async with FakeReplica(answers()) as replica, gateway_for(replica, replica=also) as gateway:
        assert gateway.pool.get("r1").features == FEATURES["openai"] | {"messages"}
        assert "also serves messages" in summary(configured(replica, replica=also))
        with pytest.raises(ConfigError, match=r"replicas\[0\].also_serves: .*knows no sleep; allowed: .*messages"):
            configured(replica, replica={"also_serves": ["sleep"]})


async def test_what_a_batch_of_tgi_may_hold_is_its_capacity() -> None:
    """Where its /info tells it; its metrics don't."""
    async with FakeTgi() as tgi:
        tgi.pages["/info"] = {**INFO, "max_batch_total_tokens": 51_200}
        async with gateway_for(tgi) as gateway:
            assert gateway.pool.get("r1").kv_capacity_tokens == 51_200
            view = gateway.core.view("r1")
            assert view is not None
            assert (view.cap_tokens, view.kv_capacity_tokens) == (51_200, 51_200)


async def test_tgi_is_known_by_its_info_and_names_its_model() -> None:
    """Its model is "tgi" on the wire; only one model is served by it, so bodies need no name."""
    async with FakeTgi() as tgi, FakeReplica(answers()) as other, gateway_for(tgi, other) as gateway:
        replica = gateway.pool.get("r1")
        assert (replica.kind, replica.base_model, replica.kv_capacity_tokens) == ("tgi", MODEL, None)
        assert replica.wire_name(MODEL) == "tgi"
        assert replica.wire_name("adapter") == "adapter"
        assert gateway.pool.get("r2").wire_name(MODEL) == MODEL
        assert gateway.pool.resolve("tgi") == gateway.pool.only_model("tgi") == MODEL
        assert gateway.pool.only_model("chat") is None
        assert gateway.pool.only_model("nothing") is None
