"""JSON bodies, looked at and never changed: parsing, and checks of single members.

A wrong member is a BadRequest with its name. Only what would mislead scheduling is checked; the rest is left to the
replica, which knows what it supports.
"""

import json
from collections.abc import Mapping
from typing import Any, NoReturn

import orjson

from ..errors import BadRequest

_MAX_COUNT = 2**31 - 1
_KINDS = {dict: "an object", list: "a list", str: "text", int: "a number", float: "a number", bool: "true or false"}


def parse_object(body: bytes, *, max_depth: int) -> dict[str, Any]:
    """The JSON object that the body is. Raises BadRequest for every other body, and for one nested too deep."""
    try:
        parsed = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        if "UTF-8" in error.msg:  # which goes on about surrogates
            raise BadRequest("The request body is not valid UTF-8.") from None
        if "infinity" not in error.msg:
            raise BadRequest(f"The request body is not valid JSON: {error.msg} (character {error.pos}).") from None
        parsed = _parse_odd_numbers(body)
    if type(parsed) is not dict:
        raise BadRequest("The request body must be a JSON object.")
    _check_depth(body, parsed, max_depth)
    return parsed


def _parse_odd_numbers(body: bytes) -> Any:
    """Numbers that no double can hold are JSON all the same, and the replica's business."""
    try:
        parsed = json.loads(body.decode(), parse_int=_whole, parse_constant=_refuse_constant)
        orjson.dumps(parsed)  # raises for half a surrogate pair, which nothing after this could write
    except (ValueError, RecursionError, TypeError):
        raise BadRequest("The request body is not valid JSON.") from None
    return parsed


def _whole(digits: str) -> int | float:
    return int(digits) if len(digits) < 19 else float(digits)  # 64 bits, as the usual parser has it


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(name)


def _check_depth(body: bytes, parsed: dict[str, Any], max_depth: int) -> None:
    # Fewer opening brackets than the limit can't nest deeper than it: nearly every body is done here.
    # (Taking them out is several times as fast as counting them, which looks at every byte.)
    without = len(body.replace(b"{", b"", max_depth + 1)) + len(body.replace(b"[", b"", max_depth + 1))
    if 2 * len(body) - without <= max_depth:
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


def text(parsed: Mapping[str, Any], name: str) -> str | None:
    """None where it is absent or null, as for all of these."""
    value = parsed.get(name)
    if value is not None and type(value) is not str:
        raise wrong(name, "text", value)
    return value


def flag(parsed: Mapping[str, Any], name: str) -> bool:
    """False where it is absent."""
    value = parsed.get(name)
    if value is None:
        return False
    if type(value) is not bool:
        raise wrong(name, "true or false", value)
    return value


def items(parsed: Mapping[str, Any], name: str) -> list[Any] | None:
    value = parsed.get(name)
    if value is not None and type(value) is not list:
        raise wrong(name, "a list", value)
    return value


def count(parsed: Mapping[str, Any], name: str, *, least: int | None = None) -> int | None:
    """A whole number, bounded so that no caller can send arithmetic astray; 3.0 is one, as for pydantic's servers."""
    value = parsed.get(name)
    if value is None:
        return None
    if type(value) is float and value.is_integer():
        value = int(value)
    if type(value) is not int:
        raise wrong(name, "a whole number", value)
    if least is not None and value < least:
        raise BadRequest(f"`{name}` must be at least {least}.", param=name)
    if -_MAX_COUNT <= value <= _MAX_COUNT:
        return value
    return _MAX_COUNT if value > 0 else -_MAX_COUNT


def adapters(parsed: Mapping[str, Any], name: str) -> tuple[str, ...]:
    """Names of LoRA adapters, one or several, that a body asks for beside its model."""
    value = parsed.get(name)
    if value is None:
        return ()
    names = value if type(value) is list else (value,)
    if not all(type(each) is str or each is None for each in names):
        raise wrong(name, "text", value)
    return tuple(each for each in names if each is not None)


def bound(parsed: Mapping[str, Any], *names: str) -> int | None:
    """The first of these counts that is there. Below zero means "no bound" to some servers and an error to others;
    either way it is no bound to plan with."""
    for name in names:
        value = count(parsed, name)
        if value is not None:
            return value if value >= 0 else None
    return None


def messages(parsed: Mapping[str, Any]) -> list[dict[str, Any]]:
    """A conversation: objects with a role, and text, parts or nothing as content."""
    found = parsed.get("messages")
    if type(found) is not list:
        raise wrong("messages", "a list of messages", found)
    if not found:
        raise BadRequest("`messages` must not be empty.", param="messages")
    for index, message in enumerate(found):
        if type(message) is not dict:
            raise wrong(f"messages[{index}]", "an object", message)
        if type(message.get("role")) is not str:
            raise wrong(f"messages[{index}].role", "text", message.get("role"))
        content = message.get("content")
        if content is not None and type(content) is not str and type(content) is not list:
            raise wrong(f"messages[{index}].content", "text or a list of parts", content)
    return found


def wrong(name: str, wanted: str, value: object) -> BadRequest:
    """The error for a member of another type than wanted."""
    if value is None:
        return BadRequest(f"`{name}` is missing; it must be {wanted}.", param=name)
    return BadRequest(f"`{name}` must be {wanted}, not {_KINDS[type(value)]}.", param=name)
