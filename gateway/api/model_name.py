"""Another model name in a body, and every other byte as it was.

A client may call a model by an alias, or by nothing where there is a default; the replica knows only its own name.
Re-writing the JSON would bend big integers, odd floats, escapes and repeated members, so the place of the value is
found and only those bytes are replaced. A member that is there twice is replaced twice: whichever one a server takes,
it is the model that was checked here.
"""

import re
from itertools import pairwise

import orjson

from ..errors import Headers
from .multipart import read_form

_STRING = rb'"[^"\\]*(?:\\.[^"\\]*)*"'
_OUTER = re.compile(_STRING + rb"|[{}\[\]:,]", re.DOTALL)
_INNER = re.compile(_STRING + rb"|[{}\[\]]", re.DOTALL)
_SPACE = b" \t\r\n"


def value_places(body: bytes, member: str) -> list[tuple[int, int]]:
    """Where the values of this member of the outermost object are, as (start, end). `body` is a valid JSON object."""
    places: list[tuple[int, int]] = []
    position = body.index(b"{") + 1
    key: bytes | None = None  # the last string where a key may be
    value_start: int | None = None  # of the wanted member
    is_key = True
    depth = 1
    while True:
        token = (_OUTER if depth == 1 else _INNER).search(body, position)
        assert token is not None, "the body was parsed before"
        text, position = token[0], token.end()
        if text in (b"{", b"["):
            depth += 1
        elif depth > 1:
            depth -= text in (b"}", b"]")
        elif text == b":":
            value_start = position if key is not None and _is(key, member) else None
            is_key = False
        elif text in (b",", b"}"):
            if value_start is not None:
                value = body[value_start : token.start()]
                start = value_start + len(value) - len(value.lstrip(_SPACE))
                places.append((start, start + len(value.strip(_SPACE))))
            if text == b"}":
                return places
            key, value_start, is_key = None, None, True
        elif is_key:
            key = text


def _is(key: bytes, member: str) -> bool:
    return key[1:-1] == member.encode() or (b"\\" in key and orjson.loads(key) == member)


def in_json(body: bytes, _: Headers, name: str) -> bytes:
    """The JSON body with this model, put in first place where it named none."""
    value = orjson.dumps(name)
    places = value_places(body, "model")
    if places:
        return _replaced(body, places, value)
    start = body.index(b"{") + 1
    comma = b"" if body[start:].lstrip(_SPACE).startswith(b"}") else b","
    return b'%b"model":%b%b%b' % (body[:start], value, comma, body[start:])


def in_form(body: bytes, headers: Headers, name: str) -> bytes:
    """The same for a form."""
    form = read_form(body, headers)
    places = form.fields.get("model")
    if places:
        return _replaced(body, places, name.encode())
    part = b'%b\r\nContent-Disposition: form-data; name="model"\r\n\r\n%b\r\n' % (form.delimiter, name.encode())
    return body[: form.first_delimiter] + part + body[form.first_delimiter :]


def nowhere(body: bytes, _: Headers, __: str) -> bytes:
    """Bodies of APIs that name no model."""
    return body


def _replaced(body: bytes, places: list[tuple[int, int]], value: bytes) -> bytes:
    cuts = [(0, 0), *places, (len(body), len(body))]
    return value.join(body[before[1] : after[0]] for before, after in pairwise(cuts))
