"""What the generation routes answer, whole and as streams, over the fake model."""

import re
from typing import Any

import pytest

from .api_server import api
from .fake_model import expected_tokens

MESSAGES = [{"role": "user", "content": "hello"}]
CHAT_PROMPT = b"<user>hello\n<assistant>"
CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
GREEDY = {"temperature": 0, "ignore_eos": True}


def expected_text(prompt: bytes, max_tokens: int) -> str:
    return bytes(expected_tokens(list(prompt), max_tokens, ignore_eos=True)).decode().replace("\0", "")


async def test_a_chat_answer_has_text_usage_and_timing() -> None:
    """OpenAI's fields, vLLM's metrics, the Server-Timing header with queue, prefill, decode and cached tokens."""
    async with api() as server:
        response = await server.post(CHAT, model="fake", messages=MESSAGES, max_tokens=8, **GREEDY)
        again = await server.post(CHAT, model="alias", messages=MESSAGES, max_completion_tokens=8, **GREEDY)
    answer = response.json()
    assert answer["object"] == "chat.completion"
    assert answer["id"].startswith("chatcmpl-")
    assert answer["model"] == "fake"
    [choice] = answer["choices"]
    assert choice["message"] == {"role": "assistant", "content": expected_text(CHAT_PROMPT, 8)}
    assert (choice["index"], choice["finish_reason"], choice["logprobs"]) == (0, "length", None)
    assert answer["usage"] == {
        "prompt_tokens": len(CHAT_PROMPT),
        "completion_tokens": 8,
        "total_tokens": len(CHAT_PROMPT) + 8,
        "prompt_tokens_details": {"cached_tokens": 0},
    }
    assert set(answer["metrics"]) == {
        "time_to_first_token_ms",
        "generation_time_ms",
        "queue_time_ms",
        "mean_itl_ms",
        "tokens_per_second",
    }
    assert re.fullmatch(
        r'backend-queue;dur=[\d.-]+, backend-prefill;dur=[\d.]+, backend-decode;dur=[\d.]+, backend-cached;desc="0"',
        response.headers["server-timing"],
    )
    assert again.json()["usage"]["prompt_tokens_details"] == {"cached_tokens": 20}
    assert again.json()["model"] == "alias"
    assert again.headers["server-timing"].endswith('backend-cached;desc="20"')


async def test_a_chat_stream_has_a_chunk_a_token_and_ends_with_usage() -> None:
    """The role first, then one chunk a token, the reason in the last one, usage and metrics when asked for."""
    async with api() as server:
        response = await server.post(
            CHAT, messages=MESSAGES, max_tokens=6, stream=True, stream_options={"include_usage": True}, **GREEDY
        )
        events = await server.events(
            CHAT, messages=MESSAGES, max_tokens=6, stream_options={"include_usage": True}, **GREEDY
        )
        plain = await server.events(CHAT, messages=MESSAGES, max_tokens=6, **GREEDY)
    assert response.headers["content-type"].startswith("text/event-stream")
    assert "backend-prefill;dur=" in response.headers["server-timing"]
    assert "backend-decode" not in response.headers["server-timing"]
    assert events[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    chunks, usage = events[1:-1], events[-1]
    text = "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks)
    assert text == expected_text(CHAT_PROMPT, 6)
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks] == [None] * 5 + ["length"]
    assert all(chunk["usage"] is None for chunk in events[:-1])
    assert usage["choices"] == []
    assert usage["usage"]["completion_tokens"] == 6
    assert usage["metrics"]["time_to_first_token_ms"] > 0
    assert {event["id"] for event in events} == {events[0]["id"]}
    assert all("usage" not in event for event in plain)


async def test_continuous_usage_counts_up() -> None:
    """Every chunk carries the counts so far."""
    options = {"include_usage": True, "continuous_usage_stats": True}
    async with api() as server:
        events = await server.events(COMPLETIONS, prompt="ab", max_tokens=3, stream_options=options, **GREEDY)
    assert [event["usage"]["completion_tokens"] for event in events] == [1, 2, 3, 3]


@pytest.mark.parametrize(
    "prompt", ["abc", ["abc"], [97, 98, 99], [[97, 98, 99]]], ids=["text", "texts", "ids", "lists of ids"]
)
async def test_every_shape_of_prompt_is_understood(prompt: Any) -> None:
    """Text and token ids, one or several, give the same answer."""
    async with api() as server:
        answer = (await server.post(COMPLETIONS, prompt=prompt, max_tokens=5, **GREEDY)).json()
    assert answer["object"] == "text_completion"
    assert [choice["text"] for choice in answer["choices"]] == [expected_text(b"abc", 5)]
    assert answer["usage"]["prompt_tokens"] == 3


