"""The ASGI side of a call: the only code that reads `receive()`, and plain JSON answers."""

import asyncio
from collections.abc import Coroutine, Iterable
from typing import Any

import orjson
from starlette.datastructures import Headers
from starlette.types import Receive, Send

from .errors import ApiError, bad_request


class ClientLeftError(Exception):
    """The client closed the connection before its body was complete."""


async def read_body(headers: Headers, receive: Receive, max_bytes: int) -> bytes:
    """The whole body. Raises a 413 over `max_bytes`, announced or sent, and `ClientLeftError`."""
    announced = headers.get("content-length", "")
    if announced.isdecimal() and int(announced) > max_bytes:
        raise _too_large(max_bytes)
    parts: list[bytes] = []
    num_bytes = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientLeftError
        part = message.get("body", b"")
        num_bytes += len(part)
        if num_bytes > max_bytes:
            raise _too_large(max_bytes)
        parts.append(part)
        if not message.get("more_body", False):
            return b"".join(parts)


def parse_object(body: bytes) -> dict[str, Any]:
    """The body as a JSON object. NaN and infinities are not JSON. Raises a 400."""
    try:
        value = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise bad_request(f"the body is not valid JSON: {error.msg} at byte {error.pos}", code="invalid_json") from None
    if not isinstance(value, dict):
        raise bad_request("the body must be a JSON object")
    return value


async def until_disconnect(receive: Receive, work: Coroutine[Any, Any, None]) -> None:
    """Run `work`, cancelled as soon as the client leaves. The body must have been read.

    An exception of `work` comes out. Cancelling this cancels `work`, and waits for it.
    """
    worker = asyncio.ensure_future(work)
    watcher = asyncio.ensure_future(_disconnected(receive))
    try:
        await asyncio.wait((worker, watcher), return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in (worker, watcher):
            task.cancel()
        await asyncio.gather(worker, watcher, return_exceptions=True)
    if not worker.cancelled():
        worker.result()


async def send_json(send: Send, status: int, content: Any, extra_headers: Iterable[tuple[bytes, bytes]] = ()) -> None:
    """A whole answer."""
    body = orjson.dumps(content)
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(body)).encode()),
        *extra_headers,
    ]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def send_error(send: Send, error: ApiError) -> None:
    await send_json(send, error.status, error.to_dict())


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def _too_large(max_bytes: int) -> ApiError:
    return ApiError(413, f"the body is larger than {max_bytes} bytes", code="request_too_large")
