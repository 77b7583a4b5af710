"""The npm package `openai` through the gateway, in node, to the bundled engine."""

import pytest

from .entrance import Entrance
from .npm_client import needs_npm_package, told_by

pytestmark = [pytest.mark.model, pytest.mark.slow, needs_npm_package]


async def test_whole_and_as_a_stream(in_front_of_engine: Entrance) -> None:
    """The same text, with usage; headers of ours can be read."""
    told = await told_by(in_front_of_engine, "whole", "stream")
    assert "Paris" in told["whole"]["text"]
    assert told["stream"]["text"] == told["whole"]["text"]
    assert told["stream"]["usage"]["completion_tokens"] == told["whole"]["usage"]["completion_tokens"]
    assert told["whole"]["replica"] == "r1"
