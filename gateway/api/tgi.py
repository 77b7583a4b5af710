"""Text Generation Inference's own API: what scheduling reads. Its bodies name no model, as a server has only one."""

from typing import Any

from ..errors import Headers
from . import body as read
from .fields import RequestFields


def read_generate(body: bytes, _: Headers, max_depth: int) -> RequestFields:
    """POST /generate."""
    return _generation(body, read.parse_object(body, max_depth=max_depth), streams=False)


def read_generate_stream(body: bytes, _: Headers, max_depth: int) -> RequestFields:
    """POST /generate_stream, which always streams."""
    return _generation(body, read.parse_object(body, max_depth=max_depth), streams=True)


def read_root(body: bytes, _: Headers, max_depth: int) -> RequestFields:
    """POST /, whose body says whether it streams."""
    parsed = read.parse_object(body, max_depth=max_depth)
    return _generation(body, parsed, streams=read.flag(parsed, "stream"))


def _generation(body: bytes, parsed: dict[str, Any], *, streams: bool) -> RequestFields:
    inputs = parsed.get("inputs")
    if type(inputs) is not str:
        raise read.wrong("inputs", "text", inputs)
    parameters = parsed.get("parameters")
    if parameters is not None and type(parameters) is not dict:
        raise read.wrong("parameters", "an object", parameters)
    parameters = parameters or {}
    num_choices = read.count(parameters, "best_of", least=1) or 1
    bound = read.bound(parameters, "max_new_tokens")
    return RequestFields(
        num_body_bytes=len(body),
        model=read.text(parsed, "model"),
        stream=streams,
        max_output_tokens=None if bound is None else bound * num_choices,
        num_choices=num_choices,
        prompt=inputs,
        adapters=read.adapters(parameters, "adapter_id"),
        may_be_cut=parameters.get("truncate") is not None,
    )


def is_overloaded(first: bytes) -> bool:
    """Whether a stream, of which these are the first bytes, is no more than "try again": TGI's status is 200 even
    then."""
    return b'"error_type":"overloaded"' in first.partition(b"\n\n")[0]


def read_nothing(body: bytes, _: Headers, __: int) -> RequestFields:
    """GET /info."""
    return RequestFields(num_body_bytes=len(body))
