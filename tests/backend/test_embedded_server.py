"""The whole server with the embedded model, as users start it, through the real `openai` client."""

import json
import signal
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import httpx
import openai
import pytest

from tests.support.gauges import read_gauges, until_gauges

from .engine_process import STOP_DEADLINE_S, EngineProcess, engine_process

pytestmark = [pytest.mark.model, pytest.mark.slow]

GAUGES = ("vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc")
QUESTION: list[openai.types.chat.ChatCompletionMessageParam] = [
    {"role": "user", "content": "What is the capital of France?"}
]


@pytest.fixture(scope="module")
def tokenizer_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("tokenizer")


@pytest.fixture(scope="module")
def server(tokenizer_directory: Path) -> Iterator[EngineProcess]:
    arguments = ["--export-tokenizer", str(tokenizer_directory), "--kv-cache-bytes", str(1 << 28)]
    with engine_process(*arguments, "--policy", "priority") as process:
        yield process


@pytest.fixture
async def client(server: EngineProcess) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as openai_client:
        yield openai_client


async def test_chat(client: openai.AsyncOpenAI, server: EngineProcess) -> None:
    """The answer makes sense."""
    answer = await client.chat.completions.create(model=server.model, messages=QUESTION, temperature=0, max_tokens=20)
    assert "Paris" in (answer.choices[0].message.content or "")
    assert answer.usage is not None
    assert answer.usage.completion_tokens > 0


async def test_a_stream_says_what_the_whole_answer_says(client: openai.AsyncOpenAI, server: EngineProcess) -> None:
    """Chunk by chunk the same text, with usage at the end."""
    stream = await client.chat.completions.create(
        model=server.model,
        messages=QUESTION,
        temperature=0,
        max_tokens=20,
        stream=True,
        stream_options={"include_usage": True},
    )
    chunks = [chunk async for chunk in stream]
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert "Paris" in text
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.prompt_tokens > 30


async def test_completions_and_logprobs(client: openai.AsyncOpenAI, server: EngineProcess) -> None:
    """The old route, with log-probabilities of the likeliest tokens."""
    answer = await client.completions.create(
        model=server.model, prompt="The capital of France is", temperature=0, max_tokens=3, logprobs=2
    )
    assert answer.choices[0].text.startswith(" Paris")
    assert answer.choices[0].logprobs is not None
    tokens = answer.choices[0].logprobs.tokens
    assert tokens is not None
    assert "".join(tokens) == answer.choices[0].text


async def test_models(client: openai.AsyncOpenAI, server: EngineProcess) -> None:
    """The served name."""
    assert [model.id for model in (await client.models.list()).data] == ["smollm2-135m"]


async def test_errors(client: openai.AsyncOpenAI, server: EngineProcess) -> None:
    """The client's own exception classes come out."""
    with pytest.raises(openai.NotFoundError) as missing:
        await client.chat.completions.create(model="gpt-4", messages=QUESTION)
    assert missing.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError) as refused:
        await client.chat.completions.create(model=server.model, messages=QUESTION, presence_penalty=1.0)
    assert refused.value.param == "presence_penalty"
    with pytest.raises(openai.BadRequestError) as too_long:
        await client.completions.create(model=server.model, prompt="word " * 9000)
    assert too_long.value.code == "context_length_exceeded"


async def test_cancelling_frees_the_cache(client: openai.AsyncOpenAI, server: EngineProcess) -> None:
    """A stream closed in the middle: nothing runs and no block is held, as /metrics says."""
    stream = await client.chat.completions.create(
        model=server.model,
        messages=[{"role": "user", "content": "Count to one thousand."}],
        max_tokens=2000,
        stream=True,
        extra_body={"ignore_eos": True},
    )
    await anext(aiter(stream))
    busy = await read_gauges(server.url, *GAUGES)
    assert busy["vllm:num_requests_running"] == 1
    assert busy["vllm:kv_cache_usage_perc"] > 0
    await stream.close()
    await until_gauges(server.url, dict.fromkeys(GAUGES, 0.0))


async def test_the_tokenizer_is_exported(server: EngineProcess, tokenizer_directory: Path) -> None:
    """Files from which a gateway counts tokens as the engine does."""
    settings = json.loads((tokenizer_directory / "tokenizer_config.json").read_text())
    assert settings["chat_template"]
    assert settings["eos_token"]
    assert (tokenizer_directory / "tokenizer.json").stat().st_size > 100_000


def test_a_signal_ends_it_with_status_0_even_while_it_streams() -> None:
    """Quickly, though an answer was running. (SIGTERM with status 0 ends the other tests' server.)"""
    with engine_process("--kv-cache-bytes", str(1 << 26)) as process:
        body = {"prompt": "One two three", "max_tokens": 2000, "ignore_eos": True, "stream": True}
        with httpx.stream("POST", f"{process.url}/v1/completions", json=body, timeout=20.0) as response:
            next(response.iter_lines())
            process.process.send_signal(signal.SIGINT)
            assert process.process.wait(STOP_DEADLINE_S) == 0
