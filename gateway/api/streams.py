"""What the event streams of each API say: where content is, what counts as usage, and which events are errors.

The form of the stream itself is the same everywhere (`sse.StreamScanner`), and so is the rule that JSON is parsed only
where a fact may be in it: once there was content, an event that can only be more of it is known by its bytes. Inside a
JSON string a quote is escaped, so what is looked for can't be text of the answer.
"""

from typing import Any

from ..errors import Headers
from ..sse import StreamScanner
from ..usage import Usage, read_count, read_usage


def read_named_usage(answer: object) -> Usage | None:
    """Usage with OpenAI's newer names (`input_tokens`, of which `cached_tokens`), in an answer or inside an event."""
    if type(answer) is not dict:
        return None
    if type(inner := answer.get("response")) is dict:
        answer = inner
    usage = answer.get("usage")
    if type(usage) is not dict or "input_tokens" not in usage:
        return read_usage(answer)
    details = usage.get("input_tokens_details")
    return Usage(
        prompt_tokens=read_count(usage.get("input_tokens")),
        output_tokens=read_count(usage.get("output_tokens")),
        cached_tokens=read_count(details.get("cached_tokens")) if type(details) is dict else None,
    )


class ResponsesScanner(StreamScanner):
    """OpenAI's typed events: those of /v1/responses and of audio."""

    __slots__ = ()
    read_usage = staticmethod(read_named_usage)

    def _dispatch(self, data: bytes) -> None:
        if (
            self.has_content
            and data.startswith((b'{"type":"response.output_text.delta"', b'{"type": "response.output_text.delta"'))
            and b'""' not in data
        ):
            self.num_content_chunks += 1
            return
        super()._dispatch(data)

    def _take_chunk(self, chunk: dict[str, Any]) -> None:
        kind = chunk.get("type")
        if kind in ("error", "response.failed"):
            self.has_error = True
        if type(kind) is str and kind.endswith(".delta") and (chunk.get("delta") or chunk.get("audio")):
            self._count_content()
        super()._take_chunk(chunk)


def read_messages_usage(answer: object) -> Usage | None:
    """Anthropic's usage, whose `input_tokens` are only those that no cache had."""
    usage = answer.get("usage") if type(answer) is dict else None
    if type(usage) is not dict:
        return None
    fresh, cached = read_count(usage.get("input_tokens")), read_count(usage.get("cache_read_input_tokens"))
    written = read_count(usage.get("cache_creation_input_tokens"))
    return Usage(
        prompt_tokens=None if fresh is None else fresh + (cached or 0) + (written or 0),
        output_tokens=read_count(usage.get("output_tokens")),
        cached_tokens=cached,
    )


class MessagesScanner(StreamScanner):
    """Anthropic's events. Usage comes in two: the prompt's with the first, the output's, growing, near the end."""

    __slots__ = ()
    read_usage = staticmethod(read_messages_usage)

    def _dispatch(self, data: bytes) -> None:
        if (
            self.has_content
            and data.startswith((b'{"type":"content_block_delta"', b'{"type": "content_block_delta"'))
            and (b'"text_delta"' in data or b'"thinking_delta"' in data or b'"input_json_delta"' in data)
            and b'""' not in data
        ):
            self.num_content_chunks += 1
            return
        super()._dispatch(data)

    def _take_chunk(self, chunk: dict[str, Any]) -> None:
        kind = chunk.get("type")
        if kind == "error":
            self.has_error = True
        elif kind == "message_stop":
            self.has_ended = True
        elif kind == "message_start":
            self.usage = read_messages_usage(chunk.get("message"))
        elif kind == "message_delta" and (usage := read_messages_usage(chunk)) is not None:
            before = self.usage or Usage()
            self.usage = Usage(
                prompt_tokens=before.prompt_tokens if usage.prompt_tokens is None else usage.prompt_tokens,
                output_tokens=usage.output_tokens,
                cached_tokens=before.cached_tokens if usage.cached_tokens is None else usage.cached_tokens,
            )
        elif kind == "content_block_delta" and _has_text(chunk.get("delta")):
            self._count_content()


def _has_text(delta: object) -> bool:
    """Text, thought, or a tool's arguments; a signature is none."""
    return type(delta) is dict and any(delta.get(name) for name in ("text", "thinking", "partial_json"))


def read_generate_usage(answer: object) -> Usage | None:
    """TGI's `details`, which come only to those who asked for them."""
    if type(answer) is list and answer:
        answer = answer[0]  # the answer of POST /
    details = answer.get("details") if type(answer) is dict else None
    if type(details) is not dict:
        return None
    prefill = details.get("prefill")
    return Usage(
        prompt_tokens=len(prefill) if type(prefill) is list and prefill else read_count(details.get("input_length")),
        output_tokens=read_count(details.get("generated_tokens")),
    )


_GENERATE_HEADERS = frozenset({b"x-prompt-tokens", b"x-generated-tokens", b"x-queue-time"})


class GenerateScanner(StreamScanner):
    """TGI's token events. There is no end marker: the last event is the one with the whole text."""

    __slots__ = ()
    read_usage = staticmethod(read_generate_usage)

    @classmethod
    def usage_of_whole(cls, headers: Headers, body: bytes) -> Usage | None:
        """In its headers, with how long the request was queued (milliseconds)."""
        said = {name: int(value) for name, value in headers if name in _GENERATE_HEADERS and value.isdigit()}
        if not said:
            return super().usage_of_whole(headers, body)
        queue_ms = said.get(b"x-queue-time")
        return Usage(
            prompt_tokens=said.get(b"x-prompt-tokens"),
            output_tokens=said.get(b"x-generated-tokens"),
            queue_s=None if queue_ms is None else queue_ms / 1e3,
        )

    def _take_chunk(self, chunk: dict[str, Any]) -> None:
        if chunk.get("error"):
            self.has_error = True
        if chunk.get("generated_text") is not None:
            self.has_ended = True
        if (usage := read_generate_usage(chunk)) is not None:
            self.usage = usage
        token = chunk.get("token")
        if type(token) is dict and token.get("text") and not token.get("special"):
            self._count_content()
