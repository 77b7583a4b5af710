"""Counting by a replica's own /tokenize, where a model has no tokenizer here."""

from collections.abc import Callable, Iterable
from typing import Any

import httpx

from .api.fields import RequestFields
from .api.openai_fields import TOKENIZE
from .local_counter import texts_of
from .replica import Replica
from .replica_probe import Prober

REPLICA_TIMEOUT_S = 2.0
MAX_ASKED_PROMPTS = 4
"""Requests with more prompts aren't counted by a replica: it would be asked once for each."""
REPLICA_PAUSE_S = 30.0
"""A replica whose /tokenize failed isn't asked again for so long."""


class ReplicaCounter:
    """Asks one replica at a time, and leaves one that failed alone for a while."""

    def __init__(self, http: httpx.AsyncClient, clock: Callable[[], float]) -> None:
        self._http = http
        self._clock = clock
        self._paused_until_s: dict[str, float] = {}

    async def count(self, fields: RequestFields, model: str, replicas: Iterable[Replica]) -> int | None:
        """Tokens over all prompts, in vLLM's way; None: no replica has an answer."""
        bodies = _bodies(fields, model)
        if not 0 < len(bodies) <= MAX_ASKED_PROMPTS:
            return None
        replica = self.able(model, replicas)
        if replica is None:
            return None
        prober = Prober(self._http, replica.url, replica.authorization, REPLICA_TIMEOUT_S)
        counts = [await _ask(prober, body) for body in bodies]
        if None not in counts:
            return sum(count for count in counts if count is not None)
        self._paused_until_s[replica.replica_id] = self._clock() + REPLICA_PAUSE_S
        return None

    def able(self, model: str, replicas: Iterable[Replica]) -> Replica | None:
        """The one to ask, None if there is none."""
        for replica in replicas:
            if TOKENIZE in replica.features and replica.is_available and model in replica.models:
                until_s = self._paused_until_s.get(replica.replica_id)
                if until_s is None or self._clock() >= until_s:
                    return replica
        return None


def _bodies(fields: RequestFields, model: str) -> list[dict[str, Any]]:
    if fields.messages is None:
        return [{"model": model, "prompt": text} for text in texts_of(fields)]
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
