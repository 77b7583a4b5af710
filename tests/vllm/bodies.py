"""Requests of these tests. vLLM takes no body without its type."""

import json
from typing import Any

from tests.support import serve

from .vllm_process import MODEL

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
JSON = ("content-type", "application/json")
QUESTION = [{"role": "user", "content": "What is the capital of France?"}]
ENDLESS = {"max_tokens": 1500, "ignore_eos": True}


def body(**fields: Any) -> bytes:
    """A request whose answer is always the same one."""
    return json.dumps({"model": MODEL, "temperature": 0, "max_tokens": 8} | fields).encode()


def chat(**fields: Any) -> bytes:
    """The same question as a chat."""
    return body(messages=QUESTION, **fields)


def stream(**fields: Any) -> bytes:
    """The same as a stream with usage."""
    return chat(stream=True, stream_options={"include_usage": True}, **fields)


def post(path: str, request_body: bytes) -> bytes:
    """The bytes of a POST."""
    return serve.post(path, request_body, JSON)


async def ask(port: int, path: str, request_body: bytes, *headers: tuple[str, str]) -> serve.RawClient:
    """A whole POST and its whole answer."""
    return await serve.ask(port, path, request_body, JSON, *headers)
