"""JSON as replicas write it, which isn't always JSON.

Python's servers write NaN and Infinity and lone surrogates, and a token that ends inside a character leaves half of it.
Clients of event streams decode what isn't UTF-8 with replacement (WHATWG HTML, 9.2.6), and Python's take the rest.
"""

import json

import orjson


def loads(data: bytes) -> object:
    """Raises ValueError."""
    try:
        return orjson.loads(data)
    except orjson.JSONDecodeError:
        try:
            return json.loads(data.decode("utf-8", "replace"))
        except RecursionError as error:
            raise ValueError("nested too deeply") from error
