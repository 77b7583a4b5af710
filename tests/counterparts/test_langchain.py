"""The package `langchain-openai` through the gateway to doubles."""

import json

import openai
import pytest
from langchain_core.messages import HumanMessage

from tests.support.fake_replica import FakeReplica, answers, delta, hangs
from tests.support.serve import until

from .entrance import Entrance, entrance_to
from .langchain_model import chat_model


async def test_bound_tools() -> None:
    """Their description reaches the replica as the package wrote it, and its calls come back read."""

    def weather(city: str) -> str:
        """Tells the weather.

        Args:
            city: a town
        """
        return city

    call = {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Zürich"}'}}
    message = {"role": "assistant", "content": None, "tool_calls": [call]}
    answer = {
        "id": "c",
        "object": "chat.completion",
        "model": "m1",
        "choices": [{"index": 0, "message": message, "finish_reason": "tool_calls"}],
        "usage": {"prompt_tokens": 5, "completion_tokens": 2, "total_tokens": 7},
    }
    async with FakeReplica(answers(json.dumps(answer).encode())) as replica, entrance_to(replica) as entrance:
        told = await chat_model(entrance).bind_tools([weather], tool_choice="weather").ainvoke([HumanMessage("hi")])
        assert [(each["name"], each["args"], each["id"]) for each in told.tool_calls] == [
            ("weather", {"city": "Zürich"}, "c1")
        ]
        body = json.loads(replica.received[0].body)
        assert body["tools"][0]["function"]["parameters"]["properties"]["city"]["type"] == "string"
        assert body["tool_choice"] == {"type": "function", "function": {"name": "weather"}}


async def test_errors_and_timeouts() -> None:
    """They are those of the package beneath; a timeout closes the replica's call."""
    async with FakeReplica(hangs(delta("one"))) as replica, entrance_to(replica) as entrance:
        with pytest.raises(openai.APITimeoutError):
            await chat_model(entrance, timeout=0.2).ainvoke("hi")
        await until(lambda: replica.num_aborted == 1)
        with pytest.raises(openai.NotFoundError):
            await chat_model(Entrance(entrance.gateway, entrance.port, "gpt-4o")).ainvoke("hi")
