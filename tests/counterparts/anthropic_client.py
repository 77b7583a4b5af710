"""The Python package `anthropic` at a gateway."""

import anthropic
from anthropic.types import MessageParam

from .entrance import Entrance

MESSAGES: list[MessageParam] = [{"role": "user", "content": "What is the capital of France?"}]


def anthropic_client(entrance: Entrance, key: str = "none", max_retries: int = 0) -> anthropic.AsyncAnthropic:
    """A client of it."""
    return anthropic.AsyncAnthropic(base_url=entrance.url, api_key=key, max_retries=max_retries)
