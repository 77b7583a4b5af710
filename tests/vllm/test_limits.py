"""Leaving, fullness and what is out of reach, with a real vLLM."""

import contextlib
import json
from collections.abc import AsyncIterator

import httpx
import pytest

from tests.support.fake_replica import FakeReplica, answers
from tests.support.gateways import gateway_for
from tests.support.gauges import until_gauges
from tests.support.serve import RawClient, serving

from .bodies import CHAT, COMPLETIONS, ENDLESS, ask, body, chat, post, stream
from .vllm_process import MODEL, NUM_RUNNING, NUM_TAKEN, VllmProcess

pytestmark = pytest.mark.vllm

RUNNING, WAITING = "vllm:num_requests_running", "vllm:num_requests_waiting"
IDLE = {RUNNING: 0.0, WAITING: 0.0}


@pytest.mark.parametrize(
    ("path", "request_body"),
    [
        (CHAT, stream(**ENDLESS)),
        (CHAT, chat(**ENDLESS)),
        (COMPLETIONS, body(prompt="x", **ENDLESS)),
        ("/v1/messages", chat(stream=True, **ENDLESS)),
    ],
    ids=["stream", "whole", "completions", "messages-stream"],
)
async def test_a_client_that_leaves_ends_its_work(path: str, request_body: bytes, port: int, vllm: VllmProcess) -> None:
    """vLLM runs nothing any more, long before 1,500 tokens."""
    async with RawClient(port, post(path, request_body)) as client:
        await until_gauges(vllm.url, {RUNNING: 1.0})
        client.leave()
        await until_gauges(vllm.url, IDLE)


async def test_a_client_that_leaves_vllms_own_queue_ends_its_work(port: int, vllm: VllmProcess) -> None:
    """One that waits inside vLLM, for those that run there."""
    async with _busy(vllm, NUM_RUNNING), RawClient(port, post(CHAT, stream(**ENDLESS))) as client:
        await until_gauges(vllm.url, {RUNNING: NUM_RUNNING, WAITING: 1.0})
        client.leave()
        await until_gauges(vllm.url, {RUNNING: NUM_RUNNING, WAITING: 0.0})
    await until_gauges(vllm.url, IDLE)


@contextlib.asynccontextmanager
async def _busy(vllm: VllmProcess, num_requests: int) -> AsyncIterator[None]:
    """Somebody else's requests, past the gateway."""
    async with contextlib.AsyncExitStack() as clients:
        for _ in range(num_requests):
            client = await clients.enter_async_context(RawClient(vllm.port, post(CHAT, stream(**ENDLESS))))
            clients.callback(client.leave)
        num_waiting = max(0, num_requests - NUM_RUNNING)
        await until_gauges(vllm.url, {RUNNING: min(num_requests, NUM_RUNNING), WAITING: num_waiting})
        yield


@pytest.mark.parametrize("request_body", [chat(), stream()], ids=["whole", "stream"])
async def test_a_full_vllm(request_body: bytes, port: int, vllm: VllmProcess) -> None:
    """Its 503 is passed on when it is the only one, and nobody sees it when another can answer; it isn't ejected."""
    async with _busy(vllm, NUM_TAKEN):
        straight, through = await ask(vllm.port, CHAT, request_body), await ask(port, CHAT, request_body)
        assert (straight.status, through.status) == (503, 503)
        assert through.body == straight.body
        async with (
            FakeReplica(answers(), models=(MODEL,)) as other,
            gateway_for(vllm, other) as gateway,
            serving(gateway) as second,
        ):
            for _ in range(4):
                reply = await ask(second, CHAT, request_body)
                assert (reply.status, reply.header(b"x-tailgate-replica")) == (200, [b"r2"])
            assert len(other.received) == 4
            assert gateway.pool.get("r1").is_available
    await until_gauges(vllm.url, IDLE)
    assert (await ask(port, CHAT, request_body)).status == 200


OUT_OF_REACH = (
    ("POST", "/sleep?level=1"),
    ("POST", "/wake_up"),
    ("GET", "/is_sleeping"),
    ("POST", "/v1/load_lora_adapter"),
    ("POST", "/v1/unload_lora_adapter"),
    ("POST", "/collective_rpc"),
    ("POST", "/reset_prefix_cache"),
    ("GET", "/server_info"),
    ("POST", "/scale_elastic_ep"),
    ("POST", "/invocations"),
    ("GET", "/load"),
    ("GET", "/version"),
    ("POST", "/pause"),
    ("POST", "/v1/responses/resp_1/cancel"),
    ("GET", "/v1/responses/resp_1"),
)


async def test_its_other_routes_are_out_of_reach(port: int, vllm: VllmProcess) -> None:
    """Those that put it to sleep, load adapters, run code: it has them, and through the gateway there is nothing."""
    async with httpx.AsyncClient() as client:
        described = (await client.get(f"{vllm.url}/openapi.json")).json()["paths"]
        for path in ("/sleep", "/collective_rpc", "/v1/load_lora_adapter", "/reset_prefix_cache"):
            assert path in described
        for method, path in OUT_OF_REACH:
            reply = await client.request(method, f"http://127.0.0.1:{port}{path}", json={})
            assert (path, reply.status_code) == (path, 404)
            assert json.loads(reply.content)["error"]["code"] == "not_found"
        page = (await client.get(f"http://127.0.0.1:{port}/metrics")).text
        assert "vllm:" not in page
        assert (await client.get(f"{vllm.url}/is_sleeping")).json() == {"is_sleeping": False}
