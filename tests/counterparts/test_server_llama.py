"""llama.cpp's own server behind the gateway: found out what it is, its routes, its /tokenize, cancelling, loading."""

import json

import pytest

from gateway.api.openai_fields import LLAMA_TOKENIZE, TOKENIZE
from gateway.app import build_app
from tests.support.gateways import configured
from tests.support.gauges import read_gauges, until_gauges
from tests.support.serve import RawClient, ask, free_port, post, serving, until

from .entrance import Entrance
from .llama_process import MODEL, LlamaProcess, start, stop

pytestmark = pytest.mark.model


def body(**fields: object) -> bytes:
    return json.dumps({"model": MODEL, "temperature": 0, "max_tokens": 8} | fields).encode()


QUESTION = [{"role": "user", "content": "What is the capital of France?"}]


async def test_what_the_probe_finds(in_front_of_llama: Entrance) -> None:
    """Its kind, its model, the context of one of its slots, the routes it has, its load."""
    replica = in_front_of_llama.gateway.pool.get("r1")
    assert replica.kind == "llama.cpp"
    assert replica.models == {MODEL}
    assert replica.max_model_len == {MODEL: 2048}
    assert {"chat", "completions", "messages", LLAMA_TOKENIZE} <= replica.features
    assert TOKENIZE not in replica.features
    await until(lambda: replica.load is not None)
    assert replica.load is not None
    assert (replica.load.num_running, replica.load.num_waiting) == (0, 0)


async def test_the_same_bytes_with_and_without_the_gateway(in_front_of_llama: Entrance, llama: LlamaProcess) -> None:
    """Chat and completions, whole and as streams: the texts and endings; ids, clocks and timings apart."""
    direct = int(llama.url.rpartition(":")[2])
    for path, request in (
        ("/v1/chat/completions", body(messages=QUESTION, cache_prompt=False)),
        ("/v1/completions", body(prompt="The capital of France is", cache_prompt=False)),
        ("/v1/chat/completions", body(messages=QUESTION, cache_prompt=False, stream=True)),
        ("/v1/completions", body(prompt="The capital of France is", cache_prompt=False, stream=True)),
    ):
        through, straight = await ask(in_front_of_llama.port, path, request), await ask(direct, path, request)
        assert (through.status, through.is_complete) == (200, True)
        assert _comparable(through.body) == _comparable(straight.body)


def _comparable(answer: bytes) -> list[object]:
    """Each piece of JSON without what differs between any two calls, and every other line as it is."""
    pieces: list[object] = []
    for line in answer.decode().splitlines():
        text = line.removeprefix("data: ")
        if not text.startswith("{"):
            pieces.append(line)
            continue
        pieces.append({name: value for name, value in json.loads(text).items() if name not in VARYING})
    return pieces


VARYING = {"id", "created", "timings"}


async def test_its_tokenizer_by_its_own_shape(in_front_of_llama: Entrance, llama: LlamaProcess) -> None:
    """`content` in the body of /tokenize is llama.cpp's; its count is what the server then computes."""
    reply = await ask(in_front_of_llama.port, "/tokenize", body(content="The capital of France is"))
    tokens = json.loads(reply.body)["tokens"]
    answer = await ask(in_front_of_llama.port, "/v1/completions", body(prompt="The capital of France is"))
    assert json.loads(answer.body)["usage"]["prompt_tokens"] == len(tokens)
    reply = await ask(in_front_of_llama.port, "/detokenize", body(tokens=tokens))
    assert json.loads(reply.body) == {"content": "The capital of France is"}


async def test_its_errors_pass_as_they_are(in_front_of_llama: Entrance, llama: LlamaProcess) -> None:
    """Status and body, and they don't count against it."""
    request = body(messages=[{"role": "user", "content": "x"}], response_format={"type": "nonsense"})
    direct = int(llama.url.rpartition(":")[2])
    through = await ask(in_front_of_llama.port, "/v1/chat/completions", request)
    straight = await ask(direct, "/v1/chat/completions", request)
    assert through.status == straight.status == 400
    assert through.body == straight.body
    assert in_front_of_llama.gateway.pool.get("r1").is_available


async def test_a_client_that_leaves_a_stream_is_seen_by_it(in_front_of_llama: Entrance, llama: LlamaProcess) -> None:
    """Its slot is free again, though 1,500 tokens were asked for.

    Whole answers this server computes to their end, whoever has left, gateway or not.
    """
    running, made = "llamacpp:requests_processing", "llamacpp:tokens_predicted_total"
    before = (await read_gauges(llama.url, made))[made]
    request = post("/v1/chat/completions", body(messages=QUESTION, max_tokens=1500, ignore_eos=True, stream=True))
    async with RawClient(in_front_of_llama.port, request) as client:
        await client.read_until(lambda: b"data:" in client.body)
        await until_gauges(llama.url, {running: 1.0})
        client.leave()
        await until_gauges(llama.url, {running: 0.0})
    assert (await read_gauges(llama.url, made))[made] - before < 1500


async def test_it_is_taken_into_service_when_it_has_loaded() -> None:
    """A gateway that was there first says why it waits, and serves once /health is green."""
    port = free_port()
    config = configured(LlamaAt(f"http://127.0.0.1:{port}"), probes={"interval_s": 0.05})
    gateway = build_app(config)
    async with serving(gateway) as entrance:
        replica = gateway.pool.get("r1")
        await until(lambda: replica.last_error is not None)
        assert not replica.is_available
        process = start(port)
        try:
            await until(lambda: replica.is_available, deadline_s=60.0)
            reply = await ask(entrance, "/v1/completions", body(prompt="The capital of France is"))
            assert (reply.status, json.loads(reply.body)["choices"][0]["text"][:6]) == (200, " Paris")
        finally:
            stop(process)


class LlamaAt:
    """Where one will be."""

    def __init__(self, url: str) -> None:
        self.url = url
