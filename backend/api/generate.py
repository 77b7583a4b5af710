"""The two generation routes, from the request's bytes to the answer's."""

import uuid
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any

import orjson
from starlette.datastructures import Headers
from starlette.types import Receive, Scope, Send

from ..bridge import Bridge, GenerationError, Stream
from ..engine import EngineStoppedError
from .answers import Answer
from .errors import ApiError
from .http import ClientLeftError, parse_object, read_body, send_error, send_json, until_disconnect
from .logprobs import TokenTexts
from .prepare import Prepared

Prepare = Callable[[Mapping[str, Any], str | None], Awaitable[Prepared]]

_STREAM_HEADERS = (
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
)
_MAX_REQUEST_ID_LENGTH = 128


class GenerateRoute:
    """An ASGI application for one route.

    The head is sent with the first token (streams) or with the whole answer, so that an error has a real status and
    the head carries measured times. A client that leaves, even before the first token, aborts the generation.
    """

    def __init__(
        self,
        prepare: Prepare,
        answer: type[Answer],
        bridge: Bridge,
        token_texts: TokenTexts,
        *,
        max_body_bytes: int,
    ) -> None:
        self._prepare = prepare
        self._answer = answer
        self._bridge = bridge
        self._token_texts = token_texts
        self._max_body_bytes = max_body_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = Headers(scope=scope)
        try:
            async with self._bridge.until_stopped():
                body = await read_body(headers, receive, self._max_body_bytes)
        except ClientLeftError:
            return
        except (ApiError, EngineStoppedError) as error:
            await send_error(send, as_api_error(error))
            return
        await until_disconnect(receive, self._respond(headers, body, send))

    async def _respond(self, headers: Headers, body: bytes, send: Send) -> None:
        try:
            async with self._bridge.until_stopped():
                prepared = await self._prepare(parse_object(body), headers.get("x-vllm-priority"))
            request_id = headers.get("x-request-id") or uuid.uuid4().hex
            answer = self._answer(prepared, request_id[:_MAX_REQUEST_ID_LENGTH], self._token_texts)
            async with self._bridge.stream(prepared.requests) as stream:
                if prepared.streams:
                    await self._send_stream(stream, answer, send)
                else:
                    await self._send_whole(stream, answer, send)
        except (ApiError, GenerationError, EngineStoppedError) as error:
            await send_error(send, as_api_error(error))

    async def _send_whole(self, stream: Stream, answer: Answer, send: Send) -> None:
        async for outputs in stream:
            answer.add(outputs)
        timing = answer.server_timing(include_decode=True).encode()
        await send_json(send, 200, answer.whole(), [(b"server-timing", timing)])

    async def _send_stream(self, stream: Stream, answer: Answer, send: Send) -> None:
        chunks = answer.chunks(await anext(stream))
        timing = answer.server_timing(include_decode=False).encode()
        headers = [*_STREAM_HEADERS, (b"server-timing", timing)]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await _send_events(send, chunks)
        try:
            async for outputs in stream:
                await _send_events(send, answer.chunks(outputs))
        except (GenerationError, EngineStoppedError) as error:
            # The status is sent: the error can only be an event.
            await _send_events(send, [as_api_error(error).to_dict()])
        else:
            usage = answer.usage_chunk()
            if usage is not None:
                await _send_events(send, [usage])
        await send({"type": "http.response.body", "body": b"data: [DONE]\n\n", "more_body": False})


def as_api_error(error: ApiError | GenerationError | EngineStoppedError) -> ApiError:
    """503 for an engine that ends: another replica may be asked."""
    if isinstance(error, ApiError):
        return error
    return ApiError(503 if isinstance(error, EngineStoppedError) else 500, str(error))


async def _send_events(send: Send, events: Iterable[Mapping[str, Any]]) -> None:
    body = b"".join(b"data: " + orjson.dumps(event) + b"\n\n" for event in events)
    if body:
        await send({"type": "http.response.body", "body": body, "more_body": True})
