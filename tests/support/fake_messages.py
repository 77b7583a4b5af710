"""A replica that speaks Anthropic's Messages API, as newer vLLM servers do."""

import asyncio
import json
from typing import Any

from .fake_replica import Call, FakeReplica


class FakeMessages(FakeReplica):
    """A running one, as an async context manager. `may_go_on` is awaited between the first content and the rest."""

    def __init__(self) -> None:
        super().__init__(self._serve_post, owned_by="vllm")
        self.may_go_on = asyncio.Event()
        self.may_go_on.set()

    async def _serve_post(self, call: Call) -> None:
        body = json.loads(call.received.body)
        if call.received.path == "/v1/messages/count_tokens":
            await call.whole(json.dumps({"input_tokens": 7}).encode())
        elif call.received.path != "/v1/messages":
            await call.whole(b'{"error":{"message":"not found"}}', status=404)
        elif "max_tokens" not in body:
            error = {"type": "invalid_request_error", "message": "max_tokens: field required"}
            await call.whole(json.dumps({"type": "error", "error": error}).encode(), status=400)
        elif body.get("stream"):
            await self._stream(call)
        else:
            await call.whole(json.dumps(WHOLE).encode())

    async def _stream(self, call: Call) -> None:
        await call.head(headers=[("content-type", "text/event-stream")])
        for piece in OPENING:
            await call.chunk(piece)
        await call.chunk(CONTENT[0])
        await self.may_go_on.wait()
        for piece in (*CONTENT[1:], *CLOSING):
            await call.chunk(piece)
        await call.end()


def named_event(kind: str, **data: Any) -> bytes:
    """An event with its type as name and in its data."""
    payload = json.dumps({"type": kind, **data}, separators=(",", ":"))
    return f"event: {kind}\ndata: {payload}\n\n".encode()


def content_delta(**delta: Any) -> bytes:
    """A piece of a content block."""
    return named_event("content_block_delta", index=0, delta=delta)


_USAGE = {"input_tokens": 5, "cache_read_input_tokens": 2, "output_tokens": 1}
WHOLE = {
    "id": "msg_1",
    "type": "message",
    "role": "assistant",
    "model": "m1",
    "content": [{"type": "text", "text": "hello"}],
    "stop_reason": "end_turn",
    "usage": {**_USAGE, "output_tokens": 3},
}
OPENING = (
    named_event("message_start", message={"id": "msg_1", "role": "assistant", "content": [], "usage": _USAGE}),
    named_event("content_block_start", index=0, content_block={"type": "text", "text": ""}),
    named_event("ping"),
    content_delta(type="text_delta", text=""),
)
CONTENT = (
    content_delta(type="thinking_delta", thinking="hm"),
    content_delta(type="text_delta", text="hel"),
    content_delta(type="text_delta", text="lo"),
    content_delta(type="input_json_delta", partial_json='{"a"'),
)
CLOSING = (
    content_delta(type="signature_delta", signature="abc"),
    named_event("content_block_stop", index=0),
    named_event("message_delta", delta={"stop_reason": "end_turn"}, usage={"output_tokens": 4}),
    named_event("message_stop"),
)
STREAM = b"".join((*OPENING, *CONTENT, *CLOSING))
