"""A double of Text Generation Inference 3: its routes, shapes, headers, metrics and ways to fail, read off its sources.

The server itself was never run with this project.

It "generates" the words of a fixed text, a token each. `may_go_on` is awaited between the first token and the rest.
"""

import asyncio
import json
from typing import Any

from .fake_replica import Call, FakeReplica

MODEL = "org/tiny"
WORDS = (" once", " upon", " a", " time", " there", " was", " <s>", " a", " model")
INFO = {
    "model_id": MODEL,
    "max_concurrent_requests": 128,
    "max_input_tokens": 1023,
    "max_total_tokens": 2048,
    "max_client_batch_size": 4,
    "version": "3.3.0",
}


METRICS = b"""# TYPE tgi_queue_size gauge
tgi_queue_size 3
# TYPE tgi_batch_current_size gauge
tgi_batch_current_size 2
# TYPE tgi_request_duration histogram
tgi_request_duration_bucket{le="+Inf"} 7
"""


class FakeTgi(FakeReplica):
    """A running one, as an async context manager. While `is_overloaded`, it has no permit for anybody."""

    def __init__(self) -> None:
        super().__init__(self._serve_post, models=(MODEL,), owned_by=MODEL, pages={"/info": INFO, "/metrics": METRICS})
        self.is_overloaded = False
        self.may_go_on = asyncio.Event()
        self.may_go_on.set()

    async def _serve_post(self, call: Call) -> None:
        path, body = call.received.path, json.loads(call.received.body)
        if path == "/tokenize":
            await call.whole(json.dumps(tokenized(body["inputs"])).encode())
        elif path == "/generate":
            await self._whole(call, body, in_list=False)
        elif path == "/generate_stream":
            await self._stream(call, body)
        elif path == "/":
            await (self._stream(call, body) if body.get("stream") else self._whole(call, body, in_list=True))
        elif path == "/v1/chat/completions":
            await self._chat(call, body)
        else:
            await call.whole(b"", status=404)

    def _refusal(self, body: dict[str, Any]) -> tuple[int, dict[str, str]] | None:
        if self.is_overloaded:
            return 429, {"error": "Model is overloaded", "error_type": "overloaded"}
        if (body.get("parameters") or {}).get("max_new_tokens", 1) < 1:
            error = "Input validation error: `max_new_tokens` must be strictly positive"
            return 422, {"error": error, "error_type": "validation"}
        return None

    async def _whole(self, call: Call, body: dict[str, Any], *, in_list: bool) -> None:
        if (refusal := self._refusal(body)) is not None:
            await call.whole(json.dumps(refusal[1]).encode(), status=refusal[0])
            return
        words = _words(body)
        answer: dict[str, Any] = {"generated_text": "".join(words)}
        if (body.get("parameters") or {}).get("details"):
            answer["details"] = {"finish_reason": "length", "generated_tokens": len(words), "prefill": [], "tokens": []}
        headers = [
            ("x-compute-type", "cpu"),
            ("x-compute-time", "0.021"),
            ("x-total-time", "21"),
            ("x-validation-time", "1"),
            ("x-queue-time", "4"),
            ("x-inference-time", "16"),
            ("x-time-per-token", "3"),
            ("x-compute-characters", str(len(body["inputs"]))),
            ("x-prompt-tokens", str(len(body["inputs"].split()))),
            ("x-generated-tokens", str(len(words))),
        ]
        await call.whole(json.dumps([answer] if in_list else answer).encode(), headers=headers)

    async def _stream(self, call: Call, body: dict[str, Any]) -> None:
        await call.head(headers=_stream_headers(len(body["inputs"])))
        if (refusal := self._refusal(body)) is not None:
            await call.chunk(tgi_event(refusal[1]))
            await call.end()
            return
        words = _words(body)
        for index, word in enumerate(words, start=1):
            await call.chunk(token_event(index, word, words if index == len(words) else None, body))
            await self.may_go_on.wait()
        await call.end()

    async def _chat(self, call: Call, body: dict[str, Any]) -> None:
        if body.get("model", "tgi") != "tgi":
            error = {"error": f"adapter {body['model']} not found", "error_type": "validation"}
            await call.whole(json.dumps(error).encode(), status=422)
            return
        if body.get("stream"):
            await self._chat_stream(call, body)
            return
        message = {"role": "assistant", "content": "".join(WORDS)}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        await call.whole(json.dumps(_chat("chat.completion", choices=[choice], usage=_USAGE)).encode())

    async def _chat_stream(self, call: Call, body: dict[str, Any]) -> None:
        await call.head(headers=_stream_headers(0))
        for number, word in enumerate(WORDS, start=1):
            delta = {"role": "assistant", "content": word}
            choice = {"index": 0, "delta": delta, "finish_reason": "stop" if number == len(WORDS) else None}
            await call.chunk(tgi_event(_chat("chat.completion.chunk", choices=[choice])))
            await self.may_go_on.wait()
        if (body.get("stream_options") or {}).get("include_usage"):
            await call.chunk(tgi_event(_chat("chat.completion.chunk", choices=[], usage=_USAGE)))
        await call.chunk(b"data:[DONE]\n\n")
        await call.end()


_USAGE = {"prompt_tokens": 3, "completion_tokens": len(WORDS), "total_tokens": 3 + len(WORDS)}


def _chat(kind: str, **members: Any) -> dict[str, Any]:
    return {"object": kind, "id": "", "created": 1, "model": MODEL, "system_fingerprint": "3.3.0", **members}


def _stream_headers(num_characters: int) -> list[tuple[str, str]]:
    return [
        ("content-type", "text/event-stream"),
        ("x-compute-type", "cpu"),
        ("x-compute-characters", str(num_characters)),
        ("x-accel-buffering", "no"),
    ]


def _words(body: dict[str, Any]) -> tuple[str, ...]:
    return WORDS[: (body.get("parameters") or {}).get("max_new_tokens", len(WORDS))]


def tokenized(text: str) -> list[dict[str, Any]]:
    """The answer of /tokenize."""
    tokens, start = [], 0
    for index, word in enumerate(text.split(" ")):
        tokens.append({"id": index, "text": word, "start": start, "stop": start + len(word)})
        start += len(word) + 1
    return tokens


def token_event(index: int, word: str, whole: tuple[str, ...] | None, body: dict[str, Any]) -> bytes:
    """A token of a stream; the last one has the whole text, and the details if they were asked for."""
    details = None
    if whole is not None and (body.get("parameters") or {}).get("details"):
        details = {
            "finish_reason": "length",
            "generated_tokens": len(whole),
            "seed": None,
            "input_length": len(body["inputs"].split()),
        }
    is_special = "<" in word
    return tgi_event(
        {
            "index": index,
            "token": {"id": index, "text": word, "logprob": -0.5, "special": is_special},
            "generated_text": None if whole is None else "".join(whole),
            "details": details,
        }
    )


def tgi_event(data: object) -> bytes:
    """An event as its server library writes it, without a space behind the colon."""
    return b"data:" + json.dumps(data, separators=(",", ":")).encode() + b"\n\n"
