"""How many tokens a prompt has: exactly where possible, and never at the cost of other requests.

Sources, best first: the model's own tokenizer and chat template (`local`), the replica's /tokenize (`replica`), bytes
per token learned from answers (`bytes`). A source that fails falls through to the next: counting fails no request.
Parts that aren't text, such as images, count nothing in the first.
"""

import asyncio
import hashlib
import logging
import os
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import httpx
import orjson

from .api.fields import RequestFields
from .api.openai_fields import TOKENIZE
from .bytes_per_token import BytesPerToken
from .chat_template import TemplateRefused
from .config import ModelConfig
from .model_tokenizer import ModelTokenizer
from .replica_probe import Prober
from .replicas import Replica
from .work_pool import WorkPool

logger = logging.getLogger(__name__)

Source = Literal["local", "replica", "bytes"]

INLINE_BYTES = 256
"""Bodies up to here are counted on the event loop: 256 bytes take about 70 us, as much as going through a thread
(65 us there and back; both measured on 2 cores with the SmolLM2 vocabulary, which encodes 4 bytes a microsecond)."""
BYTES_PER_S = 3.5e6
"""What a thread encodes; only the order of waiting work depends on it."""
DIGEST_INLINE_BYTES = 65_536
"""Bodies up to here are looked up in the cache on the loop (up to 0.1 ms), larger ones by the thread."""
CACHE_ENTRIES = 16_384
REPLICA_TIMEOUT_S = 2.0
MAX_ASKED_PROMPTS = 4
"""Requests with more prompts aren't counted by a replica: it would be asked once for each."""
REPLICA_PAUSE_S = 30.0
"""A replica whose /tokenize failed isn't asked again for so long."""


@dataclass(frozen=True, slots=True)
class TokenCount:
    """A count, where it came from, and the seconds it waited for a thread and those it took."""

    prompt_tokens: int
    source: Source
    wait_s: float
    work_s: float


class TokenCounter:
    """Counts for every model of a gateway. All methods belong to the event loop."""

    def __init__(
        self, models: Sequence[ModelConfig], pool: WorkPool, http: httpx.AsyncClient, clock: Callable[[], float]
    ) -> None:
        self._paths = {model.name: model.tokenizer for model in models if model.tokenizer is not None}
        self._tokenizers: dict[str, ModelTokenizer] = {}
        self._pool = pool
        self._http = http
        self._clock = clock
        self._ratios = BytesPerToken()
        self._cache: OrderedDict[bytes, tuple[int, Source]] = OrderedDict()
        self._paused_until_s: dict[str, float] = {}

    async def start(self) -> None:
        """Loads the tokenizers and starts the pool. Raises TokenizerLoadError."""
        self._pool.start()
        for name, path in self._paths.items():
            self._tokenizers[name] = await asyncio.to_thread(ModelTokenizer.load, path)

    async def aclose(self) -> None:
        await self._pool.aclose()

    @property
    def num_waiting(self) -> int:
        """Counts that wait for a thread."""
        return self._pool.num_waiting

    def learn(self, model: str, num_body_bytes: int, prompt_tokens: int) -> None:
        """An answer's `usage` said how many tokens a body of so many bytes had."""
        self._ratios.learn(model, num_body_bytes, prompt_tokens)

    async def count(self, fields: RequestFields, model: str, replicas: Iterable[Replica]) -> TokenCount:
        """Prompt tokens of a request, over all its prompts. Cancellation leaves nothing behind."""
        began_s = self._clock()
        if fields.messages is None and fields.prompt is None:
            # Nothing to count: sound, or bodies of which only the size is known.
            size = fields.estimated_tokens
            estimate = self._ratios.estimate(model, fields.num_body_bytes) if size is None else size
            return TokenCount(estimate, "bytes", 0.0, self._clock() - began_s)
        num_ids = _given_ids(fields)
        if num_ids is not None:
            return TokenCount(num_ids, "local", 0.0, self._clock() - began_s)
        key = None
        if fields.num_body_bytes <= DIGEST_INLINE_BYTES:
            key = _digest(fields, model)
            if (known := self._recall(key)) is not None:
                return TokenCount(known[0], known[1], 0.0, self._clock() - began_s)
        tokenizer = self._tokenizers.get(model)
        wait_s = 0.0
        if tokenizer is not None:
            try:
                tokens, wait_s = await self._count_locally(tokenizer, fields, model, key)
                return TokenCount(tokens, "local", wait_s, self._clock() - began_s - wait_s)
            except TemplateRefused as error:
                logger.debug("the chat template of %s refused a request: %s", model, error)
            except Exception:
                logger.exception("counting tokens of %s failed", model)
        asked = await self._ask_replicas(fields, model, replicas)
        if asked is not None:
            if key is not None:
                self._remember(key, asked, "replica")
            return TokenCount(asked, "replica", wait_s, self._clock() - began_s - wait_s)
        estimate = self._ratios.estimate(model, fields.num_body_bytes)
        return TokenCount(estimate, "bytes", wait_s, self._clock() - began_s - wait_s)

    async def _count_locally(
        self, tokenizer: ModelTokenizer, fields: RequestFields, model: str, key: bytes | None
    ) -> tuple[int, float]:
        """Tokens, and the seconds waited for a thread."""
        if fields.num_body_bytes <= INLINE_BYTES and key is not None:
            tokens = _count(tokenizer, fields)
            self._remember(key, tokens, "local")
            return tokens, 0.0

        def work() -> tuple[bytes, int]:
            digest = _digest(fields, model) if key is None else key
            known = self._cache.get(digest)
            return digest, _count(tokenizer, fields) if known is None else known[0]

        done = await self._pool.run(work, fields.num_body_bytes / BYTES_PER_S)
        self._remember(*done.result, "local")
        return done.result[1], done.wait_s

    async def _ask_replicas(self, fields: RequestFields, model: str, replicas: Iterable[Replica]) -> int | None:
        bodies = _tokenize_bodies(fields, model)
        if not 0 < len(bodies) <= MAX_ASKED_PROMPTS:
            return None
        now_s = self._clock()
        for replica in replicas:
            can = TOKENIZE in replica.features and replica.is_available and model in replica.models
            if not can or now_s < self._paused_until_s.get(replica.replica_id, now_s):
                continue
            prober = Prober(self._http, replica.url, replica.authorization, REPLICA_TIMEOUT_S)
            counts = [await _ask(prober, body) for body in bodies]
            if None not in counts:
                return sum(count for count in counts if count is not None)
            self._paused_until_s[replica.replica_id] = now_s + REPLICA_PAUSE_S
            return None
        return None

    def _recall(self, key: bytes) -> tuple[int, Source] | None:
        known = self._cache.get(key)
        if known is not None:
            self._cache.move_to_end(key)
        return known

    def _remember(self, key: bytes, tokens: int, source: Source) -> None:
        self._cache[key] = (tokens, source)
        self._cache.move_to_end(key)
        if len(self._cache) > CACHE_ENTRIES:
            self._cache.popitem(last=False)


