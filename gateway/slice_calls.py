"""Computing the first part of a long prompt on a replica, so that the request itself finds it in the cache.

A slice is a call of ours to /v1/completions with the first token ids of the prompt and one token to generate. The ids
are the caller's own, or the replica's /tokenize tells them. Whatever goes wrong with a slice ends the slicing, not the
request: that is then sent whole, as it came, so a prompt that was told wrongly costs time and changes no answer.
"""

from collections.abc import Callable
from typing import Any

import orjson

from policies.types import Call, Lane, Outcome, Sample

from .api.body import parse_object
from .api.sliceable import known_ids, tokenize_body
from .attribution import Layer, Record
from .dispatcher import Place
from .sending import ReplicaView, Sending
from .unanswered import UnansweredCalls
from .upstream import Upstreams
from .upstream_errors import ConnectFailed, UpstreamError

_COMPLETIONS = b"POST /v1/completions"
_TOKENIZE = b"POST /tokenize"
# Some 16 bytes a token id: answers of /tokenize beyond what any context holds.
_MAX_ANSWER_BYTES = 64 * 1024 * 1024


class SliceCalls:
    """One for the whole gateway; it keeps no state of a request. `pool` as for `calling.Caller`."""

    def __init__(
        self, *, pool: Any, upstreams: Upstreams, unanswered: UnansweredCalls, clock: Callable[[], float]
    ) -> None:
        self._pool = pool
        self._upstreams = upstreams
        self._unanswered = unanswered
        self._clock = clock

    async def run(self, sending: Sending, place: Place, call: Call, record: Record) -> None:
        """One slice, to its end; then the request waits again, for its next slice or its own call."""
        assert call.slice_end_tokens is not None
        outcome, sample = Outcome.IGNORED, Sample()
        replica = self._pool.get(call.replica_id)
        record.begin_slice(self._clock(), call.replica_id)
        try:
            ids = await self._ids(sending, replica, call, place.request.model, record)
            if ids is not None and call.slice_end_tokens < len(ids):
                body = _slice_body(sending, replica.wire_name(place.request.model), ids[: call.slice_end_tokens])
                began_s = self._clock()
                record.enter(Layer.PREFILL, began_s)
                status, _ = await self._post(sending, replica, call, _COMPLETIONS, body)
                if status == 200:
                    outcome, sample = Outcome.SUCCESS, Sample(upstream_ttft_s=self._clock() - began_s)
        except UpstreamError as error:
            if isinstance(error, ConnectFailed) and error.is_refused:
                self._pool.report_refused(call.replica_id)
            else:
                self._pool.report_failure(call.replica_id)
        record.end_slice(self._clock(), is_useful=outcome is Outcome.SUCCESS)
        place.end_call(outcome, sample)

    async def _ids(self, sending: Sending, replica: Any, call: Call, model: str, record: Record) -> list[int] | None:
        """Of the whole prompt, asked for once; None: they can't be had."""
        if sending.prompt_ids is None:
            parsed = _parsed(sending)
            ids = known_ids(parsed)
            if ids is None:
                record.enter(Layer.TOKENIZE, self._clock())
                body = orjson.dumps(tokenize_body(parsed, replica.wire_name(model)))
                status, answer = await self._post(sending, replica, call, _TOKENIZE, body)
                ids = _told_ids(answer) if status == 200 else None
            sending.prompt_ids = ids
        return sending.prompt_ids

    async def _post(
        self, sending: Sending, replica: ReplicaView, call: Call, start: bytes, body: bytes
    ) -> tuple[int, bytes]:
        """Status and body of the answer. Raises UpstreamError."""
        upstream = self._upstreams.of(call.replica_id, replica.url)
        # In the last place of the engine's own queue: what others send meanwhile goes before it.
        head = sending.head_for(replica, Lane.BACKGROUND, upstream.authority, len(body), start=start)
        exchange = upstream.exchange(head, body)
        unanswered = self._unanswered.add(call.replica_id, exchange, lambda: True)
        try:
            await exchange.send()
            status, _ = await exchange.head()
            self._unanswered.answered(call.replica_id, unanswered)
            answer = bytearray()
            while not exchange.is_at_end and len(answer) <= _MAX_ANSWER_BYTES:
                answer += await exchange.read()
            return status, bytes(answer)
        finally:
            self._unanswered.remove(call.replica_id, unanswered)
            exchange.close()


def _parsed(sending: Sending) -> dict[str, Any]:
    """The body, as it was read when it came: its depth was looked at then."""
    return parse_object(sending.body, max_depth=len(sending.body))


def _slice_body(sending: Sending, model: str, ids: list[int]) -> bytes:
    body = {"model": model, "prompt": ids, "max_tokens": 1, "temperature": 0}
    salt = _parsed(sending).get("cache_salt")
    return orjson.dumps(body if salt is None else body | {"cache_salt": salt})


def _told_ids(answer: bytes) -> list[int] | None:
    try:
        told = orjson.loads(answer)
    except orjson.JSONDecodeError:
        return None
    ids = told.get("tokens") if isinstance(told, dict) else None
    return ids if isinstance(ids, list) and set(map(type, ids)) == {int} else None
