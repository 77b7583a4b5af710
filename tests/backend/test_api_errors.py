"""Bad input: the right status in OpenAI's shape, the field named, and the next request is served."""

import asyncio
from collections.abc import Sequence
from typing import Any

import orjson
import pytest

from backend.runner import RunnerRow
from tests.support.serve import RawClient, ask, post

from .api_server import api, parse_events

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
MESSAGES = [{"role": "user", "content": "hello"}]


def chat(**fields: Any) -> bytes:
    return orjson.dumps({"messages": MESSAGES, "max_tokens": 2, **fields})


def completion(**fields: Any) -> bytes:
    return orjson.dumps({"prompt": "ab", "max_tokens": 2, **fields})


IMAGE = {"type": "image_url", "image_url": {"url": "data:"}}
BAD = [
    (CHAT, b"", 400, None),
    (CHAT, b"{", 400, None),
    (CHAT, b"[1]", 400, None),
    (CHAT, b'"text"', 400, None),
    (CHAT, b"\xff\xfe", 400, None),
    (CHAT, b'{"messages": "\\ud800"}', 400, None),
    (CHAT, b"[" * 100_000, 400, None),
    (CHAT, b'{"messages": [{"role": "user", "content": "x"}], "temperature": NaN}', 400, None),
    (CHAT, b'{"messages": [{"role": "user", "content": "x"}], "temperature": 1e999}', 400, None),
    (CHAT, orjson.dumps({"model": "fake"}), 400, "messages"),
    (CHAT, chat(messages=[]), 400, "messages"),
    (CHAT, chat(messages="hello"), 400, "messages"),
    (CHAT, chat(messages=[{"content": "x"}]), 400, "messages.0.role"),
    (CHAT, chat(messages=[{"role": "user", "content": 5}]), 400, "messages.0.content"),
    (CHAT, chat(messages=[{"role": "user", "content": [IMAGE]}]), 400, "messages.0.content.0"),
    (CHAT, chat(messages=[{"role": "user", "content": [{"type": "text"}]}]), 400, "messages.0.content.0.text"),
    (CHAT, chat(messages=[{"role": "user", "content": "x" * 200}]), 400, "messages"),
    (CHAT, chat(max_tokens=1000), 400, "max_tokens"),
    (CHAT, chat(max_completion_tokens=1000), 400, "max_completion_tokens"),
    (CHAT, chat(model="unknown"), 404, "model"),
    (CHAT, chat(model=7), 400, "model"),
    (CHAT, chat(temperature="hot"), 400, "temperature"),
    (CHAT, chat(temperature=-1), 400, "temperature"),
    (CHAT, chat(top_p=0), 400, "top_p"),
    (CHAT, chat(top_k=-2), 400, "top_k"),
    (CHAT, chat(top_k=1 << 31), 400, "top_k"),
    (CHAT, chat(top_k=1 << 63), 400, "top_k"),
    (CHAT, chat(top_k=(1 << 64) - 1), 400, "top_k"),
    (CHAT, chat(temperature=1e308), 400, "temperature"),
    (CHAT, chat(min_p=1e308), 400, "min_p"),
    (CHAT, chat(seed=1 << 63), 400, "seed"),
    (CHAT, chat(seed=-(1 << 63)), 400, "seed"),
    (CHAT, chat(priority=1 << 31), 400, "priority"),
    (CHAT, chat(n=1 << 63), 400, "n"),
    (CHAT, chat(max_tokens=1 << 63), 400, "max_tokens"),
    (CHAT, chat(max_completion_tokens=1 << 63), 400, "max_completion_tokens"),
    (CHAT, chat(min_tokens=1 << 63), 400, "min_tokens"),
    (CHAT, chat(logprobs=True, top_logprobs=1 << 63), 400, "top_logprobs"),
    (CHAT, chat(truncate_prompt_tokens=1 << 63), 400, "truncate_prompt_tokens"),
    (CHAT, chat(stop_token_ids=[1 << 63]), 400, "stop_token_ids"),
    (CHAT, chat(stop_token_ids=[1] * 1025), 400, "stop_token_ids"),
    (CHAT, chat(stop=["x"] * 65), 400, "stop"),
    (CHAT, chat(stop="x" * 4097), 400, "stop"),
    (CHAT, chat(stop=["x" * 4096, "y"]), 400, "stop"),
    (CHAT, chat(n=0), 400, "n"),
    (CHAT, chat(n="2"), 400, "n"),
    (CHAT, chat(max_tokens=0), 400, "max_tokens"),
    (CHAT, chat(max_tokens=1.5), 400, "max_tokens"),
    (CHAT, chat(max_tokens=True), 400, "max_tokens"),
    (CHAT, chat(min_tokens=3), 400, "min_tokens"),
    (CHAT, chat(stream="yes"), 400, "stream"),
    (CHAT, chat(stream_options={"include_usage": True}), 400, "stream_options"),
    (CHAT, chat(stop=[""]), 400, "stop"),
    (CHAT, chat(stop=[1]), 400, "stop"),
    (CHAT, chat(stop_token_ids=[9999]), 400, "stop_token_ids"),
    (CHAT, chat(top_logprobs=2), 400, "top_logprobs"),
    (CHAT, chat(logprobs=True, top_logprobs=21), 400, "top_logprobs"),
    (CHAT, chat(cache_salt=""), 400, "cache_salt"),
    (CHAT, chat(presence_penalty=0.5), 400, "presence_penalty"),
    (CHAT, chat(repetition_penalty=1.1), 400, "repetition_penalty"),
    (CHAT, chat(logit_bias={"5": 1}), 400, "logit_bias"),
    (CHAT, chat(tools=[{"type": "function"}]), 400, "tools"),
    (CHAT, chat(tool_choice="required"), 400, "tool_choice"),
    (CHAT, chat(response_format={"type": "json_object"}), 400, "response_format"),
    (CHAT, chat(best_of=True), 400, "best_of"),
    (COMPLETIONS, completion(prompt=None), 400, "prompt"),
    (COMPLETIONS, completion(prompt=""), 400, "prompt"),
    (COMPLETIONS, completion(prompt=[]), 400, "prompt"),
    (COMPLETIONS, completion(prompt=[[]]), 400, "prompt"),
    (COMPLETIONS, completion(prompt=["a", [1]]), 400, "prompt"),
    (COMPLETIONS, completion(prompt=[1, "a"]), 400, "prompt"),
    (COMPLETIONS, completion(prompt=[1.5]), 400, "prompt"),
    (COMPLETIONS, completion(prompt=[256]), 400, "prompt"),
    (COMPLETIONS, completion(prompt=[-1]), 400, "prompt"),
    (COMPLETIONS, completion(prompt=[True]), 400, "prompt"),
    (COMPLETIONS, completion(prompt=["a"] * 100, n=100), 400, "n"),
    (COMPLETIONS, completion(prompt=["a"] * 1025), 400, "n"),
    (COMPLETIONS, completion(prompt=["a"] * 20_000), 400, "n"),
    (COMPLETIONS, completion(prompt=[1] * 20_000), 400, "prompt"),
    (COMPLETIONS, completion(prompt=[[1], [1] * 129]), 400, "prompt"),
    (COMPLETIONS, completion(prompt=[1 << 63]), 400, "prompt"),
    (COMPLETIONS, completion(prompt=[[1 << 63]]), 400, "prompt"),
    (COMPLETIONS, completion(logprobs=1 << 63), 400, "logprobs"),
    (COMPLETIONS, completion(logprobs=21), 400, "logprobs"),
    (COMPLETIONS, completion(logprobs=True), 400, "logprobs"),
    (COMPLETIONS, completion(echo=True), 400, "echo"),
    (COMPLETIONS, completion(suffix="x"), 400, "suffix"),
    (COMPLETIONS, completion(prompt_logprobs=1), 400, "prompt_logprobs"),
    ("/tokenize", b"{}", 400, "prompt"),
    ("/tokenize", orjson.dumps({"prompt": "a", "messages": MESSAGES}), 400, "prompt"),
    ("/tokenize", orjson.dumps({"prompt": "a", "model": "unknown"}), 404, "model"),
    ("/tokenize", orjson.dumps({"prompt": "a" * 129}), 400, "prompt"),
    ("/detokenize", orjson.dumps({"tokens": [256]}), 400, "tokens"),
    ("/detokenize", orjson.dumps({"tokens": [1 << 63]}), 400, "tokens"),
    ("/detokenize", orjson.dumps({"tokens": [1] * 129}), 400, "tokens"),
    ("/detokenize", orjson.dumps({"tokens": "a"}), 400, "tokens"),
    ("/v1/embeddings", b"{}", 404, None),
]


