"""Whether a replica serves a repeated prefix from its cache, and in blocks of how many tokens: asked, not assumed."""

import re
import secrets
from dataclasses import dataclass
from typing import Any

from .replica_metrics import CACHE_CONFIG, parse_load
from .replica_probe import Prober

NUM_BLOCKS = 6
"""So long is the prompt that is sent twice, and a token more."""
MAX_BLOCK_TOKENS = 4096
"""With larger ones, as models with a recurrent state have them, the prompts of the probe would be long ones."""
_BLOCK_SIZE = re.compile(r'[{,]block_size="(\d{1,18})"')
_CACHES = re.compile(r'enable_prefix_caching="(\w+)"')


@dataclass(frozen=True, slots=True)
class PrefixCaching:
    """`block_tokens` None: it isn't known to work, and `why` says so in words."""

    block_tokens: int | None
    why: str = ""
    may_change: bool = False
    """Whether asking again may bring another answer: nothing spoke against it."""


async def find_prefix_caching(prober: Prober, model: str) -> PrefixCaching:
    """Sends a prompt that nobody sent before twice, and looks how much of the second was cached.

    The answer's `cached_tokens` says so, or the counters in the replica's metrics, which others' calls move too.
    """
    try:
        return await _find(prober, model)
    except TimeoutError:
        return PrefixCaching(None, "no answer in time to the probe of its prefix cache", may_change=True)


async def _find(prober: Prober, model: str) -> PrefixCaching:
    page = await prober.metrics_page()
    line = next((line for line in (page or "").splitlines() if line.startswith(CACHE_CONFIG + "{")), "")
    block = _BLOCK_SIZE.search(line)
    if page is None or block is None:
        return PrefixCaching(None, "its metrics don't tell the size of a block of its cache")
    if (caches := _CACHES.search(line)) is not None and caches[1].lower() in ("false", "0"):
        return PrefixCaching(None, "its prefix caching is off")
    block_tokens = int(block[1])
    if not 0 < block_tokens <= MAX_BLOCK_TOKENS:
        return PrefixCaching(None, f"blocks of {block_tokens} tokens are of no use for slices")
    ids = await _unseen_ids(prober, model, NUM_BLOCKS * block_tokens + 1)
    if ids is None:
        return PrefixCaching(None, "its /tokenize doesn't tell token ids")
    cached_tokens = None
    for _ in range(2):
        before = _hits(page)
        answer = await prober.ask("/v1/completions", json={"model": model, "prompt": ids, "max_tokens": 1})
        if answer is None or answer.status != 200:
            status = "no answer" if answer is None else f"status {answer.status}"
            return PrefixCaching(None, f"{status} to a prompt of token ids at /v1/completions", may_change=True)
        cached_tokens = _cached_tokens(answer.json())
        page = await prober.metrics_page() or ""
    if cached_tokens is None:
        cached_tokens = _hits(page) - before
    if cached_tokens < (NUM_BLOCKS - 1) * block_tokens:
        return PrefixCaching(None, "a prompt sent twice isn't served from its prefix cache")
    return PrefixCaching(block_tokens)


async def _unseen_ids(prober: Prober, model: str, num_ids: int) -> list[int] | None:
    """Random hexadecimal digits as the model's own tokens: at most two or three digits go into one."""
    answer = await prober.ask("/tokenize", json={"model": model, "prompt": secrets.token_hex(4 * num_ids)})
    told: Any = answer.json() if answer is not None and answer.status == 200 else None
    ids = told.get("tokens") if isinstance(told, dict) else None
    return ids[:num_ids] if isinstance(ids, list) and len(ids) >= num_ids else None


def _cached_tokens(answer: Any) -> int | None:
    usage = answer.get("usage") if isinstance(answer, dict) else None
    details = usage.get("prompt_tokens_details") if isinstance(usage, dict) else None
    cached = details.get("cached_tokens") if isinstance(details, dict) else None
    return cached if isinstance(cached, int) else None


def _hits(page: str) -> int:
    """Prompt tokens served from the cache since the engine's start."""
    try:
        return parse_load(page, 0.0).prefix_hits_tokens or 0
    except (ValueError, OverflowError):
        return 0