async def test_several_prompts_and_choices_are_indexed_prompt_by_prompt() -> None:
    """Prompt i's choices are i*n to i*n+n-1; prompts are counted once; metrics are only for a single choice."""
    async with api() as server:
        body = {"prompt": ["ab", "cd"], "n": 2, "max_tokens": 4, **GREEDY}
        answer = (await server.post(COMPLETIONS, **body)).json()
        events = await server.events(COMPLETIONS, **body)
    texts = [expected_text(b"ab", 4)] * 2 + [expected_text(b"cd", 4)] * 2
    assert [choice["text"] for choice in answer["choices"]] == texts
    assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2, 3]
    assert answer["usage"]["prompt_tokens"] == 4
    assert answer["usage"]["completion_tokens"] == 16
    assert answer["metrics"] is None
    for index, text in enumerate(texts):
        chunks = [event["choices"][0] for event in events if event["choices"][0]["index"] == index]
        assert "".join(chunk["text"] for chunk in chunks) == text


async def test_completions_default_to_sixteen_tokens_and_chat_to_the_rest_of_the_context() -> None:
    """OpenAI's default of the old route; chat fills the context."""
    async with api() as server:
        completion = (await server.post(COMPLETIONS, prompt="ab", **GREEDY)).json()
        chat = (await server.post(CHAT, messages=MESSAGES, **GREEDY)).json()
    assert completion["usage"]["completion_tokens"] == 16
    assert chat["usage"]["total_tokens"] == 128


async def test_a_stop_string_ends_answer_and_stream_alike() -> None:
    """The text before it, the reason stop, the string as stop_reason."""
    text = expected_text(b"ab", 12)
    stop = text[4:6]
    async with api() as server:
        body = {"prompt": "ab", "max_tokens": 12, "stop": [stop], **GREEDY}
        [choice] = (await server.post(COMPLETIONS, **body)).json()["choices"]
        events = await server.events(COMPLETIONS, **body)
    assert choice["text"] == text[: text.index(stop)]
    assert (choice["finish_reason"], choice["stop_reason"]) == ("stop", stop)
    assert "".join(event["choices"][0]["text"] for event in events) == choice["text"]
    assert events[-1]["choices"][0]["finish_reason"] == "stop"


async def test_chat_logprobs_name_every_token_and_its_alternatives() -> None:
    """As many entries as tokens, each with the asked number of alternatives, the greedy token first among them."""
    async with api() as server:
        body = {"messages": MESSAGES, "max_tokens": 4, "logprobs": True, "top_logprobs": 3, **GREEDY}
        answer = (await server.post(CHAT, **body)).json()
        events = await server.events(CHAT, **body)
        bare = (await server.post(CHAT, messages=MESSAGES, max_tokens=4, logprobs=True, **GREEDY)).json()
    content = answer["choices"][0]["logprobs"]["content"]
    assert "".join(entry["token"] for entry in content) == answer["choices"][0]["message"]["content"]
    for entry in content:
        assert entry["logprob"] <= 0
        assert bytes(entry["bytes"]).decode() == entry["token"]
        assert len(entry["top_logprobs"]) == 3
        assert entry["top_logprobs"][0]["token"] == entry["token"]
    streamed = [entry for event in events[1:] for entry in event["choices"][0]["logprobs"]["content"]]
    assert [entry["token"] for entry in streamed] == [entry["token"] for entry in content]
    assert [entry["top_logprobs"] for entry in bare["choices"][0]["logprobs"]["content"]] == [[], [], [], []]


async def test_completion_logprobs_are_parallel_lists_with_offsets() -> None:
    """Tokens, their log-probabilities, alternatives and character offsets, also over a stream."""
    async with api() as server:
        body = {"prompt": "ab", "max_tokens": 4, "logprobs": 2, **GREEDY}
        [choice] = (await server.post(COMPLETIONS, **body)).json()["choices"]
        events = await server.events(COMPLETIONS, **body)
    logprobs = choice["logprobs"]
    assert "".join(logprobs["tokens"]) == choice["text"]
    assert logprobs["text_offset"] == [0, 1, 2, 3]
    assert [len(top) for top in logprobs["top_logprobs"]] == [2, 2, 2, 2]
    streamed = [event["choices"][0]["logprobs"] for event in events]
    assert [part["text_offset"] for part in streamed] == [[0], [1], [2], [3]]
    assert [part["tokens"][0] for part in streamed] == logprobs["tokens"]


