"""Anthropic's Messages API: what scheduling reads, how its streams and its usage are understood."""

from collections.abc import Mapping
from typing import Any

from ..errors import Headers
from . import body as read
from .conversation import said
from .fields import RequestFields


def read_messages(body: bytes, _: Headers, max_depth: int) -> RequestFields:
    """POST /v1/messages, and /v1/messages/count_tokens, which has the same body without a bound."""
    parsed = read.parse_object(body, max_depth=max_depth)
    messages = [said(message["role"], message.get("content")) for message in read.messages(parsed)]
    if (system := parsed.get("system")) is not None:
        messages.insert(0, said("system", system))
    return RequestFields(
        num_body_bytes=len(body),
        model=read.text(parsed, "model"),
        stream=read.flag(parsed, "stream"),
        max_output_tokens=read.bound(parsed, "max_tokens"),
        priority=-(read.count(parsed, "priority") or 0),
        messages=messages,
        tools=_functions(parsed),
    )


def _functions(parsed: Mapping[str, Any]) -> list[Any] | None:
    """Its tools as chat templates know them."""
    tools = read.items(parsed, "tools")
    if not tools:
        return None
    return [
        {
            "type": "function",
            "function": {
                "name": tool.get("name"),
                "description": tool.get("description"),
                "parameters": tool.get("input_schema"),
            },
        }
        for tool in tools
        if type(tool) is dict
    ]