async def test_bad_input_gets_its_error_and_the_next_request_is_served() -> None:
    """One server takes all of it in turn; nothing is left behind."""
    async with api() as server:
        for path, body, status, param in BAD:
            response = await server.http.post(path, content=body)
            assert response.status_code == status, (path, body[:80], response.text)
            error = response.json()["error"]
            assert set(error) == {"message", "type", "param", "code"}
            assert error["type"] == "invalid_request_error"
            assert error["param"] == param, (path, body[:80], error)
            assert error["message"]
        assert (await server.post(CHAT, messages=MESSAGES, max_tokens=2)).status_code == 200


async def test_a_stream_that_can_not_start_has_a_real_status() -> None:
    """No 200 and an event: the error's own status."""
    async with api() as server:
        response = await server.post(CHAT, messages=MESSAGES, stream=True, max_tokens=1000)
    assert response.status_code == 400
    error = response.json()["error"]
    assert error["code"] == "context_length_exceeded"
    assert "1000" in error["message"]
    assert "128" in error["message"]


async def test_codes_of_the_errors_that_clients_look_for() -> None:
    """An unknown model and an unsupported field have codes."""
    async with api() as server:
        unknown = (await server.post(CHAT, messages=MESSAGES, model="gpt")).json()["error"]
        unsupported = (await server.post(CHAT, messages=MESSAGES, logit_bias={"1": 1})).json()["error"]
    assert unknown["code"] == "model_not_found"
    assert unsupported["code"] == "unsupported_parameter"