async def test_a_request_id_becomes_part_of_the_answers_id() -> None:
    """As at vLLM."""
    async with api() as server:
        response = await server.http.post(
            COMPLETIONS, json={"prompt": "ab", "max_tokens": 1}, headers={"X-Request-Id": "mine"}
        )
    assert response.json()["id"] == "cmpl-mine"


async def test_text_parts_are_joined() -> None:
    """A content list of texts means their concatenation."""
    parts = [{"type": "text", "text": "hel"}, {"type": "text", "text": "lo"}]
    async with api() as server:
        answer = (await server.post(CHAT, messages=[{"role": "user", "content": parts}], max_tokens=6, **GREEDY)).json()
    assert answer["choices"][0]["message"]["content"] == expected_text(CHAT_PROMPT, 6)


async def test_values_that_ask_for_nothing_are_accepted() -> None:
    """Neutral values of unsupported fields, and fields nobody knows."""
    neutral = {
        "presence_penalty": 0.0,
        "frequency_penalty": 0,
        "repetition_penalty": 1.0,
        "logit_bias": None,
        "tools": [],
        "tool_choice": "none",
        "response_format": {"type": "text"},
        "user": "someone",
        "metadata": {"a": "b"},
        "best_of": 1,
        "top_k": -1,
        "stop": None,
        "n": None,
        "seed": None,
        "cache_salt": None,
        "made_up_field": [1, 2],
    }
    async with api() as server:
        response = await server.post(CHAT, messages=MESSAGES, max_tokens=1, **neutral)
    assert response.status_code == 200, response.text


async def test_a_seed_repeats_an_answer_and_choices_differ() -> None:
    """Sampled answers are reproducible, choice by choice."""
    async with api() as server:
        body = {"prompt": "ab", "max_tokens": 10, "n": 2, "temperature": 2.0, "seed": 3, "ignore_eos": True}
        first, second = [(await server.post(COMPLETIONS, **body)).json()["choices"] for _ in range(2)]
    assert first == second
    assert first[0]["text"] != first[1]["text"]


async def test_tokenize_and_detokenize() -> None:
    """Prompt or messages to ids with the context's length; ids to text."""
    async with api() as server:
        plain = (await server.post("/tokenize", model="fake", prompt="abc")).json()
        chat = (await server.post("/tokenize", messages=MESSAGES)).json()
        bare = (await server.post("/tokenize", messages=MESSAGES, add_generation_prompt=False)).json()
        text = (await server.post("/detokenize", tokens=[97, 98])).json()
    assert plain == {"count": 3, "max_model_len": 128, "tokens": [97, 98, 99]}
    assert bytes(chat["tokens"]) == CHAT_PROMPT
    assert bare["count"] == len(CHAT_PROMPT) - len("<assistant>")
    assert text == {"prompt": "ab"}


async def test_models_health_version_and_metrics() -> None:
    """The routes that gateways probe."""
    async with api() as server:
        await server.post(COMPLETIONS, prompt="ab", max_tokens=3, ignore_eos=True)
        models = (await server.http.get("/v1/models")).json()
        health = await server.http.get("/health")
        version = (await server.http.get("/version")).json()
        metrics = (await server.http.get("/metrics")).text
        server.engine.stop()
        stopped = await server.http.get("/health")
        refused = await server.post(COMPLETIONS, prompt="ab", max_tokens=3)
    assert [(card["id"], card["root"], card["max_model_len"]) for card in models["data"]] == [
        ("fake", "fake-root", 128),
        ("alias", "fake-root", 128),
    ]
    assert (health.status_code, stopped.status_code, refused.status_code) == (200, 503, 503)
    assert set(version) == {"version"}
    assert 'vllm:kv_cache_usage_perc{engine="0",model_name="fake"} 0.0' in metrics
    assert 'block_size="4"' in metrics
    for name in (
        "vllm:num_requests_running",
        "vllm:num_requests_waiting",
        "vllm:prefix_cache_queries_total",
        "vllm:prefix_cache_hits_total",
        "vllm:num_preemptions_total",
        "vllm:prompt_tokens_total",
        "vllm:time_to_first_token_seconds_count",
        "vllm:inter_token_latency_seconds_count",
        "vllm:request_time_per_output_token_seconds_count",
        "vllm:e2e_request_latency_seconds_count",
        "vllm:request_queue_time_seconds_count",
        "vllm:request_prefill_time_seconds_count",
        "vllm:request_decode_time_seconds_count",
        "tailgate_backend_step_seconds_count",
        "tailgate_backend_step_tokens_count",
    ):
        assert f'{name}{{engine="0",model_name="fake"}}' in metrics
