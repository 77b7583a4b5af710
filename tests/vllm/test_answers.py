"""What vLLM answers comes through the gateway byte for byte, and is understood on its way."""

import json
import re
from pathlib import Path
from typing import Any

import httpx
import pytest

from gateway.app import Gateway
from tests.support.gateways import gateway_for
from tests.support.serve import RawClient, serving, until

from .bodies import CHAT, COMPLETIONS, JSON, QUESTION, ask, body, chat, stream
from .vllm_process import MAX_MODEL_TOKENS, MODEL, VllmProcess

pytestmark = pytest.mark.vllm

FIRST_DEADLINE_S = 120.0
ONE_ID = ("x-request-id", "id-7")
# What differs between two calls of vLLM itself: clocks, and what its cache had of the prompt.
VARYING = re.compile(
    rb'"(created|created_at|created_cache_tokens)":\d+|"metrics":\{[^}]*\}|"(resp|msg|rs)_[0-9a-f]+"|"chatcmpl-[0-9a-f]{16}"'
)
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}

SAME: dict[str, tuple[str, bytes]] = {
    "chat": (CHAT, chat()),
    "stream": (CHAT, stream()),
    "completions": (COMPLETIONS, body(prompt="The capital of France is", logprobs=2)),
    "completions-stream": (COMPLETIONS, body(prompt="The capital of France is", stream=True)),
    "token-ids": (COMPLETIONS, body(prompt=[504, 3575, 282, 4649, 314])),
    "messages": ("/v1/messages", chat()),
    "messages-stream": ("/v1/messages", chat(stream=True)),
    "count-tokens": ("/v1/messages/count_tokens", chat()),
    "responses": ("/v1/responses", b'{"model":"tiny","input":"hi","max_output_tokens":5,"temperature":0}'),
    "responses-stream": (
        "/v1/responses",
        b'{"model":"tiny","input":"hi","max_output_tokens":5,"temperature":0,"stream":true}',
    ),
    "tokenize": ("/tokenize", chat()),
    "detokenize": ("/detokenize", body(tokens=[504, 3575])),
    "unknown-field": (CHAT, chat(nonsense="?").replace(b'"?"', b'{"deep" : [1e999, null, 1.10]}')),
    "tools-without-a-parser": (CHAT, chat(tools=[TOOL], tool_choice="auto")),
    "wrong-temperature": (CHAT, chat(temperature=-3)),
    "too-many-tokens": (CHAT, chat(max_tokens=99_999)),
    "wrong-format": (CHAT, chat(response_format={"type": "nonsense"})),
}


@pytest.mark.parametrize("name", SAME)
async def test_the_same_bytes_with_and_without_the_gateway(name: str, port: int, vllm: VllmProcess) -> None:
    """Status, body and the headers that describe it; streams to their proper end, errors in vLLM's own words."""
    path, request = SAME[name]
    # So that the prompt is in its cache for both; and whatever it does for the first time takes long.
    async with httpx.AsyncClient(timeout=FIRST_DEADLINE_S) as client:
        await client.post(vllm.url + path, content=request, headers=[JSON])
    straight, through = await ask(vllm.port, path, request, ONE_ID), await ask(port, path, request, ONE_ID)
    assert straight.is_complete
    assert through.is_complete
    assert through.status == straight.status
    assert VARYING.sub(b"", through.body) == VARYING.sub(b"", straight.body)
    for header in (b"content-type", b"x-request-id"):
        assert through.header(header) == straight.header(header)
    assert (straight.status == 200) != name.startswith(("tools", "wrong", "too-many"))


async def test_who_is_asked_by_which_id(port: int) -> None:
    """vLLM's answers carry the client's own request id, inside and outside; the gateway's is beside it."""
    reply = await ask(port, CHAT, chat(), ("x-request-id", "mine-1"))
    assert reply.header(b"x-request-id") == [b"mine-1"]
    assert json.loads(reply.body)["id"] == "chatcmpl-mine-1"
    assert reply.header(b"x-tailgate-request-id")


