"""How many tokens a prompt has: exactly where possible, and never at the cost of other requests.

Sources, best first: the model's own tokenizer and chat template (`local`), the replica's /tokenize (`replica`), bytes
per token learned from counts and answers (`bytes`). A source that fails falls through to the next: counting fails no
request. Parts that aren't text, such as images, count nothing in the first and the last.

Little is counted on the event loop, more on a thread, short before long, and what would hold its request up is
estimated first and counted while it waits for dispatch.
"""

import asyncio
import logging
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

import httpx
import orjson

from .api.fields import RequestFields
from .bytes_per_token import BytesPerToken
from .chat_template import TemplateRefused
from .config_sections import ModelConfig
from .digest_cache import DigestCache, digest, scope_of
from .local_counter import LocalCounter, Work
from .model_tokenizer import ModelTokenizer, versions_of
from .prompt_size import given_ids, num_prompts, num_text_bytes
from .replica import Replica
from .replica_counter import ReplicaCounter
from .work_pool import WorkPool

logger = logging.getLogger(__name__)

Source = Literal["local", "replica", "bytes"]

INLINE_S = 120e-6
"""Counts expected to take no longer stay on the event loop: going through a thread and back takes as much."""
INLINE_BODY_BYTES = 16_384
INLINE_MESSAGES = 64
"""Up to here a prompt is rendered, cut and looked up on the loop (0.03 ms for 1 KiB, 0.3 ms at most)."""
DIGEST_INLINE_BYTES = 65_536
"""Bodies up to here are looked up as a whole on the loop (up to 0.1 ms), larger ones by the thread."""
PATIENCE_S = 0.05
"""A request waits so long for its count: a hundredth of what computing such a prompt takes. Then an estimate decides.
That is 750 KB of text with tiktoken, 175 KB with tokenizers, or a thread that is busy with somebody's odd text."""
PROMPT_CACHE_BYTES = 4 << 20
PART_CACHE_BYTES = 8 << 20


class TokenCount(NamedTuple):
    """A count, where it came from, and the seconds it waited for a thread and those it took.

    `exact`: this is an estimate, and the count is on its way. It never fails; whoever doesn't want it cancels it.
    """

    prompt_tokens: int
    source: Source
    wait_s: float
    work_s: float
    exact: "asyncio.Task[TokenCount] | None" = None


@dataclass(slots=True)
class _Asked:
    """A prompt to be counted. `key` is its digest (None: not made yet), `work` what was begun on the loop."""

    fields: RequestFields
    model: str
    replicas: Iterable[Replica]
    scope: bytes
    began_s: float
    key: bytes | None = None
    local: LocalCounter | None = None
    work: Work | None = None


@dataclass(frozen=True, slots=True, eq=False)
class _Loaded:
    """A tokenizer and where it is from: the folder, and which versions of its files. Equal to itself only."""

    source: tuple[object, ...]
    tokenizer: ModelTokenizer


