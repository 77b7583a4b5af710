"""Another model name in a body, and every other byte as it was.

A client may call a model by an alias, or by nothing where there is a default; the replica knows only its own name.
Re-writing the JSON would bend big integers, odd floats, escapes and repeated members, so the place of the value is
found and only those bytes are replaced. A member that is there twice is replaced twice: whichever one a server takes,
it is the model that was checked here.
"""

import json
import re
from itertools import pairwise

import orjson

from ..errors import Headers
from .multipart import read_form

_SPACE = b" \t\r\n"
_NAME = rb'"(?:m|\\u006[dD])(?:o|\\u006[fF])(?:d|\\u0064)(?:e|\\u0065)(?:l|\\u006[cC])"'  # every spelling of it
_KEY = re.compile(rb"[{,][ \t\r\n]*(%b[ \t\r\n]*:[ \t\r\n]*)" % _NAME)
_DECODER = json.JSONDecoder(parse_int=str)


def model_places(body: bytes) -> list[tuple[int, int]]:
    """Where the values of `model` in the outermost object are, as (start, end). `body` is a valid JSON object.

    Linear and without a loop over the body in Python: once no string holds a quote, a quote, `model`, a quote and a
    colon can only be a member's name, and the brackets outside of strings say how deep it is.
    """
    masked = body.replace(rb"\\", b"  ").replace(rb"\"", b"  ")
    places: list[tuple[int, int]] = []
    depth, counted_to = 0, 0
    for found in _KEY.finditer(masked):
        outside = b"".join(masked[counted_to : found.start(1)].split(b'"')[::2])
        depth += outside.count(b"{") + outside.count(b"[") - outside.count(b"}") - outside.count(b"]")
        counted_to = found.start(1)
        if depth == 1:
            places.append((found.end(), _value_end(body, masked, found.end())))
    return places


def _value_end(body: bytes, masked: bytes, start: int) -> int:
    if masked.startswith(b'"', start):
        return masked.index(b'"', start + 1) + 1
    if masked.startswith(b"null", start):
        return start + 4
    text = body[start:].decode()
    return start + len(text[: _DECODER.raw_decode(text)[1]].encode())


def in_json(body: bytes, _: Headers, name: str) -> bytes:
    """The JSON body with this model, put in first place where it named none."""
    value = orjson.dumps(name)
    places = model_places(body)
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


def _replaced(body: bytes, places: list[tuple[int, int]], value: bytes) -> bytes:
    cuts = [(0, 0), *places, (len(body), len(body))]
    return value.join(body[before[1] : after[0]] for before, after in pairwise(cuts))
