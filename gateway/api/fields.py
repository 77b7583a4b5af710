"""The fields of a request body that scheduling reads. Everything else in it is none of the gateway's business.

The body is parsed once, only to be looked at: what is forwarded is the bytes that came. So checks are made where a
wrong value would mislead scheduling, and the rest is left to the replica, which knows what it supports.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from ..errors import BadRequest

CHAT = "chat"
COMPLETIONS = "completions"

_MAX_COUNT = 2**31 - 1


@dataclass(frozen=True, slots=True)
class RequestFields:
    """What scheduling needs to know.

    `messages` and `tools` (chat) or `prompt` (completions: text, token ids, or a list of either) are as parsed.
    `max_output_tokens` is the caller's bound over all choices of all prompts, None without one. `priority` is higher
    goes first (the wire has vLLM's sign, lower first).
    """

    route: str
    model: str | None
    stream: bool
    max_output_tokens: int | None
    num_choices: int
    priority: int
    messages: list[dict[str, Any]] | None
    prompt: str | list[Any] | None
    tools: list[Any] | None
    include_usage: bool
    num_body_bytes: int


def read_fields(route: str, body: bytes, *, max_depth: int = 64) -> RequestFields:
    """Parse `body` and check the fields that matter. Raises BadRequest, with the name of the field where one is."""
    try:
        parsed = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise BadRequest(f"The request body is not valid JSON: {error.msg} (character {error.pos}).") from None
    if type(parsed) is not dict:
        raise BadRequest("The request body must be a JSON object.")
    _check_depth(body, parsed, max_depth)
    messages = _messages(parsed) if route == CHAT else None
    prompt, num_prompts = (None, 1) if route == CHAT else _prompt(parsed)
    num_choices = max(_count(parsed, "n", least=1) or 1, _count(parsed, "best_of", least=1) or 1) * num_prompts
    bound = _count(parsed, "max_completion_tokens", least=None)
    if bound is None:
        bound = _count(parsed, "max_tokens", least=None)
    if bound is not None:
        # Below zero means "no bound" to some servers and an error to others; either way it is no bound to plan with.
        bound = bound * num_choices if bound >= 0 else None
    return RequestFields(
        route=route,
        model=_text(parsed, "model"),
        stream=_flag(parsed, "stream"),
        max_output_tokens=bound,
        num_choices=num_choices,
        priority=-(_count(parsed, "priority", least=None) or 0),
        messages=messages,
        prompt=prompt,
        tools=_list(parsed, "tools"),
        include_usage=_include_usage(parsed),
        num_body_bytes=len(body),
    )


def _check_depth(body: bytes, parsed: dict[str, Any], max_depth: int) -> None:
    # Fewer opening brackets than the limit can't nest deeper than it: nearly every body is done here.
    if body.count(b"{") + body.count(b"[") <= max_depth:
        return
    level: list[Any] = [parsed]
    for _ in range(max_depth):
        level = [
            child
            for parent in level
            for child in (parent.values() if type(parent) is dict else parent)
            if type(child) is dict or type(child) is list
        ]
        if not level:
            return
    raise BadRequest(f"The request body is nested deeper than {max_depth} levels.")


def _messages(parsed: Mapping[str, Any]) -> list[dict[str, Any]]:
    messages = parsed.get("messages")
    if type(messages) is not list:
        raise _wrong("messages", "a list of messages", messages)
    if not messages:
        raise BadRequest("`messages` must not be empty.", param="messages")
    for index, message in enumerate(messages):
        if type(message) is not dict:
            raise _wrong(f"messages[{index}]", "an object", message)
        if type(message.get("role")) is not str:
            raise _wrong(f"messages[{index}].role", "text", message.get("role"))
        content = message.get("content")
        if content is not None and type(content) is not str and type(content) is not list:
            raise _wrong(f"messages[{index}].content", "text or a list of parts", content)
    return messages


def _prompt(parsed: Mapping[str, Any]) -> tuple[str | list[Any] | None, int]:
    """The prompt and how many there are: text, token ids, or a list of either."""
    prompt = parsed.get("prompt")
    if prompt is None and parsed.get("prompt_embeds") is not None:
        return None, 1
    if type(prompt) is str:
        return prompt, 1
    if type(prompt) is not list:
        raise _wrong("prompt", "text, token ids, or a list of either", prompt)
    if not prompt:
        raise BadRequest("`prompt` must not be empty.", param="prompt")
    kinds = set(map(type, prompt))
    if kinds == {int}:
        return prompt, 1
    if kinds == {str}:
        return prompt, len(prompt)
    if kinds == {list} and all(ids and set(map(type, ids)) == {int} for ids in prompt):
        return prompt, len(prompt)
    raise BadRequest("`prompt` must be text, token ids, or a list of either.", param="prompt")


def _text(parsed: Mapping[str, Any], name: str) -> str | None:
    value = parsed.get(name)
    if value is not None and type(value) is not str:
        raise _wrong(name, "text", value)
    return value


def _flag(parsed: Mapping[str, Any], name: str) -> bool:
    value = parsed.get(name)
    if value is None:
        return False
    if type(value) is not bool:
        raise _wrong(name, "true or false", value)
    return value


def _list(parsed: Mapping[str, Any], name: str) -> list[Any] | None:
    value = parsed.get(name)
    if value is not None and type(value) is not list:
        raise _wrong(name, "a list", value)
    return value


def _count(parsed: Mapping[str, Any], name: str, *, least: int | None) -> int | None:
    """A whole number, bounded so that no caller can send arithmetic astray; 3.0 is one, as for pydantic's servers."""
    value = parsed.get(name)
    if value is None:
        return None
    if type(value) is float and value.is_integer():
        value = int(value)
    if type(value) is not int:
        raise _wrong(name, "a whole number", value)
    if least is not None and value < least:
        raise BadRequest(f"`{name}` must be at least {least}.", param=name)
    return max(-_MAX_COUNT, min(_MAX_COUNT, value))


def _include_usage(parsed: Mapping[str, Any]) -> bool:
    options = parsed.get("stream_options")
    if options is None:
        return False
    if type(options) is not dict:
        raise _wrong("stream_options", "an object", options)
    return options.get("include_usage") is True


_KINDS = {dict: "an object", list: "a list", str: "text", int: "a number", float: "a number", bool: "true or false"}


def _wrong(name: str, wanted: str, value: object) -> BadRequest:
    if value is None:
        return BadRequest(f"`{name}` is missing; it must be {wanted}.", param=name)
    return BadRequest(f"`{name}` must be {wanted}, not {_KINDS[type(value)]}.", param=name)
