"""The Python package `openai` through the gateway to the bundled engine."""

from collections.abc import AsyncIterator
from pathlib import Path

import openai
import pytest
from openai.types.chat import ChatCompletionMessageParam

from tests.backend.engine_process import EngineProcess
from tests.support.gateways import gateway_for
from tests.support.gauges import until_gauges
from tests.support.serve import serving, until

from .entrance import Entrance

pytestmark = [pytest.mark.model, pytest.mark.slow]

QUESTION: list[ChatCompletionMessageParam] = [{"role": "user", "content": "What is the capital of France?"}]


@pytest.fixture
async def client(in_front_of_engine: Entrance) -> AsyncIterator[openai.AsyncOpenAI]:
    url = f"{in_front_of_engine.url}/v1"
    async with openai.AsyncOpenAI(base_url=url, api_key="none", max_retries=0) as openai_client:
        yield openai_client


async def test_a_chat_whole_and_as_a_stream(client: openai.AsyncOpenAI, in_front_of_engine: Entrance) -> None:
    """The same text both ways, with usage, and headers of ours for whoever asks."""
    model = in_front_of_engine.model
    raw = await client.chat.completions.with_raw_response.create(
        model=model, messages=QUESTION, temperature=0, max_tokens=8
    )
    assert raw.headers["x-tailgate-replica"] == "r1"
    assert "prefill;dur=" in raw.headers["server-timing"]
    whole = raw.parse()
    assert "Paris" in (whole.choices[0].message.content or "")
    stream = await client.chat.completions.create(
        model=model,
        messages=QUESTION,
        temperature=0,
        max_tokens=8,
        stream=True,
        stream_options={"include_usage": True},
    )
    chunks = [chunk async for chunk in stream]
    assert (
        "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
        == whole.choices[0].message.content
    )
    usage = chunks[-1].usage
    assert usage is not None
    assert whole.usage is not None
    # Their cached tokens differ: the second one found the first one's prompt.
    assert (usage.prompt_tokens, usage.completion_tokens) == (whole.usage.prompt_tokens, whole.usage.completion_tokens)


async def test_completions_and_models(client: openai.AsyncOpenAI, in_front_of_engine: Entrance) -> None:
    """Several prompts at once, and the list of models, one by one too."""
    answer = await client.completions.create(
        model=in_front_of_engine.model,
        prompt=["The capital of France is", "One two three"],
        temperature=0,
        max_tokens=2,
    )
    assert [choice.index for choice in answer.choices] == [0, 1]
    assert answer.choices[0].text.startswith(" Paris")
    assert [model.id async for model in client.models.list()] == [in_front_of_engine.model]
    assert (await client.models.retrieve(in_front_of_engine.model)).id == in_front_of_engine.model


async def test_the_engines_own_errors_are_its_clients_exceptions(
    client: openai.AsyncOpenAI, in_front_of_engine: Entrance
) -> None:
    """What the engine refuses has the engine's words and the class that belongs to it."""
    with pytest.raises(openai.BadRequestError) as refused:
        await client.chat.completions.create(model=in_front_of_engine.model, messages=QUESTION, presence_penalty=1.0)
    assert refused.value.param == "presence_penalty"


async def test_a_closed_stream_is_cancelled_in_the_engine(
    client: openai.AsyncOpenAI, in_front_of_engine: Entrance, engine: EngineProcess
) -> None:
    """Nothing runs there and no block of its cache is held, though 2,000 tokens were asked for."""
    stream = await client.chat.completions.create(
        model=in_front_of_engine.model,
        messages=QUESTION,
        max_tokens=2000,
        stream=True,
        extra_body={"ignore_eos": True},
    )
    await anext(aiter(stream))
    await until_gauges(engine.url, {"vllm:num_requests_running": 1.0})
    await stream.close()
    await until_gauges(engine.url, {"vllm:num_requests_running": 0.0, "vllm:kv_cache_usage_perc": 0.0})


async def test_the_gateway_counts_as_the_engine_does(engine: EngineProcess, tokenizer: Path) -> None:
    """Its count of a conversation, from the tokenizer that the engine exports, is the usage the engine reports."""
    models = [{"name": engine.model, "tokenizer": str(tokenizer)}]
    async with (
        gateway_for(engine, models=models) as gateway,
        serving(gateway) as port,
        openai.AsyncOpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="none", max_retries=0) as client,
    ):
        raw = await client.chat.completions.with_raw_response.create(
            model=engine.model,
            messages=[{"role": "system", "content": "Être bref. 简洁。"}, *QUESTION],
            max_tokens=1,
        )
        usage = raw.parse().usage
        assert usage is not None
        assert raw.headers["x-tailgate-prompt-tokens"] == str(usage.prompt_tokens)
        await until(lambda: gateway.core.num_in_flight == 0)
