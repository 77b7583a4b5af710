"""Clients of Text Generation Inference through the gateway to a double of it: huggingface_hub and openai."""

import openai
import pytest
from huggingface_hub import AsyncInferenceClient
from huggingface_hub.errors import OverloadedError, ValidationError

from tests.support.fake_tgi import MODEL, WORDS, FakeTgi
from tests.support.serve import until

from .entrance import entrance_to

TEXT = "".join(WORDS)


async def test_its_own_api() -> None:
    """Whole and as a stream, with details; its errors are the package's classes."""
    async with FakeTgi() as replica, entrance_to(replica) as entrance:
        # The comment in the stream isn't taken for an event.
        client = AsyncInferenceClient(entrance.url, headers={"x-tailgate-timing": "stream"})
        whole = await client.text_generation("a b", details=True, max_new_tokens=9)
        assert whole.generated_text == TEXT
        stream = await client.text_generation("a b", details=True, stream=True, max_new_tokens=9)
        pieces = [piece async for piece in stream]
        assert "".join(piece.token.text for piece in pieces if not piece.token.special) == TEXT.replace(" <s>", "")
        assert pieces[-1].generated_text == TEXT
        assert pieces[-1].details is not None
        assert pieces[-1].details.generated_tokens == len(WORDS)
        with pytest.raises(ValidationError):
            await client.text_generation("a", max_new_tokens=0)
        replica.is_overloaded = True
        with pytest.raises(OverloadedError):
            await client.text_generation("a", max_new_tokens=9)


async def test_a_stream_that_is_left_is_cancelled() -> None:
    """Its connection closes."""
    async with FakeTgi() as replica, entrance_to(replica) as entrance:
        replica.may_go_on.clear()
        stream = await AsyncInferenceClient(entrance.url).text_generation("a", stream=True, max_new_tokens=9)
        await anext(aiter(stream))
        await stream.aclose()  # type: ignore[attr-defined]  # an async generator
        await until(lambda: replica.num_aborted == 1)


async def test_its_chat_by_the_models_own_name() -> None:
    """The package `openai` sees a chat like any other; TGI sees the only name it knows."""
    async with (
        FakeTgi() as replica,
        entrance_to(replica) as entrance,
        openai.AsyncOpenAI(base_url=f"{entrance.url}/v1", api_key="none", max_retries=0) as client,
    ):
        messages: list[openai.types.chat.ChatCompletionMessageParam] = [{"role": "user", "content": "hi"}]
        whole = await client.chat.completions.create(model=MODEL, messages=messages)
        assert whole.choices[0].message.content == TEXT
        stream = await client.chat.completions.create(
            model=MODEL, messages=messages, stream=True, stream_options={"include_usage": True}
        )
        chunks = [chunk async for chunk in stream]
        assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == TEXT
        assert chunks[-1].usage == whole.usage


async def test_its_load_is_read() -> None:
    """What runs there and what waits, from its own metrics."""
    async with FakeTgi() as replica, entrance_to(replica) as entrance:
        seen = entrance.gateway.pool.get("r1")
        await until(lambda: seen.load is not None)
        assert seen.load is not None
        assert (seen.kind, seen.load.num_running, seen.load.num_waiting) == ("tgi", 2, 3)
