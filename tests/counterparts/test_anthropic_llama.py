"""The Python package `anthropic` through the gateway to llama.cpp's server, which speaks Anthropic's API too."""

import pytest

from tests.support.gauges import until_gauges

from .anthropic_client import MESSAGES, anthropic_client
from .entrance import Entrance
from .llama_process import LlamaProcess

pytestmark = pytest.mark.model


async def test_whole_streamed_counted_and_left(in_front_of_llama: Entrance, llama: LlamaProcess) -> None:
    """Whole, as a stream, counted, and left in the middle."""
    model = in_front_of_llama.model
    async with anthropic_client(in_front_of_llama) as client:
        greedy = {"temperature": 0}
        whole = await client.messages.create(model=model, messages=MESSAGES, max_tokens=12, extra_body=greedy)
        assert whole.content[0].type == "text"
        async with client.messages.stream(model=model, messages=MESSAGES, max_tokens=12, extra_body=greedy) as stream:
            text = "".join([piece async for piece in stream.text_stream])
            last = await stream.get_final_message()
        assert text == whole.content[0].text
        assert (last.stop_reason, last.usage.output_tokens) == (whole.stop_reason, whole.usage.output_tokens)
        counted = await client.messages.count_tokens(model=model, messages=MESSAGES)
        assert counted.input_tokens == whole.usage.input_tokens + (whole.usage.cache_read_input_tokens or 0)
        async with client.messages.stream(model=model, messages=MESSAGES, max_tokens=1500) as stream:
            await anext(aiter(stream.text_stream))
        await until_gauges(llama.url, {"llamacpp:requests_processing": 0.0})
