"""The package `langchain-openai` through the gateway to the bundled engine."""

import pytest
from langchain_core.messages import AIMessage

from tests.backend.engine_process import EngineProcess
from tests.support.gauges import until_gauges

from .entrance import Entrance
from .langchain_model import chat_model

pytestmark = [pytest.mark.model, pytest.mark.slow]


async def test_whole_streamed_and_left(in_front_of_engine: Entrance, engine: EngineProcess) -> None:
    """Whole and as a stream the same, with usage; a stream that is left is cancelled in the engine."""
    model = chat_model(in_front_of_engine, temperature=0, max_completion_tokens=8, stream_usage=True)
    question = "What is the capital of France?"
    whole = await model.ainvoke(question)
    assert "Paris" in whole.text
    pieces = [piece async for piece in model.astream(question)]
    assert "".join(piece.text for piece in pieces) == whole.text
    counted = [piece.usage_metadata for piece in pieces if isinstance(piece, AIMessage) and piece.usage_metadata]
    assert whole.usage_metadata is not None
    assert [each["output_tokens"] for each in counted] == [whole.usage_metadata["output_tokens"]]
    long = chat_model(in_front_of_engine, max_completion_tokens=2000, extra_body={"ignore_eos": True})
    stream = long.astream(question)
    await anext(stream)
    await until_gauges(engine.url, {"vllm:num_requests_running": 1.0})
    await stream.aclose()  # type: ignore[attr-defined]  # an async generator
    await until_gauges(engine.url, {"vllm:num_requests_running": 0.0})
