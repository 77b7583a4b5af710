"""Replicas that come late, go, return as others, or can't say what they serve; and what the gateway says meanwhile."""

import asyncio
import json
from typing import Any

import pytest

from gateway import replica_watch
from gateway.app import build_app
from tests.support.asgi import HandDriven
from tests.support.fake_replica import FakeReplica, answers
from tests.support.gateways import BODY, CHAT, assert_nothing_held, chat_body, configured, gateway_for
from tests.support.serve import RawClient, free_port, serving, until

QUICK: dict[str, Any] = {"probes": {"interval_s": 0.02, "timeout_s": 1.0}}


async def get(port: int, path: str) -> RawClient:
    async with RawClient(port, f"GET {path} HTTP/1.1\r\nhost: a\r\n\r\n".encode()) as client:
        return await client.read_all()


async def ask(gateway: Any, body: bytes = BODY) -> HandDriven:
    request = HandDriven(gateway, CHAT).start(body)
    await request.ended()
    return request


async def test_a_gateway_starts_before_its_replicas() -> None:
    """It lives, isn't ready, answers with 503 and Retry-After, and serves as soon as one is there."""
    async with FakeReplica(answers()) as replica:
        replica.is_healthy = False
        gateway = build_app(configured(replica, **QUICK))
        async with serving(gateway) as port:
            await until(lambda: gateway.pool.get("r1").last_error is not None)
            assert (await get(port, "/healthz")).status == 200
            assert (await get(port, "/readyz")).status == 503
            refused = await ask(gateway)
            assert refused.status == 503
            assert dict(refused.headers)[b"retry-after"] == b"1"
            assert json.loads(refused.body)["error"]["code"] == "no_replica"
            replica.is_healthy = True
            await until(lambda: gateway.pool.get("r1").is_available)
            assert (await get(port, "/readyz")).status == 200
            assert (await ask(gateway)).status == 200


async def test_an_empty_list_of_models_is_no_replica_yet() -> None:
    """A server that loads its model is well and serves nothing: whoever asks may come again, and isn't told 404."""
    async with FakeReplica(answers(), models=()) as replica:
        gateway = build_app(configured(replica, **QUICK))
        async with serving(gateway) as port:
            await until(lambda: gateway.pool.get("r1").last_error is not None)
            assert (await ask(gateway)).status == 503
            assert json.loads((await get(port, "/v1/models")).body)["data"] == []
            replica.models = ("m1",)
            await until(lambda: gateway.pool.get("r1").is_available)
            assert (await ask(gateway)).status == 200


async def test_a_replica_may_return_with_another_model() -> None:
    """The list follows it; the model that went is unknown from then on, also to whoever waited for it."""
    async with FakeReplica(answers()) as replica, gateway_for(replica, **QUICK) as gateway:
        assert (await ask(gateway)).status == 200
        replica.models = ("m2",)
        await until(lambda: gateway.pool.get("r1").models == {"m2"})
        assert (await ask(gateway, chat_body(model="m2"))).status == 200
        gone = await ask(gateway)
        assert (gone.status, json.loads(gone.body)["error"]["code"]) == (404, "model_not_found")
        assert_nothing_held(gateway)


@pytest.mark.parametrize(
    "listed", [{"data": None}, {"data": {}}, {"data": [None, {"id": 5}, {"id": ""}]}, [], "x", None]
)
async def test_a_list_of_models_that_cannot_be_read_changes_nothing(listed: Any) -> None:
    """What was known stays known, for the replica goes on serving it."""
    async with FakeReplica(answers()) as replica, gateway_for(replica, **QUICK) as gateway:
        original = replica._probe
        asked = 0

        async def odd(call: Any) -> None:
            nonlocal asked
            if call.received.path != "/v1/models":
                await original(call)
                return
            asked += 1
            await call.whole(json.dumps(listed).encode())

        replica._probe = odd  # type: ignore[method-assign]
        await until(lambda: asked >= 2)
        assert gateway.pool.get("r1").models == {"m1"}
        assert (await ask(gateway)).status == 200


async def test_the_same_model_twice_is_listed_once() -> None:
    """Whether one replica repeats it or several serve it."""
    async with (
        FakeReplica(answers(), models=("m1", "m1", "org/model-1:latest")) as one,
        FakeReplica(answers(), models=("m1",)) as other,
        gateway_for(one, other) as gateway,
        serving(gateway) as port,
    ):
        listed = json.loads((await get(port, "/v1/models")).body)["data"]
        assert [model["id"] for model in listed] == ["m1", "org/model-1:latest"]
        for path in ("/v1/models/org/model-1:latest", "/v1/models/org%2Fmodel-1:latest"):
            assert json.loads((await get(port, path)).body)["id"] == "org/model-1:latest"


async def test_all_replicas_may_go_and_return(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody waits for long in between, and those that wait a moment are served where one returns in time."""
    monkeypatch.setattr(replica_watch, "RECHECK_S", 0.02)
    async with FakeReplica(answers()) as replica:
        port = int(replica.url.rpartition(":")[2])
        async with gateway_for(replica, probes={"interval_s": 60.0}) as gateway:
            assert replica._server is not None
            replica._server.close()
            for task in tuple(replica._tasks):
                task.cancel()
            await asyncio.gather(*replica._tasks, return_exceptions=True)
            waiting = HandDriven(gateway, CHAT).start(BODY)
            await until(lambda: not gateway.pool.get("r1").is_available)
            async with await asyncio.start_server(replica._connected, "127.0.0.1", port):
                await waiting.ended()
            assert waiting.status == 200
            assert_nothing_held(gateway)


@pytest.mark.parametrize("host", ["no.such.host.invalid", "127.0.0.1", "[::1]"])
async def test_a_replica_that_cannot_be_reached_costs_the_others_nothing(host: str) -> None:
    """An unknown name, a closed port, in either family: said in words, and everything goes elsewhere."""
    async with FakeReplica(answers()) as replica:
        config = configured(replica, **QUICK)
        lost = config.replicas[0].model_copy(update={"id": "lost", "url": f"http://{host}:{free_port()}"})
        gateway = build_app(config.model_copy(update={"replicas": (lost, *config.replicas)}))
        await gateway.start()
        try:
            await until(lambda: gateway.pool.get("r1").is_available)
            await until(lambda: gateway.pool.get("lost").last_error is not None)
            assert "health check failed" in (gateway.pool.get("lost").last_error or "")
            assert [(await ask(gateway)).status for _ in range(4)] == [200] * 4
        finally:
            await gateway.aclose()
