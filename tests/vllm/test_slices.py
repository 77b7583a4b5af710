"""Long prompts in slices in front of a real vLLM: stopped for others, gone on with, and found in its cache."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest

from gateway.app import Gateway
from gateway.attribution import Record
from tests.support.gateways import assert_nothing_held, gateway_for
from tests.support.serve import serving, until

from .vllm_process import VllmProcess

pytestmark = pytest.mark.vllm

# Prompts of a few hundred tokens count as long, and go in slices while others come.
POLICY = {
    "options": {
        "cost": {"prefill_s_per_token": 0.001, "decode_s_per_token": 0.02},
        "slices": {"slice_s": 0.2, "min_prefill_s": 0.1, "patience_s": 0.5, "quiet_s": 3600.0},
    }
}
TOOLS = [
    {
        "type": "function",
        "function": {"name": "look_up", "parameters": {"type": "object", "properties": {"what": {"type": "string"}}}},
    }
]
BLOCK_TOKENS = 32


@pytest.fixture
async def gateway(vllm: VllmProcess) -> AsyncIterator[Gateway]:
    async with gateway_for(vllm, policy=POLICY) as running:
        yield running
        await until(lambda: running.core.num_in_flight == 0)
        assert_nothing_held(running)


def _chat(model: str, words: int, key: str, **fields: Any) -> dict[str, Any]:
    text = " ".join(f"{key}{number % 10}" for number in range(words))
    return {"model": model, "messages": [{"role": "user", "content": text}], "max_tokens": 4, **fields}


async def _ask(port: int, body: dict[str, Any]) -> tuple[dict[str, Any], str]:
    """The answer and the request's id."""
    async with (
        aiohttp.ClientSession() as session,
        session.post(f"http://127.0.0.1:{port}/v1/chat/completions", json=body) as response,
    ):
        assert response.status == 200, await response.text()
        return json.loads(await response.read()), response.headers["x-tailgate-request-id"]


def _record(gateway: Gateway, request_id: str) -> Record:
    record = gateway.ring.get(request_id)
    assert record is not None
    return record


async def test_a_chat_with_tools_is_found_in_the_cache_after_its_slices(vllm: VllmProcess, gateway: Gateway) -> None:
    """Nearly all of the prompt, the tools in it as well: the slices were of the very prompt that the request has."""
    (replica,) = gateway.pool.all()
    assert replica.slice_block_tokens == BLOCK_TOKENS
    async with serving(gateway) as port:
        await _ask(port, _chat(vllm.model, 3, "a"))
        body = _chat(vllm.model, 600, "river", tools=TOOLS, tool_choice="none")
        answer, request_id = await _ask(port, body)
    record = _record(gateway, request_id)
    assert record.num_slices >= 2
    usage = answer["usage"]
    cached = usage["prompt_tokens_details"]["cached_tokens"]
    left_tokens = 0.25 * 200 + 200 + 2 * BLOCK_TOKENS  # a slice and a quarter at a millisecond a token
    assert cached >= usage["prompt_tokens"] - left_tokens
    assert cached % BLOCK_TOKENS == 0
    assert gateway.core.slice_counts.num_in_vain == 0


async def test_a_running_prefill_is_stopped_and_gone_on_with(vllm: VllmProcess, gateway: Gateway) -> None:
    """A long prompt that is alone goes whole; a short one comes, and both are answered."""
    async with serving(gateway) as port:
        for attempt in range(20):  # it may be computed before it can be stopped
            long = asyncio.create_task(_ask(port, _chat(vllm.model, 450, f"stone{attempt}x")))
            await until(lambda: gateway.core.num_in_flight == 1)
            await _ask(port, _chat(vllm.model, 3, f"b{attempt}"))
            _, request_id = await long
            if gateway.core.slice_counts.num_stops:
                break
    assert gateway.core.slice_counts.num_stops >= 1
    record = _record(gateway, request_id)
    assert (record.outcome, record.attempt) == ("ok", 1)
    assert "slice-wait" in record.layers