@pytest.mark.parametrize("announced", [True, False])
async def test_a_huge_body_is_refused(announced: bool) -> None:
    """By its announced length before it is read, or by what came."""
    async with api() as server:
        if announced:
            request = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 100001\r\n\r\n"
        else:
            part = b"8000\r\n" + b" " * 0x8000 + b"\r\n"
            request = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n" + part * 4
        async with RawClient(server.port, request) as client:
            await client.read_until(lambda: client.is_complete)
    assert client.status == 413
    assert orjson.loads(client.body)["error"]["code"] == "request_too_large"


async def test_a_wrong_method_is_told_so_in_the_same_shape() -> None:
    """405 with an error object."""
    async with api() as server:
        response = await server.http.get(CHAT)
    assert response.status_code == 405
    assert response.json()["error"]["message"] == "Method Not Allowed"


async def test_a_failing_engine_step_is_a_500_or_the_last_event() -> None:
    """Before the head a status, after it an event; neither shows the fault's text; the next request is served."""
    async with api() as server:

        def fail(rows: Sequence[RunnerRow]) -> None:
            raise RuntimeError("secret")

        server.runner.before_forward = fail
        early = await server.post(COMPLETIONS, prompt="ab", stream=True)
        steps = iter(range(100))
        server.runner.before_forward = lambda rows: fail(rows) if next(steps) == 2 else None
        late = await server.post(COMPLETIONS, prompt="ab", stream=True, ignore_eos=True)
        server.runner.before_forward = lambda rows: None
        after = await server.post(COMPLETIONS, prompt="ab")
    assert early.status_code == 500
    assert early.json()["error"]["type"] == "server_error"
    events = parse_events(late.text)
    assert late.status_code == 200
    assert [("choices" in event, "error" in event) for event in events] == [(True, False)] * 2 + [(False, True)]
    assert "secret" not in early.text + late.text
    assert after.status_code == 200


async def test_numbers_at_their_bounds_are_served_together() -> None:
    """The largest values that are accepted break nothing deeper down, for these or for who shares their steps."""
    top = (1 << 31) - 1
    bodies: list[dict[str, Any]] = [
        {"top_k": top, "seed": (1 << 63) - 1, "n": 3},
        {"top_k": top, "top_p": 5e-324, "seed": -(1 << 63) + 1},
        {"temperature": 5e-324, "min_p": 1, "priority": top},
        {"temperature": 2, "top_p": 1e-300, "min_p": 5e-324, "priority": -top - 1},
        {"min_tokens": 4, "stop_token_ids": list(range(256)), "logprobs": 20},
        {"stop": ["x" * 64] * 64, "temperature": 0},
    ]
    async with api(order="priority") as server:
        answers = await asyncio.gather(
            *(server.post(COMPLETIONS, prompt=[7, i], max_tokens=4, **body) for i, body in enumerate(bodies))
        )
    assert [answer.status_code for answer in answers] == [200] * len(bodies)


async def test_what_can_not_fit_is_refused_without_being_tokenised() -> None:
    """Text that is too long in any case, and more prompts than an answer may have choices."""
    async with api() as server:
        for fields in ({"prompt": "a" * 129}, {"prompt": ["a"] * 1025}):
            assert (await server.post(COMPLETIONS, **fields)).status_code == 400
        chat_answer = await server.post(CHAT, messages=[{"role": "user", "content": "x" * 90_000}])
        assert chat_answer.json()["error"]["code"] == "context_length_exceeded"
        assert not server.tokenizer.is_encoding.is_set()


@pytest.mark.parametrize("value", ["high", str(1 << 31), "9" * 400])
async def test_a_wrong_priority_header_is_refused(value: str) -> None:
    """The header wins over the body, so it must be a number of the body's range."""
    async with api() as server:
        response = await ask(server.port, COMPLETIONS, completion(), ("X-Vllm-Priority", value))
    assert response.status == 400
    assert orjson.loads(response.body)["error"]["param"] == "priority"


async def test_a_client_that_leaves_while_sending_is_forgotten() -> None:
    """Half a body and gone: no answer, no error, the next request is served."""
    async with api() as server:
        half = post(COMPLETIONS, completion())[:-5]
        async with RawClient(server.port, half) as client:
            client.leave()
        assert (await server.post(COMPLETIONS, prompt="ab")).status_code == 200