class TokenCounter:
    """Counts for every model of a gateway. All methods belong to the event loop."""

    def __init__(
        self,
        models: Sequence[ModelConfig],
        pool: WorkPool,
        http: httpx.AsyncClient,
        clock: Callable[[], float],
        *,
        patience_s: float = PATIENCE_S,
        load: Callable[[Path], ModelTokenizer] = ModelTokenizer.load,
    ) -> None:
        self._models = models
        self._tokenizers: dict[str, _Loaded] = {}
        self._local: dict[str, LocalCounter] = {}
        self._pool = pool
        self._replicas = ReplicaCounter(http, clock)
        self._clock = clock
        self._patience_s = patience_s
        self._load = load
        self._ratios = BytesPerToken()
        self._prompts: DigestCache[tuple[int, Source]] = DigestCache(PROMPT_CACHE_BYTES)
        self._parts: DigestCache[int] = DigestCache(PART_CACHE_BYTES)
        self._running: set[asyncio.Task[TokenCount]] = set()

    async def start(self) -> None:
        """Loads the tokenizers and starts the pool. Raises TokenizerLoadError."""
        self._pool.start()
        self.use(await self.load(self._models))

    async def load(self, models: Sequence[ModelConfig]) -> "dict[str, _Loaded]":
        """The tokenizers of these models for `use`; those that are in use are loaded again only if their files changed.

        Raises TokenizerLoadError.
        """
        loaded = {}
        for model in models:
            if (path := model.tokenizer) is None:
                continue
            known = self._tokenizers.get(model.name)
            source = (path, *await asyncio.to_thread(versions_of, path))
            if known is None or known.source != source:
                tokenizer = await asyncio.to_thread(self._load, path)
                why = "" if tokenizer.why is None else f" ({tokenizer.why})"
                logger.info("tokens of %s are counted with %s%s", model.name, tokenizer.encoder.name, why)
                known = _Loaded(source, tokenizer)
            loaded[model.name] = known
        return loaded

    def use(self, loaded: "dict[str, _Loaded]") -> None:
        """From now on these tokenizers. Counts by others are forgotten."""
        if loaded == self._tokenizers:
            return
        self._tokenizers = loaded
        self._prompts, self._parts = DigestCache(PROMPT_CACHE_BYTES), DigestCache(PART_CACHE_BYTES)
        self._local = {name: LocalCounter(known.tokenizer, self._parts) for name, known in loaded.items()}

    async def aclose(self) -> None:
        for task in self._running:
            task.cancel()
        if self._running:
            await asyncio.wait(self._running)
        await self._pool.aclose()

    @property
    def num_waiting(self) -> int:
        """Counts that wait for a thread."""
        return self._pool.num_waiting

    @property
    def encoders(self) -> Mapping[str, str]:
        """What counts the tokens of each model that has a tokenizer here."""
        return {model: local.encoder.name for model, local in self._local.items()}

    def learn(self, model: str, num_body_bytes: int, prompt_tokens: int) -> None:
        """An answer's `usage` said how many tokens a body of so many bytes had."""
        self._ratios.learn(model, num_body_bytes, prompt_tokens)

    async def count(
        self, fields: RequestFields, model: str, replicas: Iterable[Replica], tenant: str = "", *, waits: bool = False
    ) -> TokenCount:
        """Prompt tokens of a request, over all its prompts. Cancellation leaves nothing behind.

        `waits`: for the exact count, however long it takes. `tenant`: what its requests taught makes only its own
        quicker, since how long a count takes would tell others what they contained.
        """
        began_s = self._clock()
        if fields.messages is None and fields.prompt is None:
            # Nothing to count: sound, or bodies of which only the size is known.
            size = fields.estimated_tokens
            return self._counted(self._estimate(fields, model) if size is None else size, "bytes", began_s)
        num_ids = given_ids(fields)
        if num_ids is not None:
            return self._counted(num_ids, "local", began_s)
        local = self._local.get(model)
        if local is None and self._replicas.able(model, replicas) is None:
            return self._counted(self._estimate(fields, model), "bytes", began_s)
        asked = _Asked(fields, model, replicas, scope_of(model, tenant), began_s, local=local)
        if fields.num_body_bytes <= DIGEST_INLINE_BYTES:
            asked.key = _key(asked)
            if (known := self._prompts.get(asked.key)) is not None:
                self._prompts.used((asked.key,))
                return self._counted(*known, began_s)
        if (inline := self._count_inline(asked)) is not None:
            return inline
        if waits:
            return await self._count_exactly(asked)
        return await self._count_patiently(asked)

    def _count_inline(self, asked: _Asked) -> TokenCount | None:
        """The count, where it takes no time to speak of; else what could be prepared is in `asked`."""
        local, fields = asked.local, asked.fields
        if local is None or fields.num_body_bytes > INLINE_BODY_BYTES or num_prompts(fields) > INLINE_MESSAGES:
            return None
        try:
            asked.work = work = local.begin(fields, asked.scope)
            if work.num_missing_bytes > INLINE_S * local.encoder.bytes_per_s:
                return None
            local.finish(work)
        except Exception as error:
            self._not_local(asked, error)
            return None
        return self._counted_locally(asked, work, 0.0)

    async def _count_patiently(self, asked: _Asked) -> TokenCount:
        task = asyncio.create_task(self._count_exactly(asked), name="count")
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        if self._expected_s(asked) <= self._patience_s:
            try:
                await asyncio.wait((task,), timeout=self._patience_s)
            except asyncio.CancelledError:
                task.cancel()
                raise
            if task.done():
                return task.result()
        estimate = self._estimate(asked.fields, asked.model)
        return TokenCount(estimate, "bytes", 0.0, self._clock() - asked.began_s, task)

    async def _count_exactly(self, asked: _Asked) -> TokenCount:
        """From the best source that has an answer."""
        if asked.local is not None:
            try:
                return await self._count_on_thread(asked, asked.local)
            except Exception as error:
                self._not_local(asked, error)
        tokens = await self._replicas.count(asked.fields, asked.model, asked.replicas)
        if tokens is None:
            return self._counted(self._estimate(asked.fields, asked.model), "bytes", asked.began_s)
        if asked.key is not None:
            self._prompts.put(asked.key, (tokens, "replica"))
        return self._counted(tokens, "replica", asked.began_s)

    async def _count_on_thread(self, asked: _Asked, local: LocalCounter) -> TokenCount:
        def count() -> Work | int:
            if asked.key is None:
                asked.key = _key(asked)
                if (known := self._prompts.get(asked.key)) is not None:
                    return known[0]
            work = asked.work or local.begin(asked.fields, asked.scope)
            local.finish(work)
            return work

        done = await self._pool.run(count, self._expected_s(asked))
        if isinstance(done.result, int):
            return self._counted(done.result, "local", asked.began_s, done.wait_s)
        return self._counted_locally(asked, done.result, done.wait_s)

    def _counted_locally(self, asked: _Asked, work: Work, wait_s: float) -> TokenCount:
        assert asked.local is not None
        asked.local.remember(work)
        if asked.key is not None:
            self._prompts.put(asked.key, (work.num_tokens, "local"))
        self._ratios.learn(asked.model, num_text_bytes(asked.fields), work.num_tokens)
        return self._counted(work.num_tokens, "local", asked.began_s, wait_s)

    def _counted(self, tokens: int, source: Source, began_s: float, wait_s: float = 0.0) -> TokenCount:
        return TokenCount(tokens, source, wait_s, self._clock() - began_s - wait_s)

    def _not_local(self, asked: _Asked, error: Exception) -> None:
        asked.local = asked.work = None
        if isinstance(error, TemplateRefused):
            logger.debug("the chat template of %s refused a request: %s", asked.model, error)
        else:
            logger.error("counting tokens of %s failed", asked.model, exc_info=error)

    def _expected_s(self, asked: _Asked) -> float:
        """Seconds of a thread's time; of a replica's nothing is known."""
        if asked.local is None:
            return 0.0
        work = asked.work
        num_bytes = num_text_bytes(asked.fields) if work is None else work.num_missing_bytes
        return num_bytes / asked.local.encoder.bytes_per_s

    def _estimate(self, fields: RequestFields, model: str) -> int:
        return self._ratios.estimate(model, num_text_bytes(fields))


def make_pool(clock: Callable[[], float]) -> WorkPool:
    """As many threads as tokenizing may take of this machine: it competes with the event loop for cores."""
    return WorkPool(max(2, min(4, os.cpu_count() or 2)), clock)


def _key(asked: _Asked) -> bytes:
    """Digest of everything that the count depends on."""
    fields = asked.fields
    return digest(orjson.dumps([fields.messages, fields.tools, fields.prompt]), asked.scope)