async def _finished(gateway: Gateway, port: int, request: bytes, path: str = CHAT) -> tuple[RawClient, dict[str, Any]]:
    reply = await ask(port, path, request)
    assert reply.status == 200, reply.body
    record_id = reply.header(b"x-tailgate-request-id")[0].decode()
    await until(lambda: gateway.core.num_in_flight == 0)
    async with RawClient(port, f"GET /v1/requests/{record_id}/timing HTTP/1.1\r\nhost: g\r\n\r\n".encode()) as timing:
        await timing.read_all()
    told: dict[str, Any] = json.loads(timing.body)
    return reply, told


@pytest.mark.parametrize(
    ("path", "request_body"),
    [(CHAT, chat()), (CHAT, stream()), (COMPLETIONS, body(prompt="One two")), ("/v1/messages", chat(stream=True))],
    ids=["chat", "stream", "completions", "messages-stream"],
)
async def test_what_was_used_is_read_as_it_passes(vllm: VllmProcess, path: str, request_body: bytes) -> None:
    """Prompt and output tokens in the record are those of vLLM's usage, and the layers sum to the whole."""
    async with gateway_for(vllm) as gateway, serving(gateway) as port:
        reply, told = await _finished(gateway, port, request_body, path)
        if path == "/v1/messages":
            assert told["output_tokens"] == 8
        else:
            usages = re.findall(rb'"prompt_tokens":(\d+),"total_tokens":\d+,"completion_tokens":(\d+)', reply.body)
            assert (told["prompt_tokens"], told["output_tokens"]) == tuple(map(int, usages[-1]))
        assert told["outcome"] == "ok"
        # vLLM's Anthropic route tells no times.
        assert ("engine-queue" in told["layers_ms"]) == (path != "/v1/messages")


async def test_its_tokenizer_counts_as_the_gateway_does(vllm: VllmProcess, model_folder: Path) -> None:
    """By the model's own files, or by asking /tokenize: what vLLM then says it computed."""
    conversation = [
        {"role": "system", "content": "Être bref. 简洁。\n\n\tdef f(x):\n    return x  "},
        {"role": "user", "content": "¿Qué? <|im_end|> 🙂"},
        {"role": "assistant", "content": "No."},
        *QUESTION,
    ]
    files = [{"name": MODEL, "tokenizer": str(model_folder)}]
    for models, source in ((files, "local"), ([], "replica")):
        async with gateway_for(vllm, models=models) as gateway, serving(gateway) as port:
            for path, request in (
                (CHAT, body(messages=conversation)),
                (CHAT, chat()),
                (COMPLETIONS, body(prompt="x = [1, 2]\n" * 40)),
            ):
                reply = await ask(port, path, request)
                used = json.loads(reply.body)["usage"]["prompt_tokens"]
                assert reply.header(b"x-tailgate-prompt-tokens") == [b"%d" % used]
                assert f'desc="{source}"'.encode() in b", ".join(reply.header(b"server-timing"))
            counted = await ask(port, "/tokenize", body(messages=conversation))
            answer = await ask(port, CHAT, body(messages=conversation))
            assert json.loads(counted.body)["count"] == json.loads(answer.body)["usage"]["prompt_tokens"]


async def test_what_the_probe_finds(vllm: VllmProcess) -> None:
    """Its kind, its bound on length, its routes from its own description, the capacity of its cache."""
    async with gateway_for(vllm) as gateway:
        replica = gateway.pool.get("r1")
        assert replica.kind == "vllm"
        assert replica.models == {MODEL}
        assert replica.max_model_len == {MODEL: MAX_MODEL_TOKENS}
        assert {"chat", "completions", "responses", "messages", "count-tokens", "tokenize"} <= replica.features
        assert "embeddings" not in replica.features
        await until(lambda: replica.load is not None)
        assert replica.load is not None
        assert (replica.load.num_running, replica.load.num_waiting) == (0, 0)
        assert (replica.load.kv_capacity_tokens or 0) > MAX_MODEL_TOKENS
