"""A scripted engine with a prefix cache: it answers /tokenize, prompts of ids, and long chats when it is told to."""

import asyncio
import json
import time
from typing import Any

from tests.support.fake_replica import DONE as END_OF_STREAM
from tests.support.fake_replica import Call, FakeReplica, delta, finish, usage_event

BLOCK = 16
WORDS_PER_PROMPT = 3000


def metrics_page(*, caching: str = "True", block: str = str(BLOCK)) -> bytes:
    return (
        f'vllm:cache_config_info{{block_size="{block}",enable_prefix_caching="{caching}",num_gpu_blocks="10000"}} 1.0\n'
        'vllm:prefix_cache_hits_total{model_name="m1"} 0.0\n'
    ).encode()


class SlicingEngine:
    """`replica` is the server. A word of a prompt is a token, its id the word's number in the text.

    Chats with long prompts wait for `may_answer`, and for `may_end` behind the first piece of a stream; prompts of ids
    for `may_compute`. `slices` lists the prompts of ids
    that came in slices, `chats` the bodies of chats, in order. Computing a token takes a millisecond of `clock`, which
    is real time and what was computed.
    """

    def __init__(self, *, says_cached: bool = True, page: bytes | None = None) -> None:
        self.replica = FakeReplica(self._serve, owned_by="vllm", pages={"/metrics": page or metrics_page()})
        self.may_answer = asyncio.Event()
        self.may_end = asyncio.Event()
        self.may_end.set()
        self.may_compute = asyncio.Event()
        self.may_compute.set()
        self.slices: list[dict[str, Any]] = []
        self.slice_headers: list[list[tuple[str, str]]] = []
        self.chats: list[bytes] = []
        self.asked: list[dict[str, Any]] = []
        self.computed_s = 0.0
        self.slice_status = 200
        self.tokenize_status = 200
        self.sends_head_at_once = False
        self.remembers = True
        self._says_cached = says_cached
        self._seen: set[tuple[int, ...]] = set()

    def clock(self) -> float:
        return time.monotonic() + self.computed_s

    async def _serve(self, call: Call) -> None:
        body = json.loads(call.received.body)
        if call.received.path == "/tokenize":
            await self._tokenize(call, body)
        elif call.received.path == "/v1/completions":
            await self._compute(call, body)
        else:
            await self._chat(call, body)

    async def _tokenize(self, call: Call, body: dict[str, Any]) -> None:
        self.asked.append(body)
        if self.tokenize_status != 200:
            await call.whole(b"{}", status=self.tokenize_status)
            return
        text = body.get("prompt") or " ".join(str(message["content"]) for message in body["messages"])
        # The probe's text is one word; it gets a token for every other letter.
        ids = list(range(1, len(text.split()) + 1)) if " " in text else [ord(letter) for letter in text[::2]]
        await call.whole(json.dumps({"count": len(ids), "max_model_len": 100_000, "tokens": ids}).encode())

    async def _compute(self, call: Call, body: dict[str, Any]) -> None:
        ids = tuple(body["prompt"])
        is_probe = "temperature" not in body
        if not is_probe:
            self.slices.append(body)
            self.slice_headers.append(call.received.headers)
            if self.slice_status != 200:
                await call.whole(b"{}", status=self.slice_status)
                return
            await self.may_compute.wait()
            before = max((len(seen) for seen in self._seen if seen == ids[: len(seen)]), default=0)
            self.computed_s += 0.001 * (len(ids) - before)
        usage: dict[str, Any] = {"prompt_tokens": len(ids), "completion_tokens": 1}
        if self._says_cached:
            usage["prompt_tokens_details"] = {"cached_tokens": len(ids) - 1 if ids in self._seen else 0}
        if self.remembers:
            self._seen.add(ids)
        await call.whole(json.dumps({"choices": [{"text": "x"}], "usage": usage}).encode())

    async def _chat(self, call: Call, body: dict[str, Any]) -> None:
        self.chats.append(call.received.body)
        is_long = len(call.received.body) > 1000
        if self.sends_head_at_once and body.get("stream"):
            await call.head(headers=[("content-type", "text/event-stream")])
        if is_long:
            await self.may_answer.wait()
        prompt_tokens = WORDS_PER_PROMPT if is_long else 5
        if not body.get("stream"):
            usage = {"prompt_tokens": prompt_tokens, "completion_tokens": 2}
            await call.whole(json.dumps({"id": "c", "choices": [], "usage": usage}).encode())
            return
        if not self.sends_head_at_once:
            await call.head(headers=[("content-type", "text/event-stream")])
        for piece in (delta("hello"), finish(), usage_event(prompt_tokens, 2), END_OF_STREAM):
            await call.chunk(piece)
            if is_long:
                await self.may_end.wait()
        await call.end()
