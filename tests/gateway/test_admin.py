"""The routes that aren't hot: health, readiness, models, timing, and errors in OpenAI's shape."""

import json
from collections.abc import AsyncIterator
from importlib.metadata import version
from typing import Any

import httpx
import pytest

from gateway.admin import AdminState, build_admin_app
from gateway.admin_access import AdminAccess
from gateway.api.openai import read_head
from gateway.api.routes import ROUTES
from gateway.attribution import Layer, Record
from gateway.config import parse_config
from gateway.drain import Drain
from gateway.errors import InternalError
from gateway.key_ring import KeyRing
from gateway.metrics import Metrics
from gateway.replica_probe import ModelCard
from gateway.replicas import ReplicaPool
from gateway.timing_ring import TimingRing
from policies.adaptive import Choice
from policies.config import PolicySpec, build_policy
from policies.dispatch import DispatchCore


class Deciding:
    """A core that decides in one way, or has chosen among several."""

    policy_name = "vtc+single+adaptive"
    choice: Choice | None = None


class World:
    """An admin application around parts whose state a test sets."""

    def __init__(
        self, client: httpx.AsyncClient, pool: ReplicaPool, ring: TimingRing, drain: Drain, policy: Deciding
    ) -> None:
        self.client, self.pool, self.ring, self.drain, self.policy = client, pool, ring, drain, policy

    async def get(self, path: str) -> tuple[int, Any]:
        answer = await self.client.get(path)
        return answer.status_code, answer.json()


@pytest.fixture
async def world() -> AsyncIterator[World]:
    data = {
        "replicas": [{"url": "http://127.0.0.1:9", "models": ["org/m"]}, {"url": "http://127.0.0.1:10"}],
        "models": [{"name": "org/m", "aliases": ["gpt"]}, {"name": "unserved", "aliases": ["ghost"]}],
    }
    async with httpx.AsyncClient() as http:
        core = DispatchCore(build_policy(PolicySpec()))
        pool = ReplicaPool(parse_config(data, source="test"), http, lambda: 0.0, lambda _: None)
        core.replica_changed(pool.get("r1"), 0.0)
        ring, drain, policy = TimingRing(10), Drain(), Deciding()
        access = AdminAccess(KeyRing(None, lambda: 0.0, assumed_output_tokens=1), needs_key=False, has_listener=False)
        app = build_admin_app(AdminState(pool, Metrics(), ring, drain, access, core.view, policy, 1_700_000_000))
        # No route here streams, so the transport that buffers bodies does.
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://gateway") as client:
            yield World(client, pool, ring, drain, policy)


async def test_alive_is_not_ready(world: World) -> None:
    """Ready needs a replica and ends with the drain; alive stays."""
    status, body = await world.get("/readyz")
    assert (status, body["status"]) == (503, "no replica is available")
    assert body["replicas"]["r1"] == {
        "available": False,
        "kind": "auto",
        "models": ["org/m"],
        "in_flight_tokens": 0,
        "in_flight_tokens_cap": 32768,
        "in_flight_tokens_cap_reason": None,
        "kv_capacity_tokens": None,
    }
    assert body["replicas"]["r2"] == {"available": False, "kind": "auto", "models": []}
    world.pool.get("r1").is_available = True
    assert (await world.get("/readyz"))[0] == 200
    world.drain.begin()
    status, body = await world.get("/readyz")
    assert (status, body["status"]) == (503, "draining")
    assert (await world.get("/healthz")) == (200, {"status": "ok"})


async def test_models_are_listed_with_their_aliases(world: World) -> None:
    """In OpenAI's shape with vLLM's bound; an alias points to its model; what nobody serves is not shown."""
    world.pool.get("r1").cards = {"org/m": ModelCard(max_model_len=4096)}
    status, body = await world.get("/v1/models")
    assert status == 200
    assert [(card["id"], card["root"]) for card in body["data"]] == [("org/m", "org/m"), ("gpt", "org/m")]
    assert body["data"][0] | {"root": 0} == {
        "id": "org/m",
        "object": "model",
        "created": 1_700_000_000,
        "owned_by": "tailgate",
        "root": 0,
        "parent": None,
        "max_model_len": 4096,
    }
    assert (await world.get("/v1/models/org/m")) == (200, body["data"][0])
    status, body = await world.get("/v1/models/ghost")
    assert (status, body["error"]["code"], body["error"]["param"]) == (404, "model_not_found", "model")


async def test_a_requests_timing_is_found_by_its_id(world: World) -> None:
    """In milliseconds; unknown ids are a 404."""
    record = Record("tg-1", 0.0)
    record.enter(Layer.QUEUE, 1.0)
    record.finish(3.0)
    world.ring.add(record)
    status, body = await world.get("/v1/requests/tg-1/timing")
    assert (status, body["layers_ms"]) == (200, {"accept": 1000.0, "queue": 2000.0})
    assert (await world.get("/v1/requests/tg-2/timing"))[0] == 404


async def test_the_policy_says_what_it_does_and_why(world: World) -> None:
    """Its name never changes by itself; a choice is there only where it chooses."""
    assert await world.get("/v1/policy") == (200, {"policy": "vtc+single+adaptive", "choice": None})
    world.policy.choice = Choice("boost", 0.2, "costs differ")
    assert (await world.get("/v1/policy"))[1]["choice"] == {"name": "boost", "why": "costs differ"}


async def test_errors_have_openais_shape(world: World) -> None:
    """Unknown paths and wrong methods, with the allowed ones."""
    status, body = await world.get("/v1/load_lora_adapter")
    assert (status, set(body["error"])) == (404, {"message", "type", "param", "code"})
    answer = await world.client.post("/healthz")
    assert (answer.status_code, answer.headers["allow"]) == (405, "GET")
    assert answer.json()["error"]["code"] == "method_not_allowed"


async def test_pages_for_people_and_machines(world: World) -> None:
    """The index and the metrics. No page loads anything from elsewhere."""
    assert "tailgate" in (await world.client.get("/")).text
    page = await world.client.get("/metrics")
    assert page.headers["content-type"].startswith("text/plain")
    assert "process_" in page.text
    assert {(await world.client.get(path)).status_code for path in ("/docs", "/redoc")} == {404}


async def test_every_route_is_described(world: World) -> None:
    """The gateway's own and those to replicas, with the headers that a request can have and errors as they are."""
    described = (await world.get("/openapi.json"))[1]
    assert described["info"]["version"] == version("tailgate")
    paths = described["paths"]
    assert "get" in paths["/v1/requests/{request_id}/timing"]
    assert set(paths["/"]) == {"get", "post"}
    for route in ROUTES:
        operation = paths[route.path][route.method.lower()]
        schemas = {parameter["name"]: parameter["schema"] for parameter in operation.get("parameters", ())}
        headers = {name: schema.get("enum") or [str(schema["minimum"])] for name, schema in schemas.items()}
        assert ("x-tailgate-lane" in headers) is not route.is_light
        for name, values in headers.items():
            for value in values:
                read_head([(name.encode(), value.encode())])  # raises for what it doesn't take
        (example,) = operation.get("requestBody", {}).get("content", {"": {}}).values()
        if "example" in example:
            route.read(json.dumps(example["example"]).encode(), [], 64)
        error = operation["responses"]["default"]["content"]["application/json"]["schema"]
        assert set(error["required"]) <= set(json.loads(route.errors.body(InternalError())))
    assert "multipart/form-data" in paths["/v1/audio/transcriptions"]["post"]["requestBody"]["content"]
    ids = [each["operationId"] for path in paths.values() for each in path.values()]
    assert len(ids) == len(set(ids))
