"""Requests that must be refused: the right 4xx, OpenAI's error shape, nothing leaked, the next request served."""

import json
import re
from dataclasses import dataclass
from typing import Any

import aiohttp

from ..client import LoadClient
from .bar import Bar, at_least

# Stack traces, file names of ours, and object representations have no place in an answer.
_LEAK = re.compile(r"Traceback|\.py\b|site-packages|<[a-z_.]+ object at 0x|/(?:home|usr|root|work|tmp)/", re.IGNORECASE)
_CHAT = "/v1/chat/completions"
_COMPLETIONS = "/v1/completions"


@dataclass(frozen=True, slots=True)
class _Case:
    name: str
    path: str
    body: bytes
    statuses: tuple[int, ...]


def cases(model: str) -> list[_Case]:
    """The battery for a server that serves `model`."""
    hello = [{"role": "user", "content": "hello"}]

    def chat(**changes: Any) -> bytes:
        body = {"model": model, "messages": hello, "max_tokens": 2} | changes
        return json.dumps({name: value for name, value in body.items() if value is not _ABSENT}).encode()

    def completion(**changes: Any) -> bytes:
        return json.dumps({"model": model, "prompt": "hello", "max_tokens": 2} | changes).encode()

    too_long = "word " * 20_000
    return [
        _Case("empty-body", _CHAT, b"", (400,)),
        _Case("invalid-json", _CHAT, b'{"model": ', (400,)),
        _Case("not-an-object", _CHAT, b"[1, 2]", (400,)),
        _Case("not-utf-8", _CHAT, b'{"model": "\xff\xfe"}', (400,)),
        _Case("deep-nesting", _CHAT, b'{"messages": ' + b"[" * 5_000 + b"]" * 5_000 + b"}", (400,)),
        _Case("nan", _CHAT, chat(temperature=float("nan")), (400,)),
        _Case("infinity", _CHAT, chat(temperature=float("inf")), (400,)),
        _Case("temperature-text", _CHAT, chat(temperature="hot"), (400,)),
        _Case("max-tokens-text", _CHAT, chat(max_tokens="ten"), (400,)),
        _Case("max-tokens-negative", _CHAT, chat(max_tokens=-1), (400,)),
        _Case("max-tokens-fraction", _CHAT, chat(max_tokens=1.5), (400,)),
        _Case("stream-text", _CHAT, chat(stream="yes"), (400,)),
        _Case("messages-text", _CHAT, chat(messages="hello"), (400,)),
        _Case("messages-empty", _CHAT, chat(messages=[]), (400,)),
        _Case("messages-absent", _CHAT, chat(messages=_ABSENT), (400,)),
        _Case("message-without-role", _CHAT, chat(messages=[{"content": "hello"}]), (400,)),
        _Case("message-content-number", _CHAT, chat(messages=[{"role": "user", "content": 7}]), (400,)),
        _Case("model-number", _CHAT, chat(model=7), (400,)),
        _Case("unknown-model", _CHAT, chat(model="no-such-model"), (404,)),
        _Case("over-context", _CHAT, chat(messages=[{"role": "user", "content": too_long}]), (400,)),
        _Case("prompt-number", _COMPLETIONS, completion(prompt=7), (400,)),
        _Case("prompt-token-out-of-range", _COMPLETIONS, completion(prompt=[10**9]), (400,)),
        _Case("completion-over-context", _COMPLETIONS, completion(prompt=too_long), (400,)),
        _Case("body-of-10-mb", _CHAT, chat(messages=[{"role": "user", "content": "x" * 10_000_000}]), (413,)),
    ]


_ABSENT: Any = object()


async def bad_input_bar(client: LoadClient) -> Bar:
    """Share of the battery's cases that were refused as they should be, each followed by a good request."""
    battery = cases(client.model)
    failures = [f"{case.name}: {why}" for case in battery if (why := await _why_wrong(client, case)) is not None]
    held = (len(battery) - len(failures)) / len(battery)
    return at_least("bad-input-refused-ratio", held, 1.0, "; ".join(failures) or f"{len(battery)} cases")


async def _why_wrong(client: LoadClient, case: _Case) -> str | None:
    """None when the case was refused well and the next request served; else what was wrong."""
    headers = {"content-type": "application/json"}
    try:
        async with client.session.post(client.url + case.path, data=case.body, headers=headers) as response:
            status, text = response.status, (await response.read()).decode("utf-8", "replace")
    except aiohttp.ClientError as error:
        return f"no answer ({type(error).__name__})"
    if status not in case.statuses:
        return f"status {status}"
    if (why := why_not_openai_error(text)) is not None:
        return why
    good = {"model": client.model, "messages": [{"role": "user", "content": "hello"}], "max_tokens": 1}
    status, _ = await client.post_json(_CHAT, good)
    return None if status == 200 else f"the next request got {status}"


def why_not_openai_error(text: str) -> str | None:
    """None for `{"error": {"message", "type", "param", "code"}}` that leaks nothing; else what is wrong with it."""
    try:
        error = json.loads(text)["error"]
        message, kind = error["message"], error["type"]
    except (ValueError, KeyError, TypeError):
        return "not OpenAI's error shape"
    if not (isinstance(message, str) and message and isinstance(kind, str) and {"param", "code"} <= set(error)):
        return "not OpenAI's error shape"
    leak = _LEAK.search(text)
    return f"leaks {leak.group(0)!r}" if leak else None