def make_pool(clock: Callable[[], float]) -> WorkPool:
    """As many threads as tokenizing may take of this machine: it competes with the event loop for cores."""
    return WorkPool(max(2, min(4, os.cpu_count() or 2)), clock)


def _given_ids(fields: RequestFields) -> int | None:
    """Tokens of prompts given as ids; None for others."""
    prompt = fields.prompt
    if not isinstance(prompt, list) or not prompt:
        return None
    if isinstance(prompt[0], int):
        return len(prompt)
    return sum(map(len, prompt)) if isinstance(prompt[0], list) else None


def _texts(fields: RequestFields) -> list[str]:
    if isinstance(fields.prompt, str):
        return [fields.prompt]
    return [text for text in fields.prompt or () if isinstance(text, str)]


def _count(tokenizer: ModelTokenizer, fields: RequestFields) -> int:
    if fields.messages is not None:
        return tokenizer.count_chat(fields.messages, fields.tools)
    return tokenizer.count_text(_texts(fields))


def _digest(fields: RequestFields, model: str) -> bytes:
    """Of everything that the count depends on."""
    content = [model, fields.messages, fields.tools, fields.prompt]
    return hashlib.blake2b(orjson.dumps(content), digest_size=16).digest()


def _tokenize_bodies(fields: RequestFields, model: str) -> list[dict[str, Any]]:
    if fields.messages is None:
        return [{"model": model, "prompt": text} for text in _texts(fields)]
    body = {"model": model, "messages": fields.messages, "add_generation_prompt": True}
    return [body | {"tools": fields.tools} if fields.tools is not None else body]


async def _ask(prober: Prober, body: dict[str, Any]) -> int | None:
    try:
        answer = await prober.ask("/tokenize", json=body)
    except TimeoutError:
        return None
    data = answer.json() if answer is not None and answer.status == 200 else None
    count = data.get("count") if isinstance(data, dict) else None
    return count if isinstance(count, int) and not isinstance(count, bool) and count >= 0 else None
